"""A Unix socket at a path of any length.

The kernel takes about a hundred bytes of name (107 on Linux, 103 on macOS); a home may lie deeper.
A path that is too long is reached through a short one to its directory: on Linux
/proc/self/fd/N/NAME with the directory held open, elsewhere a symbolic link in a private temporary
directory. Neither changes the current directory, which belongs to the whole process. The socket
file itself always lies where the home says.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME_BYTES_MAX = 100
"""Below the limit of every system that is supported."""


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for `path` that `bind` and `connect` take, valid inside the block."""
    if len(os.fsencode(path)) <= NAME_BYTES_MAX:
        yield str(path)
        return
    if sys.platform == "linux":
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{folder}/{path.name}"
        finally:
            os.close(folder)
        return
    with tempfile.TemporaryDirectory(prefix="swarmd-") as private:
        link = Path(private) / "run"
        link.symlink_to(path.parent, target_is_directory=True)
        yield str(link / path.name)
