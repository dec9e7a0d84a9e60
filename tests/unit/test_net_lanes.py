"""Outbox and inbox joined by a wire that breaks: each message arrives once, in order, unchanged."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.errors import Backpressure
from swarmd.net.frames import ACK, HEADER, LANES, MESSAGE_COST_BYTES, OPEN, RESUME_LANE, Kind
from swarmd.net.heap_store import HeapStore
from swarmd.net.inbox import Inbox
from swarmd.net.outbox import Outbox
from swarmd.net.transport import FrameArrived
from swarmd.protocols import limits
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId

WINDOW = 4000
PEER = PeerId("p")


class Wire:
    """One direction of a plane, pieces moved one by one. `cut` loses what is on the way."""

    def __init__(self, *, acknowledged: bool = True, store_bytes: int = 1 << 30) -> None:
        self.store = HeapStore(store_bytes)
        self.outbox = Outbox(acknowledged=acknowledged, lane_bytes_max=1 << 20)
        self.outbox.window_bytes = WINDOW
        self.inbox = Inbox(PEER, self.store, acknowledged=acknowledged, window_bytes=WINDOW)
        self.on_the_way: list[list[bytes]] = []
        self.arrived: list[tuple[int, FrameArrived, int]] = []

    def send(self, frame_bytes: int) -> bool:
        piece = self.outbox.next_piece(frame_bytes)
        if piece is None:
            return False
        assert sum(map(len, piece.parts)) <= frame_bytes
        self.on_the_way.append([bytes(part) for part in piece.parts])
        self.outbox.left(piece)
        return True

    def deliver(self) -> bool:
        if not self.on_the_way:
            return False
        data = b"".join(self.on_the_way.pop(0))
        kind, lane, _, length = HEADER.unpack(data[: HEADER.size])
        body = data[HEADER.size :]
        assert len(body) == length
        if kind == Kind.OPEN:
            self.inbox.open(lane, body[: OPEN.size], length - OPEN.size)
            body = body[OPEN.size :]
        for span in self.inbox.spans(lane, len(body)):
            span[:] = body[: len(span)]
            body = body[len(span) :]
        size = self.inbox.size(lane)
        event = self.inbox.filled(lane, length - (OPEN.size if kind == Kind.OPEN else 0))
        if event is not None:
            self.arrived.append((lane, event, size))
        return True

    def take(self, at: int) -> tuple[int, bytes, bytes | None]:
        """The application reads its `at`-th waiting message."""
        lane, event, size = self.arrived.pop(at)
        self.inbox.taken(lane, size)
        payload = None
        if event.payload is not None:
            payload = bytes(self.store.view(event.payload))
            self.store.release(event.payload)
        return lane, event.body, payload

    def acknowledge(self) -> bool:
        acks = [(lane, self.inbox.acknowledgement(lane)) for lane in LANES]
        for lane, ack in acks:
            if ack is not None:
                self.outbox.acknowledge(lane, *ACK.unpack(ack[HEADER.size :]))
        return any(ack is not None for _, ack in acks)

    def cut(self) -> None:
        """The carrier is lost with all that is on it, and another is attached."""
        self.on_the_way.clear()
        resume, *acks = self.inbox.resume()
        for lane in LANES:
            state = RESUME_LANE.unpack_from(resume, HEADER.size + lane * RESUME_LANE.size)
            self.outbox.rewind(lane, *state)
        for lane, ack in enumerate(acks):
            self.outbox.acknowledge(lane, *ACK.unpack(ack[HEADER.size :]))


@given(st.integers(0, 2**32))
def test_whatever_breaks_each_message_arrives_once_in_order_and_whole(seed: int) -> None:
    rng, wire = random.Random(seed), Wire()
    sent: dict[int, list[tuple[bytes, bytes | None]]] = {lane: [] for lane in LANES}
    got: dict[int, list[tuple[bytes, bytes | None]]] = {lane: [] for lane in LANES}
    said: list[bool] = []

    def push() -> None:
        lane = rng.choice(LANES)
        body = rng.randbytes(rng.choice([0, 1, 50, 3000]))
        data = rng.choice([None, b"", rng.randbytes(rng.randrange(1, 9000))])
        wire.outbox.push(lane, body, None if data is None else memoryview(data), said.append)
        sent[lane].append((body, data))

    def take() -> None:
        if wire.arrived:
            lane, body, payload = wire.take(0)
            got[lane].append((body, payload))

    actions = [push, take, lambda: wire.send(rng.choice([100, 700, 5000])), wire.deliver]
    actions += [wire.acknowledge, wire.send, wire.deliver]  # type: ignore[list-item]
    for _ in range(400):
        action = rng.choice(actions)
        if action == wire.send:
            wire.send(2000)
        else:
            action()
        if rng.random() < 0.02:
            wire.cut()
    for _ in range(10_000):
        take()
        if not (wire.send(3000) | wire.deliver() | wire.acknowledge() | bool(wire.arrived)):
            break
    assert got == sent, f"seed {seed}"
    assert said == [True] * sum(map(len, sent.values())), f"seed {seed}"
    assert wire.outbox.is_empty
    assert wire.outbox.queued_bytes == 0
    assert wire.store.held == 0


def test_a_partial_message_goes_on_where_it_stood() -> None:
    wire, data = Wire(), random.Random(1).randbytes(3000)
    wire.outbox.push(2, b"head", memoryview(data), None)
    for _ in range(3):
        wire.send(1000)
    wire.deliver()
    wire.deliver()
    wire.cut()
    piece = wire.outbox.next_piece(10_000)
    assert piece is not None
    assert piece.size < 3004 - 1800
    wire.on_the_way.append([bytes(part) for part in piece.parts])
    wire.deliver()
    assert wire.take(0) == (2, b"head", data)


def test_a_resume_that_means_other_bytes_is_a_broken_rule() -> None:
    wire = Wire()
    wire.outbox.push(0, bytes(500), None, None)
    wire.send(300)
    with pytest.raises(RemoteProtocolError) as refused:
        wire.outbox.rewind(0, 0, 1, 100, b"\x01" * 16)
    assert refused.value.code == "hash_mismatch"


@pytest.mark.parametrize("state", [(5, 0, 0), (0, 1, 400), (0, 2, 10), (1, 1, 10)], ids=str)
def test_a_resume_of_what_was_never_sent_is_a_broken_rule(state: tuple[int, int, int]) -> None:
    wire = Wire()
    wire.outbox.push(0, bytes(500), None, None)
    wire.send(300)
    with pytest.raises(RemoteProtocolError):
        wire.outbox.rewind(0, *state, bytes(16))


@pytest.mark.parametrize(("done", "taken"), [(9, 0), (0, 1 << 40), (1 << 60, 1 << 60)])
def test_an_acknowledgement_of_what_was_never_sent_is_a_broken_rule(done: int, taken: int) -> None:
    wire = Wire()
    wire.outbox.push(0, b"x", None, None)
    wire.send(100)
    with pytest.raises(RemoteProtocolError):
        wire.outbox.acknowledge(0, done, taken)


@pytest.mark.parametrize(
    ("fields", "more", "code"),
    [
        ((2, 10, 0, 0), 0, "malformed"),
        ((1, limits.CONTROL_MESSAGE_BYTES_MAX + 1, 0, 0), 0, "too_large"),
        ((1, (1 << 32) - 1, 0, 0), 0, "too_large"),
        ((1, 0, limits.PAYLOAD_BYTES_MAX + 1, 1), 0, "too_large"),
        ((1, 0, 1 << 63, 1), 0, "too_large"),
        ((1, 0, 10, 0), 0, "malformed"),
        ((1, 10, 0, 0), 11, "malformed"),
    ],
)
def test_an_open_beyond_the_bounds_reserves_nothing(
    fields: tuple[int, int, int, int], more: int, code: str
) -> None:
    wire = Wire()
    with pytest.raises(RemoteProtocolError) as refused:
        wire.inbox.open(0, OPEN.pack(*fields), more)
    assert refused.value.code == code
    assert wire.store.held == 0


def test_a_control_plane_takes_no_payload() -> None:
    wire = Wire(acknowledged=False)
    with pytest.raises(RemoteProtocolError):
        wire.inbox.open(0, OPEN.pack(1, 0, 10, 1), 0)


def test_data_without_open_and_data_beyond_the_end_are_broken_rules() -> None:
    wire = Wire()
    with pytest.raises(RemoteProtocolError):
        wire.inbox.spans(0, 1)
    wire.inbox.open(0, OPEN.pack(1, 10, 0, 0), 0)
    with pytest.raises(RemoteProtocolError):
        wire.inbox.spans(0, 11)
    with pytest.raises(RemoteProtocolError):
        wire.inbox.open(0, OPEN.pack(2, 10, 0, 0), 0)


def test_a_sender_that_ignores_the_window_breaks_a_rule() -> None:
    wire = Wire()
    wire.outbox.window_bytes = 1 << 30
    for _ in range(-(-WINDOW // MESSAGE_COST_BYTES)):
        wire.outbox.push(1, b"", None, None)
        wire.send(1000)
        wire.deliver()
    wire.outbox.push(1, b"", None, None)
    wire.send(1000)
    with pytest.raises(RemoteProtocolError) as refused:
        wire.deliver()
    assert refused.value.code == "rate_exceeded"


def test_the_window_holds_back_new_messages_until_the_reader_took_some() -> None:
    wire = Wire()
    for _ in range(30):
        wire.outbox.push(1, bytes(100), None, None)
    while wire.send(1000):
        wire.deliver()
    waiting = len(wire.arrived)
    assert waiting == -(-WINDOW // (100 + MESSAGE_COST_BYTES))
    while wire.arrived:
        wire.take(0)
    wire.acknowledge()
    assert wire.send(1000)


def test_a_higher_priority_goes_first_even_in_the_middle_of_a_message() -> None:
    wire = Wire()
    wire.outbox.push(3, bytes(3000), None, None)
    wire.send(1000)
    wire.outbox.push(1, b"urgent", None, None)
    wire.send(1000)
    wire.deliver()
    wire.deliver()
    assert wire.take(0) == (1, b"urgent", None)


def test_a_full_lane_refuses_and_leaves_the_others_open() -> None:
    outbox, said = Outbox(acknowledged=True, lane_bytes_max=1000), list[bool]()
    outbox.push(3, bytes(5000), None, said.append)  # one always fits
    with pytest.raises(Backpressure):
        outbox.push(3, b"", None, said.append)
    outbox.push(1, b"", None, said.append)
    outbox.fail_all()
    assert said == [False, False]
    assert outbox.queued_bytes == 0


def test_a_payload_without_room_is_read_and_dropped_also_across_a_cut() -> None:
    wire = Wire(store_bytes=10)
    data = bytes(2000)
    wire.outbox.push(0, b"b", memoryview(data), None)
    wire.send(500)
    wire.deliver()
    wire.cut()
    while wire.send(500):
        wire.deliver()
    assert wire.arrived[0][1] == FrameArrived(PEER, b"b", None, True)


def test_what_half_arrived_is_given_back_at_the_end() -> None:
    wire, data = Wire(), bytes(2000)
    wire.outbox.push(0, b"b", memoryview(data), None)
    wire.send(500)
    wire.deliver()
    assert wire.store.held == 1
    wire.inbox.close()
    assert wire.store.held == 0
