"""A payload store for a transport that listens before anybody knows how large payloads are.

Until it is filled there is no slot: a payload that arrives is refused, and its sender asks again.
"""

from __future__ import annotations

from swarmd.net.transport import PayloadStore
from swarmd.protocols.jobs import BufferRef


class LateStore:
    """A PayloadStore; see transport.py."""

    def __init__(self) -> None:
        self._store: PayloadStore | None = None

    def fill(self, store: PayloadStore) -> None:
        self._store = store

    def acquire(self, size_bytes: int) -> BufferRef | None:
        return None if self._store is None else self._store.acquire(size_bytes)

    def view(self, ref: BufferRef) -> memoryview:
        return self._filled.view(ref)

    def retain(self, ref: BufferRef) -> None:
        self._filled.retain(ref)

    def release(self, ref: BufferRef) -> None:
        self._filled.release(ref)

    @property
    def _filled(self) -> PayloadStore:
        assert self._store is not None, "no slot was ever handed out"
        return self._store
