"""The one place where an error becomes an exit status, a line for people, an object for programs.

Codes and names are those of docs/cli.md section 6. Whatever is raised ends here; nothing else calls
sys.exit.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click

from swarmd.cli.output import OutputFailed, harmless
from swarmd.errors import ComputeError, SwarmdError, UserError, code_and_hint
from swarmd.store import refused_by_disk
from swarmd.units import BadValue

OK = 0
FAILED = 1
USAGE = 2
NO_DAEMON = 3
UNHEALTHY = 4
DRAIN_INCOMPLETE = 5
INVARIANT_BROKEN = 10
TARGET_MISSED = 11
PEER_CRASHED = 12
UNREACHABLE = 69
TRY_AGAIN = 75
REFUSED = 77
BAD_CONFIG = 78
TIMED_OUT = 124
INTERRUPTED = 130
TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM, for commands that are not the daemon."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as the outside sees it."""

    code: str
    exit_code: int
    message: str
    hint: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    is_ours: bool = False
    """A bug: worth a traceback."""

    def lines(self) -> list[str]:
        """For standard error. Names of files and peers stand in it, and they may hold anything."""
        shown = " ".join(self.message.split())
        lines = [f"swarmd: error: {shown} ({self.code})", *_last_stop(self.details)]
        return [harmless(line) for line in [*lines, *([f"hint: {self.hint}"] if self.hint else [])]]


@contextlib.contextmanager
def until_ctrl_c() -> Iterator[None]:
    """Round what goes on until Ctrl-C: that is its usual end then, and no mistake."""
    with contextlib.suppress(KeyboardInterrupt, click.Abort):
        yield


def failure_of(error: BaseException) -> Failure:
    """What went wrong, for anything that can be raised."""
    match error:
        case BaseExceptionGroup() if len(error.exceptions) == 1:  # nurseries wrap what passes them
            return failure_of(error.exceptions[0])
        case UserError():
            return Failure(error.code, error.exit_code, str(error), error.hint, error.details)
        case BadValue():
            return Failure("usage", USAGE, str(error))
        case click.exceptions.NoArgsIsHelpError():
            return Failure("usage", USAGE, "no command was given", _usage_hint(error))
        case click.UsageError():
            return Failure("usage", USAGE, _usage_text(error), _usage_hint(error))
        case click.Abort() | KeyboardInterrupt():
            return Failure("interrupted", INTERRUPTED, "interrupted")
        case Terminated():
            return Failure("terminated", TERMINATED, "terminated")
        case click.ClickException():
            return Failure("failed", error.exit_code, error.format_message())
        case OutputFailed():
            return Failure("output_failed", FAILED, f"standard output cannot be written: {error}")
        case SwarmdError():
            code, hint = code_and_hint(error)
            text = error.text if isinstance(error, ComputeError) else ""
            return Failure(code, FAILED, text or str(error), hint)
        case OSError() if (refused := refused_by_disk(error)) is not None:
            return failure_of(refused)
        case _:
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return Failure(
                "internal_error", FAILED, text, "`-v` shows where it happened", is_ours=True
            )


def traceback_of(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).rstrip().split("\n")


def drop_output() -> None:
    """After a closed pipe: what Python still holds goes nowhere, and without a complaint."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (AttributeError, OSError, ValueError):  # not a real file: a test's, or none
            continue
    os.close(nowhere)


def _usage_text(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        from swarmd.peer_config import is_run_key

        name = error.option_name.lstrip("-").replace("-", "_")
        if is_run_key(name):
            text = f"{error.option_name} belongs to the run, which is equal on every peer"
            where = "; where its data are on this machine says --data-source"
            return text + where if name == "data" else text
    text = error.format_message().rstrip(".")
    return text.replace("is not a valid integer range", "is no whole number")


def _usage_hint(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx is not None else "swarmd"
    return f"`{path} --help` shows what it takes"


def _last_stop(details: dict[str, Any]) -> list[str]:
    """`  last stop   3 min ago, drained, exit 0`."""
    from swarmd.cli.format import ago

    last = details.get("last_exit")
    if details.get("ended_without_a_word"):
        return ["  last stop   it ended without a word: killed, or the machine went down"]
    if not isinstance(last, dict):
        return []
    return [
        f"  last stop   {ago(last.get('at'))}, {last.get('code')}, exit {last.get('exit_code')}"
    ]
