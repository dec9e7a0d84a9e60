"""`Transport` over any underlay: who is linked to whom, and what happened next.

When two peers dial each other at once, the control stream that
the smaller peer id opened stays and the other is turned away; a peer that comes again although we
think it is here has lost us and wins, unless both happened in the same moment.

Everything a peer does wrong ends in a counter with a stable name and, at worst, in its link.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import trio

from swarmd.errors import LinkClosed, LocalProtocolError
from swarmd.net.dialling import DialRace
from swarmd.net.frames import NO_SHAPE, NONCE_BYTES, Hello, goodbye
from swarmd.net.handshake import hear_hello, say_hello
from swarmd.net.link import Link, LinkLimits
from swarmd.net.past_links import Denied, PastLinks
from swarmd.net.pump import Plane, Wakeup
from swarmd.net.transport import (
    Answer,
    CapHeld,
    DialEnded,
    FrameArrived,
    LinkEnded,
    LinkOpened,
    LinkStatistics,
    PayloadStore,
    TransportEvent,
)
from swarmd.net.underlay import Carrier, CarrierEnded, Channel, Underlay
from swarmd.protocols import limits as bounds
from swarmd.protocols.effects import Priority
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId, short_id
from swarmd.protocols.jobs import BufferRef
from swarmd.units import LinkShape

log = logging.getLogger("swarmd.net")

RACE_S = 2.0
"""Two control streams this close together come from a simultaneous dial."""
GOODBYE_ALL_S = 1.0
RELAYS_TRIED_MAX = 4


class LinkTransport:
    """See transport.Transport. `underlay` brings the bytes, `store` the room for payloads."""

    def __init__(
        self,
        underlay: Underlay,
        store: PayloadStore,
        *,
        limits: LinkLimits | None = None,
        shape: LinkShape | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._underlay = underlay
        self._store = store
        self._limits = limits or LinkLimits()
        self._shape = shape
        self._nonce = (rng or random.SystemRandom()).randbytes(NONCE_BYTES)
        self._links: dict[PeerId, Link] = {}
        self._past = PastLinks()
        self._dials: dict[PeerId, DialRace] = {}
        self._welcoming: set[PeerId] = set()
        """Their HELLO was heard and accepted, ours is not out yet."""
        self._denied = Denied()
        self._events: deque[tuple[TransportEvent, Plane | None, int, int]] = deque()
        self._event_came = Wakeup()
        self._counts: Counter[str] = Counter()
        self._nursery: trio.Nursery | None = None
        self._closing = False

    # ---------------------------------------------------------------------------------- the public

    @property
    def peer_id(self) -> PeerId:
        return self._underlay.peer_id

    def addresses(self) -> Sequence[str]:
        return self._underlay.addresses()

    def bulk_addresses(self) -> Sequence[str]:
        return self._underlay.bulk_addresses()

    def reachable(self, address: str) -> Answer:
        return self._underlay.reachable(address)

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(_serve, self._underlay, self)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._closing = True
            self._nursery = None
            for link in self._links.values():
                link.drop("dropped", "the transport was stopped")
            self._forget_events()

    async def next_event(self) -> TransportEvent:
        while not self._events:
            await self._event_came.wait()
        event, plane, lane, size = self._events.popleft()
        if plane is not None:
            plane.taken(lane, size)
        return event

    def dial(self, peer: PeerId, addresses: Sequence[str]) -> None:
        if peer in self._links or peer in self._dials or self._nursery is None:
            return
        if peer == self.peer_id:
            self._tell(DialEnded(peer, dict.fromkeys(addresses, "error")))
        elif peer in self._denied:
            self._tell(DialEnded(peer, dict.fromkeys(addresses, "refused")))
        else:
            self._dials[peer] = DialRace(
                self._underlay, peer, self._limits, self._greet, self._count_violation
            )
            self._nursery.start_soon(self._dial, peer, tuple(dict.fromkeys(addresses)))

    def tell_bulk_addresses(self, peer: PeerId, addresses: Sequence[str]) -> None:
        link = self._links.get(peer)
        if link is not None:
            link.ways.addresses = tuple(dict.fromkeys((*link.ways.addresses, *addresses)))

    def send(
        self,
        peer: PeerId,
        body: bytes,
        *,
        priority: Priority = Priority.CONTROL,
        payload: BufferRef | None = None,
        on_sent: Callable[[bool], None] | None = None,
    ) -> None:
        link = self._links.get(peer)
        if link is None:
            raise LinkClosed("no_link", f"no link to {short_id(peer)}")
        if len(body) > bounds.CONTROL_MESSAGE_BYTES_MAX:
            raise LocalProtocolError("too_large", f"message of {len(body)} bytes")
        if payload is None:
            link.control.push(priority, body, None, on_sent)
            return
        if payload.size_bytes > bounds.PAYLOAD_BYTES_MAX:
            raise LocalProtocolError("too_large", f"payload of {payload.size_bytes} bytes")
        view = self._store.view(payload)[: payload.size_bytes]
        link.bulk.push(priority, body, view, on_sent)

    def drop(self, peer: PeerId, reason: str, *, deny_s: float = 0.0) -> None:
        if deny_s > 0:
            self._denied.add(peer, deny_s)
        dial = self._dials.get(peer)
        if dial is not None:
            dial.scope.cancel()
        link = self._links.get(peer)
        if link is not None:
            log.info("link_dropped peer=%s reason=%s", short_id(peer), reason)
            link.drop("dropped", reason)

    def statistics(self) -> list[LinkStatistics]:
        found = self._past.lately(self._limits.remember_s)
        found |= {peer: self._past.counted_on(link) for peer, link in self._links.items()}
        return [found[peer] for peer in sorted(found)]

    def sights(self) -> dict[PeerId, tuple[str, str]]:
        """For each neighbour our end of the connection, and where it sees that: `IP:PORT`, as it
        says."""
        return {p: (x.channel.local, x.hello.observed) for p, x in sorted(self._links.items())}

    def totals(self) -> tuple[int, int]:
        """Bytes sent and received at all sockets since the start, strangers' included."""
        wire = self._underlay.wire
        return wire.sent, wire.received

    def sent_by_purpose(self) -> dict[str, int]:
        live = (link.sent_by_purpose() for link in self._links.values())
        return dict(sum(live, self._past.sent_by_purpose))

    def caps(self) -> list[CapHeld]:
        return self._underlay.held()

    def counters(self) -> dict[str, int]:
        floods = sum(link.control.floods for link in self._links.values())
        counts = self._counts + Counter(self._underlay.count()) + Counter(control_flood=floods)
        return dict(sorted(counts.items()))

    async def aclose(self) -> None:
        self._closing = True
        for dial in self._dials.values():
            dial.scope.cancel()
        links = list(self._links.values())
        for link in links:
            link.part("closing")
        with trio.move_on_after(GOODBYE_ALL_S):
            for link in links:
                await link.gone.wait()
        for link in links:
            link.drop("dropped", "the transport was closed")
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    # ------------------------------------------------------------------------------------- dialling

    async def _dial(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """Ends with a link, with DialEnded, or silently when the peer's own dial was faster."""
        race = self._dials[peer]
        won = None
        try:
            won = await race.run(addresses, self._detours)
            if won is not None and self._adopt(*won, opened_by_us=True) is None:
                won[0].close_now()
        finally:
            del self._dials[peer]
        if won is None and peer not in self._links and not race.yielded and not self._closing:
            self._tell(DialEnded(peer, {a: race.causes.get(a, "error") for a in addresses}))

    def _detours(self) -> Sequence[str]:
        """To a peer that cannot be dialled: the nearest neighbours may know it."""
        near = [link for link in self._links.values() if link.channel.path == "direct"]
        near.sort(key=lambda link: (link.rtt_s or 0.0, link.peer))
        return self._underlay.relay_addresses([link.peer for link in near[:RELAYS_TRIED_MAX]])

    async def _greet(self, channel: Channel) -> Hello:
        await say_hello(channel.carrier, self._hello(channel))
        return await hear_hello(channel.carrier, "control", self._limits.hello_s)

    def _hello(self, channel: Channel) -> Hello:
        return Hello(
            plane="control",
            nonce=self._nonce,
            window_bytes=self._limits.control_window_bytes,
            bulk=tuple(self._underlay.bulk_addresses()),
            certificate=self._underlay.certificate,
            observed=channel.remote,
            shape=tuple(self._shape) if self._shape is not None else NO_SHAPE,
        )

    # ------------------------------------------------------------------------------------ accepting

    async def control_opened(self, channel: Channel) -> None:
        """A peer opened a control carrier. Returns when it is of no more use."""
        peer, carrier = channel.peer, channel.carrier
        try:
            hello = await hear_hello(carrier, "control", self._limits.hello_s)
            refusal = self._refusal(peer, hello)
            if refusal:
                self._counts[refusal] += 1
                await self._turn_away(channel, refusal)
                return
            self._welcoming.add(peer)
            try:
                await self._make_room(peer)
                await say_hello(carrier, self._hello(channel))
                link = self._adopt(channel, hello, opened_by_us=False)
            finally:
                self._welcoming.discard(peer)
            if link is not None:
                await link.gone.wait()
        except CarrierEnded as ended:
            self._counts[f"hello_{ended.cause}"] += 1
        except RemoteProtocolError as error:
            self._count_violation(peer, error)
        finally:
            channel.close_now()

    async def _make_room(self, peer: PeerId) -> None:
        """The peer's control carrier stays: end our own dial to it, and the link it has lost."""
        dial, old = self._dials.get(peer), self._links.get(peer)
        if dial is not None:
            dial.yielded = True
            dial.scope.cancel()
        if old is not None:
            old.drop("lost", "the peer came again")
            await old.gone.wait()

    async def bulk_opened(self, peer: PeerId, carrier: Carrier) -> None:
        """A peer opened a bulk carrier."""
        link = self._links.get(peer)
        try:
            if link is None or peer in self._denied:
                self._counts["bulk_without_link"] += 1
                return
            hello = await hear_hello(carrier, "bulk", self._limits.hello_s)
            if hello.nonce != link.hello.nonce or hello.yours != self._nonce:
                self._counts["bulk_of_other_start"] += 1
                return
            await say_hello(carrier, link.ways.hello)
            await link.ways.adopt(carrier, hello)
        except CarrierEnded as ended:
            self._counts[f"bulk_hello_{ended.cause}"] += 1
        except RemoteProtocolError as error:
            self._count_violation(peer, error)
        finally:
            carrier.close_now()

    def _refusal(self, peer: PeerId, hello: Hello) -> str:
        """Why a control carrier is turned away; empty if it is not."""
        if self._closing:
            return "closing"
        if peer in self._denied:
            return "denied"
        dial, old = self._dials.get(peer), self._links.get(peer)
        if dial is not None and dial.greeting and self.peer_id < peer:
            return "duplicate"
        if old is not None:
            young = trio.current_time() - old.opened_s < RACE_S
            if (
                young
                and old.opened_by_us
                and self.peer_id < peer
                and old.hello.nonce == hello.nonce
            ):
                return "duplicate"
        elif peer in self._welcoming:
            return "duplicate"
        elif len(self._links) + len(self._welcoming) >= self._limits.links_max:
            return "full"
        return ""

    async def _turn_away(self, channel: Channel, reason: str) -> None:
        with trio.move_on_after(1.0):
            await channel.carrier.send([goodbye(reason)])
            # Until the far side has read it and closed: closing first could destroy it.
            try:
                await channel.carrier.receive_into(memoryview(bytearray(1)))
            except CarrierEnded:
                return

    # --------------------------------------------------------------------------------------- links

    def _adopt(self, channel: Channel, hello: Hello, *, opened_by_us: bool) -> Link | None:
        if self._nursery is None or self._closing or channel.peer in self._links:
            return None
        link = Link(
            channel,
            hello,
            self._nonce,
            self._underlay,
            self._store,
            self._deliver,
            self._limits,
            opened_by_us=opened_by_us,
        )
        self._links[link.peer] = link
        self._underlay.link_opened(channel, hello)
        self._tell(LinkOpened(link.peer))
        self._nursery.start_soon(self._run_link, link)
        return link

    async def _run_link(self, link: Link) -> None:
        cause = "lost"
        try:
            cause = await link.run()
        except RemoteProtocolError as error:
            self._count_violation(link.peer, error)
            cause = "dropped"
        finally:
            del self._links[link.peer]
            self._underlay.link_ended(link.peer)
            self._past.remember(link)
            self._counts["control_flood"] += link.control.floods
            link.gone.set()
            if not self._closing or self._nursery is not None:
                self._tell(LinkEnded(link.peer, cause))

    def _deliver(self, event: FrameArrived, plane: Plane, lane: int, size: int) -> None:
        self._events.append((event, plane, lane, size))
        self._event_came.set()

    def _tell(self, event: TransportEvent) -> None:
        self._events.append((event, None, 0, 0))
        self._event_came.set()

    def _forget_events(self) -> None:
        """Nobody will read them: give the slots back."""
        for event, _, _, _ in self._events:
            if isinstance(event, FrameArrived) and event.payload is not None:
                self._store.release(event.payload)
        self._events.clear()

    def _count_violation(self, peer: PeerId, error: RemoteProtocolError) -> None:
        self._counts[error.code] += 1
        log.info("peer_broke_a_rule peer=%s error=%s", short_id(peer), error)


async def _serve(
    underlay: Underlay, acceptor: LinkTransport, *, task_status: Any = trio.TASK_STATUS_IGNORED
) -> None:
    await underlay.run(acceptor, task_status=task_status)
