"""An in-memory twin of the real transport: several peers in one process, on virtual time.

    network = MemoryNetwork(latency_s=0.02, bandwidth_bytes_per_s=12.5e6)
    a = network.transport(PeerId("a"), store_a)
    ...
    async with trio.open_nursery() as nursery:
        await nursery.start(a.run); await nursery.start(b.run)
        a.dial(b.peer_id, b.addresses())

Only the underlay is made of memory. Links, lanes, credits, heartbeats, resumption are the real
code, so what works here fails on a real network for a network's reasons only. With trio's
MockClock(autojump_threshold=0) an hour of it passes as fast as the events in it.

Faults, all between named peers: `cut` (silence; both ways or one), `heal`, `break_links` and
`break_bulk` (reset), `block_bulk` (no dedicated bulk connection), `freeze`/`thaw` (a stopped
process), `stop` (a killed one). Nothing is random, except in which order trio runs the tasks of one
instant.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import trio

from swarmd.net.frames import Hello
from swarmd.net.link import LinkLimits
from swarmd.net.link_transport import LinkTransport
from swarmd.net.memory_pipe import MemoryCarrier, Pipe
from swarmd.net.pump import Wakeup
from swarmd.net.transport import Answer, CapHeld, PayloadStore
from swarmd.net.underlay import (
    Acceptor,
    Carrier,
    CarrierEnded,
    Channel,
    DialFailed,
    Tally,
)
from swarmd.protocols.ids import PeerId


class MemoryNetwork:
    """The wires between peers of one process."""

    def __init__(
        self,
        *,
        latency_s: float = 0.0,
        bandwidth_bytes_per_s: float = float("inf"),
        limits: LinkLimits | None = None,
        seed: int = 0,
    ) -> None:
        self._latency_s = latency_s
        self._bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self._limits = limits or LinkLimits()
        self._rng = random.Random(seed)
        self._paths: dict[tuple[PeerId, PeerId], tuple[float, float]] = {}
        self._silent: set[tuple[PeerId, PeerId]] = set()
        self._no_bulk: set[tuple[PeerId, PeerId]] = set()
        self._frozen: set[PeerId] = set()
        self._underlays: dict[PeerId, MemoryUnderlay] = {}
        self._pipes: dict[Pipe, None] = {}
        self.changed = Wakeup()

    def transport(
        self, peer: PeerId, store: PayloadStore, *, limits: LinkLimits | None = None
    ) -> LinkTransport:
        """A peer on this network. Calling it again for the same peer is a restart."""
        underlay = MemoryUnderlay(self, peer)
        rng = random.Random(self._rng.getrandbits(64))
        return LinkTransport(underlay, store, limits=limits or self._limits, rng=rng)

    # --------------------------------------------------------------------------------------- faults

    def set_path(
        self,
        a: PeerId,
        b: PeerId,
        *,
        latency_s: float,
        bandwidth_bytes_per_s: float = float("inf"),
        both_ways: bool = True,
    ) -> None:
        """From now on, for what is sent from now on."""
        self._paths[a, b] = (latency_s, bandwidth_bytes_per_s)
        if both_ways:
            self._paths[b, a] = (latency_s, bandwidth_bytes_per_s)

    def cut(self, a: PeerId, b: PeerId, *, both_ways: bool = True) -> None:
        """Lose silently what goes from `a` to `b`. Nobody is told."""
        self._silent.add((a, b))
        if both_ways:
            self._silent.add((b, a))
        self._tell_all()

    def heal(self, a: PeerId, b: PeerId) -> None:
        """Undo `cut`. What was under way comes through, as repeated by TCP."""
        self._silent -= {(a, b), (b, a)}
        self._tell_all()

    def block_bulk(self, a: PeerId, b: PeerId, *, both_ways: bool = True) -> None:
        """`a` cannot open dedicated bulk connections to `b` any more; standing ones are reset."""
        self._no_bulk.add((a, b))
        if both_ways:
            self._no_bulk.add((b, a))
        self.break_bulk(a, b)

    def unblock_bulk(self, a: PeerId, b: PeerId) -> None:
        self._no_bulk -= {(a, b), (b, a)}

    def break_bulk(self, a: PeerId, b: PeerId) -> None:
        """Reset the dedicated bulk connections between the two; the links stay."""
        self._reset(lambda pipe: pipe.is_bulk and {pipe.source, pipe.target} == {a, b})

    def break_links(self, a: PeerId, b: PeerId) -> None:
        """Reset every connection between the two; both notice at once."""
        self._reset(lambda pipe: {pipe.source, pipe.target} == {a, b})

    def freeze(self, peer: PeerId) -> None:
        """The peer's process is stopped: it neither sends nor reads, its sockets stay open."""
        self._frozen.add(peer)
        self._tell_all()

    def thaw(self, peer: PeerId) -> None:
        self._frozen.discard(peer)
        self._tell_all()

    def stop(self, peer: PeerId) -> None:
        """The peer's process is gone: nobody listens, its connections are reset."""
        self._underlays.pop(peer, None)
        self._reset(lambda pipe: peer in (pipe.source, pipe.target))

    def _tell_all(self) -> None:
        self.changed.set()
        for pipe in self._pipes:
            pipe.news.set()

    def _reset(self, which: Any) -> None:
        for pipe in [pipe for pipe in self._pipes if which(pipe)]:
            pipe.end()

    # ----------------------------------------------------------------------------- for the underlay

    def register(self, underlay: MemoryUnderlay) -> None:
        self._underlays[underlay.peer_id] = underlay

    def unregister(self, underlay: MemoryUnderlay) -> None:
        if self._underlays.get(underlay.peer_id) is underlay:
            del self._underlays[underlay.peer_id]
            self.stop(underlay.peer_id)

    def at(self, address: str) -> MemoryUnderlay | None:
        return self._underlays.get(PeerId(address.rpartition("/")[2]))

    def bulk_is_blocked(self, a: PeerId, b: PeerId) -> bool:
        return (a, b) in self._no_bulk

    def is_silent(self, source: PeerId, target: PeerId) -> bool:
        return (source, target) in self._silent or bool({source, target} & self._frozen)

    def path(self, source: PeerId, target: PeerId) -> tuple[float, float]:
        return self._paths.get((source, target), (self._latency_s, self._bandwidth_bytes_per_s))

    def connect(
        self, a: PeerId, b: PeerId, *, is_bulk: bool
    ) -> tuple[MemoryCarrier, MemoryCarrier]:
        there, back = Pipe(self, a, b, is_bulk), Pipe(self, b, a, is_bulk)
        self._pipes |= {there: None, back: None}
        near = MemoryCarrier(there, back, self._wire(a))
        return near, MemoryCarrier(back, there, self._wire(b))

    def _wire(self, peer: PeerId) -> Tally:
        underlay = self._underlays.get(peer)
        return underlay.wire if underlay is not None else Tally()

    def forget(self, pipe: Pipe) -> None:
        self._pipes.pop(pipe, None)


