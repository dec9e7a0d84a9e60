"""The trace of a run: lines for people, one hash over everything for machines."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable

from swarmd.protocols import effects as fx
from swarmd.sim.cluster import Cluster
from swarmd.sim.sim_peer import SimPeer

Line = Callable[[str], None]
GATHERED_BYTES_MAX = 32_768
"""That wait to be hashed together."""
_MOMENT = struct.Struct("<4d")
"""When, who, what, and how many effects it had."""


class Trace:
    """One line for each change of state, in fixed columns, and a hash over every event."""

    def __init__(self, cluster: Cluster, line: Line | None) -> None:
        self._world = cluster.world
        self._line = line
        self._hash = hashlib.blake2b(digest_size=16)
        self._gathered = bytearray()
        self._numbers: dict[type[fx.Event], float] = {}
        """Of each kind of event, the same in every process."""
        self.events = 0
        cluster.observe.append(self._event)
        cluster.on_emit.append(self._emit)

    @property
    def digest(self) -> str:
        self._hash_gathered()
        return self._hash.hexdigest()

    def note(self, name: str, text: str) -> None:
        """What no peer did."""
        self._gathered += f"{name} {text}".encode()
        self._show("-", name, text)

    def _show(self, who: str, name: str, text: str) -> None:
        if self._line is not None:
            self._line(f"{self._world.now_s:10.3f}  {who:<5} {name:<18} {text}")

    def _event(self, peer: SimPeer, event: fx.Event, effects: list[fx.Effect]) -> None:
        self.events += 1
        kind = type(event)
        number = self._numbers.get(kind)
        if number is None:
            number = self._numbers[kind] = float(zlib.crc32(kind.__name__.encode()))
        gathered = self._gathered
        gathered += _MOMENT.pack(self._world.now_s, peer.number, number, len(effects))
        if len(gathered) >= GATHERED_BYTES_MAX:
            self._hash_gathered()

    def _hash_gathered(self) -> None:
        self._hash.update(self._gathered)
        self._gathered.clear()

    def _emit(self, peer: SimPeer, emit: fx.Emit) -> None:
        self._gathered += f"{peer.number} {emit.name} {emit.fields}".encode()
        if self._line is not None:
            values = " ".join(f"{name}={_brief(value)}" for name, value in emit.fields.items())
            self._show(peer.name, emit.name, values)


def _brief(value: object) -> str:
    text = str(value)
    return f"·{text[-4:]}" if text.startswith("12D3KooW") else text
