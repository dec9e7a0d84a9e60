"""`python -m swarmd`, and the console script: the command line, once it is loaded.

Kept this light because a spawned child may import the main module again. Until there is somebody to
say it in words, Ctrl-C ends the process without a traceback.
"""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from swarmd.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