class MemoryChannel:
    """A connection with its control carrier."""

    path = "direct"

    def __init__(
        self, network: MemoryNetwork, ours: PeerId, peer: PeerId, carrier: Carrier
    ) -> None:
        self.peer = peer
        self.carrier = carrier
        self.remote = self.local = ""
        self._network, self._ours = network, ours
        self._streams: list[Carrier] = []

    async def open_bulk(self) -> Carrier:
        other = self._network.at(self.peer)
        if other is None:
            raise CarrierEnded("lost")
        near, far = self._network.connect(self._ours, self.peer, is_bulk=False)
        near.kind = far.kind = "stream"
        self._streams.append(near)
        other.accept_bulk(self._ours, far)
        return near

    def close_now(self) -> None:
        self.carrier.close_now()
        for stream in self._streams:
            stream.close_now()


class MemoryUnderlay:
    """See underlay.Underlay."""

    def __init__(self, network: MemoryNetwork, peer: PeerId) -> None:
        self.peer_id = peer
        self.wire = Tally()
        self._network = network
        self._acceptor: Acceptor | None = None
        self._nursery: trio.Nursery | None = None

    def addresses(self) -> Sequence[str]:
        return [f"/memory/{self.peer_id}"]

    def bulk_addresses(self) -> Sequence[str]:
        return [f"/memory-bulk/{self.peer_id}"]

    @property
    def certificate(self) -> bytes:
        return b""

    def link_opened(self, channel: Channel, hello: Hello) -> None: ...

    def link_ended(self, peer: PeerId) -> None: ...

    def held(self) -> list[CapHeld]:
        """None is set: bandwidth is the network's."""
        return []

    def count(self) -> dict[str, int]:
        return {}

    async def run(self, acceptor: Acceptor, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._acceptor, self._nursery = acceptor, nursery
            self._network.register(self)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._network.unregister(self)

    async def dial(self, peer: PeerId, address: str) -> Channel:
        other = await self._reach(peer, address)
        near, far = self._network.connect(self.peer_id, peer, is_bulk=False)
        other.accept_control(MemoryChannel(self._network, peer, self.peer_id, far))
        return MemoryChannel(self._network, self.peer_id, peer, near)

    def reachable(self, address: str) -> Answer:
        """Nobody is asked."""
        return "unknown"

    def relay_addresses(self, neighbours: Sequence[PeerId]) -> Sequence[str]:
        """None: its peers are cut off from each other on purpose."""
        return ()

    async def dial_bulk(self, peer: PeerId, address: str) -> Carrier:
        if self._network.bulk_is_blocked(self.peer_id, peer):
            raise DialFailed("refused")
        other = await self._reach(peer, address)
        near, far = self._network.connect(self.peer_id, peer, is_bulk=True)
        other.accept_bulk(self.peer_id, far)
        return near

    async def _reach(self, peer: PeerId, address: str) -> MemoryUnderlay:
        """One round trip to whoever is at `address`."""
        target = PeerId(address.rpartition("/")[2])
        latency_s, _ = self._network.path(self.peer_id, target)
        await trio.sleep(2 * latency_s)
        while self._network.is_silent(self.peer_id, target) or self._network.is_silent(
            target, self.peer_id
        ):
            await self._network.changed.wait()
        other = self._network.at(address)
        if other is None:
            raise DialFailed("refused")
        if other.peer_id != peer:
            raise DialFailed("wrong_peer_id", f"found {other.peer_id}")
        return other

    def accept_control(self, channel: Channel) -> None:
        if self._nursery is not None and self._acceptor is not None:
            self._nursery.start_soon(self._acceptor.control_opened, channel)

    def accept_bulk(self, peer: PeerId, carrier: Carrier) -> None:
        if self._nursery is not None and self._acceptor is not None:
            self._nursery.start_soon(self._acceptor.bulk_opened, peer, carrier)
