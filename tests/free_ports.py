"""Ports that nobody uses now, for those who must be dialled where they were before."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Each with the next one free, where tensors go."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            found.append(port)
    return found
