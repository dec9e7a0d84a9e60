"""The trace of a run: lines for people, one hash over everything for machines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from swarmd.protocols import effects as fx
from swarmd.sim.cluster import Cluster, SimPeer

Line = Callable[[str], None]


class Trace:
    """One line for each change of state, in fixed columns, and a hash over every event."""

    def __init__(self, cluster: Cluster, line: Line | None) -> None:
        self._cluster = cluster
        self._line = line
        self._hash = hashlib.blake2b(digest_size=16)
        self.events = 0
        cluster.observe.append(self._event)
        cluster.on_emit.append(self._emit)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def note(self, text: str) -> None:
        self._hash.update(text.encode())
        if self._line is not None:
            self._line(text)

    def _event(self, peer: SimPeer, event: fx.Event, effects: list[fx.Effect]) -> None:
        self.events += 1
        now_s = self._cluster.world.now_s
        self._hash.update(f"{now_s!r}{peer.number}{type(event).__name__}{len(effects)}".encode())

    def _emit(self, peer: SimPeer, emit: fx.Emit) -> None:
        values = " ".join(f"{name}={_brief(value)}" for name, value in emit.fields.items())
        self.note(f"{self._cluster.world.now_s:10.3f}  {peer.name:<5} {emit.name:<18} {values}")


def _brief(value: object) -> str:
    text = str(value)
    return f"·{text[-4:]}" if text.startswith("12D3KooW") else text
