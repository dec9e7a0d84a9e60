"""What went wrong in the worker, as one of the codes of `JobFailure`. No torch needed to tell.

torch says "out of memory" and "the device is gone" in several types and many texts, and which of
them exist differs between its versions. Types are therefore matched by name, texts by phrases.

After device_lost nothing the process holds on that device can be trusted (a CUDA context is broken
for good), so it is the one failure of a job that ends the worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swarmd.errors import ComputeError, StoreError, UserError
from swarmd.protocols.errors import ProtocolError
from swarmd.protocols.jobs import JobFailure

TEXT_CHARS_MAX = 300

OUT_OF_MEMORY_TYPES = ("OutOfMemoryError", "MemoryError")
OUT_OF_MEMORY_PHRASES = (
    "out of memory",
    "can't allocate memory",  # torch's CPU allocator, a plain RuntimeError
    "cannot allocate memory",
    "alloc_failed",  # CUBLAS_STATUS_ALLOC_FAILED and its likes
)
DEVICE_LOST_TYPES = ("AcceleratorError",)
DEVICE_LOST_PHRASES = (
    "cuda error",
    "hip error",
    "cuda driver error",
    "device-side assert",
    "no cuda gpus are available",
    "no hip gpus are available",
)


class DeviceLost(Exception):
    """The device answers no more; raised where torch has no error of its own for it."""


def failure_of(error: BaseException) -> JobFailure:
    """Code and one line of text. What nobody foresaw is compute_failed, with its type."""
    match error:
        case ComputeError() | ProtocolError():
            return JobFailure(error.code, _first_line(error.text))
        case UserError():
            return JobFailure(error.code, _first_line(str(error)))
        case StoreError():
            return JobFailure("data_missing", _first_line(str(error)))
    names = {kind.__name__ for kind in type(error).__mro__}
    text = str(error).lower() if isinstance(error, RuntimeError) else ""
    if names.intersection(OUT_OF_MEMORY_TYPES) or _has_any(text, OUT_OF_MEMORY_PHRASES):
        code = "out_of_memory"
    elif names.intersection(DEVICE_LOST_TYPES) or _has_any(text, DEVICE_LOST_PHRASES):
        code = "device_lost"
    else:
        code = "device_lost" if isinstance(error, DeviceLost) else "compute_failed"
    described = ": ".join(filter(None, (type(error).__name__, _first_line(str(error)))))
    return JobFailure(code, described)


def found_or_failure(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it found; or `error` and `text`, for which the answer is why it does not work here."""
    try:
        return measure()
    except Exception as error:
        failure = failure_of(error)
        return {"error": failure.code, "text": failure.text}


def _has_any(text: str, phrases: tuple[str, ...]) -> bool:
    return any(phrase in text for phrase in phrases)


def _first_line(text: str) -> str:
    """The first line that says something; the traceback is in the log."""
    for line in text.splitlines():
        if line.strip():
            return line.strip()[:TEXT_CHARS_MAX]
    return ""
