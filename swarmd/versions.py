"""Where this build runs. What it speaks with other peers stands in protocols/greeting.py."""

from __future__ import annotations

import platform
import sys

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
