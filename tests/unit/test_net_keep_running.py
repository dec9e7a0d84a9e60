"""A library task that raises costs the links and not the peer; one that always raises is told."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from transport_contract import loopback_pair

from swarmd.net.keep_running import FAILURES_MAX, WINDOW_S, keep_running
from swarmd.net.swarm_transport import SwarmTransport
from swarmd.net.transport import LinkEnded
from swarmd.protocols.effects import Priority


async def test_proc_06_a_library_task_that_raises_costs_the_links_and_not_the_peer() -> None:
    async with loopback_pair() as pair:
        await pair.link()
        host, where = pair.a.transport._underlay.host, pair.a.transport.addresses()  # type: ignore[attr-defined]

        async def fail() -> None:
            raise RuntimeError("a task of the library")

        restarted: list[str] = []
        assert isinstance(pair.a.transport, SwarmTransport)
        pair.a.transport.when_restarted(restarted.append)
        host._nursery.start_soon(fail)
        assert await pair.a.next() == LinkEnded(pair.b.peer_id, "lost")
        assert await pair.b.next() == LinkEnded(pair.a.peer_id, "lost")
        # At the same address, with the same id; whoever dials meanwhile waits in the backlog.
        assert pair.a.transport.addresses() == where
        pair.b.transport.dial(pair.a.peer_id, where)
        assert [type(await side.next()).__name__ for side in (pair.a, pair.b)] == ["LinkOpened"] * 2
        pair.b.send_payload(pair.a, b"t", b"data", Priority.PIPELINE)
        assert await pair.a.take() == b"data"
        assert pair.a.transport.counters()["host_restarted"] == 1
        assert restarted == ["host"]


async def always_fails(start: Any) -> None:
    start.started()
    await trio.sleep(1)
    raise RuntimeError("always")


async def test_a_service_that_fails_again_and_again_is_an_error(autojump_clock: object) -> None:
    counts: Counter[str] = Counter()
    with pytest.raises(RuntimeError, match="always"):
        await keep_running("thing", always_fails, counts)
    assert counts["thing_restarted"] == FAILURES_MAX


async def test_one_that_fails_now_and_then_goes_on(autojump_clock: object) -> None:
    counts: Counter[str] = Counter()

    async def fails_rarely(start: Any) -> None:
        start.started()
        await trio.sleep(WINDOW_S / 2)
        raise RuntimeError("rarely")

    with trio.move_on_after(20 * WINDOW_S) as scope:
        await keep_running("thing", fails_rarely, counts)
    assert scope.cancelled_caught
    assert counts["thing_restarted"] > 3 * FAILURES_MAX


async def test_what_cannot_even_start_is_an_error_at_once(autojump_clock: object) -> None:
    counts: Counter[str] = Counter()

    async def fails_at_once(start: Any) -> None:
        raise OSError("port taken")

    with pytest.raises(OSError, match="port taken"):
        await keep_running("thing", fails_at_once, counts)
    assert counts == {}
