"""What this build speaks and where it runs."""

from __future__ import annotations

import platform
import sys

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
"""Versions of the protocol between peers; see protocols/README.md."""

PYTHON_MIN = (3, 11)


def platform_text() -> str:
    return f"{platform.system()} {platform.machine()}"


def is_supported() -> bool:
    """Linux and macOS on 64 bits, with a Python that is new enough. WSL2 is a Linux."""
    return (
        platform.system() in ("Linux", "Darwin")
        and sys.maxsize > 1 << 32
        and sys.version_info >= PYTHON_MIN
    )
