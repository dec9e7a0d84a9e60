"""Every error that swarmd raises on purpose.

    SwarmdError
      ProtocolError(code)            swarmd.protocols.errors: Local- and RemoteProtocolError
      UserError(code, hint)          bad flag, bad file, not permitted: exits with its own code
      TransportError(cause)
        PeerUnreachable              no address answered
        LinkBroken                   the world ended it
        LinkClosed                   we ended it
        Backpressure                 its queue is full
      ComputeError(code)
        ComputeLost                  the worker process is gone
        JobFailed                    the worker lives, this job did not work
      StoreError(path)
        DiskFull | OverDiskLimit | Corrupt | NotPermitted

Only the layer that can act catches. `code` is stable and is what status, logs and metrics show.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swarmd.protocols.errors import (
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    SwarmdError,
)

__all__ = [
    "Backpressure",
    "ComputeError",
    "ComputeLost",
    "Corrupt",
    "DiskFull",
    "JobFailed",
    "LinkBroken",
    "LinkClosed",
    "LocalProtocolError",
    "NotPermitted",
    "OverDiskLimit",
    "PeerUnreachable",
    "ProtocolError",
    "RemoteProtocolError",
    "StoreError",
    "SwarmdError",
    "TransportError",
    "UserError",
    "code_and_hint",
]


class UserError(SwarmdError):
    """Something only the user can mend. One line, a hint, and the exit code of docs/cli.md."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        exit_code: int,
        hint: str = "",
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.exit_code = exit_code
        self.hint = hint
        self.details = details or {}
        """Plain values, for `--json`."""


class TransportError(SwarmdError):
    """A link could not do what was asked. `cause` as in LinkDown and DialFailed."""

    def __init__(self, cause: str, text: str = "") -> None:
        super().__init__(f"{cause}: {text}" if text else cause)
        self.cause = cause


class PeerUnreachable(TransportError):
    """No address answered. `causes`: address to cause."""

    def __init__(self, causes: dict[str, str]) -> None:
        super().__init__("unreachable", ", ".join(f"{a} ({c})" for a, c in causes.items()))
        self.causes = causes


class LinkBroken(TransportError):
    """The world ended the link."""


class LinkClosed(TransportError):
    """We ended the link."""


class Backpressure(TransportError):
    """The link's queue is full; nothing was sent."""


class ComputeError(SwarmdError):
    """A job gave nothing. `code` as in protocols.jobs.JobFailure."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code
        self.text = text


class ComputeLost(ComputeError):
    """The worker process is gone, and all that it held."""


class JobFailed(ComputeError):
    """This job failed; the worker goes on."""


class StoreError(SwarmdError):
    """A file could not be read or written."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path = path
        self.text = text


class DiskFull(StoreError):
    """No room."""


class OverDiskLimit(StoreError):
    """There may be room, but `--disk-limit` does not allow more."""


class Corrupt(StoreError):
    """Content does not match its hash or format."""


class NotPermitted(StoreError):
    """The system does not let us."""


def code_and_hint(error: SwarmdError) -> tuple[str, str]:
    """The stable code of any error of ours, and what the user can do, if anything."""
    match error:
        case UserError():
            return error.code, error.hint
        case DiskFull():
            return "disk_full", "free some space"
        case NotPermitted():
            return "not_permitted", ""
        case StoreError():
            return "store_failed", ""
        case ComputeError():
            return error.code, ""
        case TransportError():
            return error.cause, ""
        case _:
            return str(getattr(error, "code", "failed")), ""
