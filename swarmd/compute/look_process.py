"""The process in which a command has done what needs torch (look.py).

    python -m swarmd.compute.look_process TASK LIFELINE PARENT_PID < one JSON object

It is tied to the command before it loads torch, so that none outlives a command that was killed.
"""

from __future__ import annotations

import sys

from swarmd.compute.lifeline import tie_to_parent


def main(arguments: list[str]) -> int:
    task, lifeline_fd, parent_pid = arguments[0], int(arguments[1]), int(arguments[2])
    tie_to_parent(lifeline_fd, None, parent_pid)
    from swarmd.compute.look import answer  # loads torch

    return answer(task)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
