"""Neighbours say whether they can dial us; nobody can make them knock at other doors."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import blake2b
from itertools import count
from typing import Any

import msgpack
import pytest
import trio
from free_ports import dead_address
from transport_contract import PATIENT, Pair, running_pair

from swarmd.net import swarm_transport
from swarmd.net.dial_back import LENGTH, RECHECK_S, DialBackServer, Reachability
from swarmd.net.heap_store import HeapStore
from swarmd.net.swarm_transport import SwarmTransport
from swarmd.net.underlay import CarrierEnded, DialFailed
from swarmd.protocols.ids import PeerId

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


@asynccontextmanager
async def asking_pair(**first: Any) -> AsyncIterator[Pair]:
    """Both ask each other at once; `first` are options of the first one."""
    numbers = count()

    def make(store: HeapStore) -> SwarmTransport:
        number = next(numbers)
        return SwarmTransport(
            blake2b(b"dial back %d" % number, digest_size=32).digest(),
            ["/ip4/127.0.0.1/tcp/0"],
            store,
            asks_back=True,
            limits=PATIENT,
            **(first if number == 0 else {}),
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swarm_transport, "ASK_EVERY_S", 0.1)
        async with running_pair(make) as pair:
            yield pair


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.02)


def of(pair: Pair, address: str) -> str:
    return pair.a.transport.reachable(address)


async def test_both_planes_of_a_peer_that_can_be_dialled_are_reachable() -> None:
    async with asking_pair() as pair:
        control, bulk = pair.a.transport.addresses()[0], pair.a.transport.bulk_addresses()[0]
        assert of(pair, control) == of(pair, bulk) == "unknown"
        await pair.link()
        await until(lambda: of(pair, control) == of(pair, bulk) == "yes")
        pair.a.send(pair.b, b"the link is not touched")
        assert (await pair.b.arrival()).body == b"the link is not touched"


async def test_boot_06_an_announced_address_where_nobody_is_is_not_reachable() -> None:
    with dead_address() as dead:
        async with asking_pair(announce=[dead]) as pair:
            # The other side cannot dial us, so we dial it.
            await pair.link()
            await until(lambda: of(pair, dead) == "no")


async def test_an_address_elsewhere_is_not_knocked_at_and_stays_unknown() -> None:
    async with asking_pair(announce=["/ip4/203.0.113.7/tcp/4710"]) as pair:
        await pair.link()
        bulk = pair.a.transport.bulk_addresses()[0]
        await until(lambda: of(pair, bulk) == "yes")
        assert of(pair, "/ip4/203.0.113.7/tcp/4710") == "unknown"


async def test_any_success_outweighs_failures_and_old_answers_fade(autojump_clock: object) -> None:
    reach = Reachability()
    reach.note(A, {"x": "timeout"})
    assert (reach.of("x"), reach.of("y")) == ("no", "unknown")
    reach.note(B, {"x": ""})
    assert reach.of("x") == "yes"
    await trio.sleep(3 * RECHECK_S)
    assert reach.of("x") == "unknown"


async def test_few_neighbours_are_asked_and_others_the_next_time(autojump_clock: object) -> None:
    await trio.sleep(1)
    reach = Reachability()
    assert reach.choose([A, B, C]) == [A, B]
    assert reach.choose([A, B, C]) == []
    await trio.sleep(RECHECK_S)
    assert reach.choose([A, B, C]) == [C, A]


class Question:
    """A carrier that asks once and keeps the answer."""

    def __init__(self, asked: object) -> None:
        body = msgpack.packb(asked)
        self._left = LENGTH.pack(len(body)) + body
        self.answer: Any = None

    async def receive_into(self, view: memoryview) -> None:
        if len(self._left) < len(view):
            raise CarrierEnded("lost")
        view[:], self._left = self._left[: len(view)], self._left[len(view) :]

    async def send(self, parts: list[bytes]) -> None:
        self.answer = msgpack.unpackb(parts[1])

    def close_now(self) -> None: ...


@pytest.mark.parametrize(
    "asked",
    [
        [],
        {"control": ["/ip4/127.0.0.1/tcp/1"] * 17, "bulk": []},
        {"control": ["nonsense"], "bulk": []},
        {"control": [7], "bulk": []},
        {"control": []},
        {"control": ["/ip4/127.0.0.1/tcp/1" + "0" * 300], "bulk": []},
    ],
)
async def test_a_bad_question_is_counted_and_dials_nothing(asked: object) -> None:
    counts: Counter[str] = Counter()

    async def dial(peer: PeerId, plane: str, address: str) -> None:
        raise AssertionError("dialled")

    question = Question(asked)
    await DialBackServer(counts, dial).serve(A, "127.0.0.1", question)  # type: ignore[arg-type]
    assert counts == {"dial_back_malformed": 1}
    assert question.answer is None


async def test_a_peer_that_asks_too_often_is_refused(autojump_clock: object) -> None:
    counts: Counter[str] = Counter()

    async def dial(peer: PeerId, plane: str, address: str) -> None:
        raise DialFailed("refused")

    server = DialBackServer(counts, dial)
    asked = {"control": ["/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.2/tcp/1"], "bulk": []}
    first, second = Question(asked), Question(asked)
    await server.serve(A, "127.0.0.1", first)  # type: ignore[arg-type]
    await server.serve(A, "127.0.0.1", second)  # type: ignore[arg-type]
    assert first.answer == {"/ip4/127.0.0.1/tcp/1": "refused"}
    assert (second.answer, counts) == (None, {"dial_back_rate_exceeded": 1})
