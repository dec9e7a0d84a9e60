"""Ports that nobody answers at: for who must listen where it did before, and for who must fail."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from swarmd.net.addresses import ip_address

FIRST, LAST = 12_000, 32_000
"""Below the ports that Linux gives to those who ask for any: what is free here stays free."""
_next = count(os.getpid() * 64)
"""Test processes side by side begin apart."""


def free_ports(count: int) -> list[int]:
    """Each with the next one free, where tensors go."""
    found: list[int] = []
    while len(found) < count:
        port = FIRST + 2 * next(_next) % (LAST - FIRST)
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            found.append(port)
    return found


@contextmanager
def dead_address(host: str = "127.0.0.1") -> Iterator[str]:
    """Refuses who dials it. It is held meanwhile: no one who asks for any port is given it."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as held:
        held.bind((host, 0))
        yield str(ip_address(host, held.getsockname()[1]))
