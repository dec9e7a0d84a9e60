"""The simulated network keeps the promises of swarmd/net/transport.py, and breaks only the rest."""

from __future__ import annotations

from typing import Any

import pytest

from swarmd.sim.clock import World
from swarmd.sim.network import Network, NetworkProfile

PROFILE = NetworkProfile(
    delay_s=0.05, jitter=0.5, bandwidth_bytes_per_s=1e6, dial_timeout_s=3.0, stall_s=8.0
)


class Wire:
    """A network of numbered peers and what it told them."""

    def __init__(self, seed: int = 1, profile: NetworkProfile = PROFILE) -> None:
        print(f"seed {seed}")
        self.world = World(seed)
        self.network = Network(self.world, profile, self._hand_over, self._tell)
        self.told: list[tuple[float, int, str, int, Any]] = []

    def _hand_over(self, peer: int, other: int, item: Any) -> None:
        self._tell(peer, "arrived", other, item)

    def _tell(self, peer: int, what: str, other: int, value: Any) -> None:
        self.told.append((self.world.now_s, peer, what, other, value))

    def run(self, seconds: float) -> None:
        self.world.run_until(self.world.now_s + seconds)

    def linked(self, a: int = 0, b: int = 1) -> Wire:
        self.network.dial(a, b)
        self.run(1.0)
        self.told.clear()
        return self

    def arrived(self, peer: int) -> list[Any]:
        return [value for _, who, what, _, value in self.told if (who, what) == (peer, "arrived")]

    def ends(self) -> list[tuple[int, str]]:
        return [(who, value) for _, who, what, _, value in self.told if what == "down"]


@pytest.mark.parametrize("seed", range(5))
def test_messages_of_a_link_arrive_whole_and_in_order(seed: int) -> None:
    wire = Wire(seed).linked()
    for number in range(200):
        wire.network.send(0, 1, number, 10_000 if number % 7 == 0 else 100)
    wire.run(10.0)
    assert wire.arrived(1) == list(range(200))


def test_messages_of_different_links_may_overtake() -> None:
    wire = Wire(3).linked(0, 1).linked(2, 1)
    wire.network.send(0, 1, "large", 900_000)
    wire.network.send(2, 1, "small", 10)
    wire.run(5.0)
    assert wire.arrived(1) == ["small", "large"]


def test_control_does_not_wait_behind_a_tensor() -> None:
    wire = Wire().linked()
    wire.network.send(0, 1, "tensor", 5_000_000, priority=1)
    wire.network.send(0, 1, "probe", 20, priority=0)
    wire.run(1.0)
    assert wire.arrived(1) == ["probe"]
    wire.run(9.0)
    assert wire.arrived(1) == ["probe", "tensor"]


def test_upload_is_shared_and_bounded() -> None:
    wire = Wire().linked(0, 1).linked(0, 2)
    begun_s = wire.world.now_s
    for target in (1, 2):
        wire.network.send(0, target, "x", 1_000_000)
    wire.run(5.0)
    last_s = max(at_s for at_s, _, what, _, _ in wire.told if what == "arrived")
    assert last_s - begun_s >= 2.0


def test_dial_ends_once_as_a_link_on_both_sides() -> None:
    wire = Wire()
    wire.network.dial(0, 1)
    wire.network.dial(0, 1)
    wire.network.dial(1, 0)
    wire.run(5.0)
    assert sorted((who, what) for _, who, what, _, _ in wire.told) == [(0, "up"), (1, "up")]


@pytest.mark.parametrize(("why", "after_s"), [("refused", 0.5), ("timeout", 3.1)])
def test_dial_that_fails_says_why(why: str, after_s: float) -> None:
    wire = Wire()
    wire.network.is_reachable = lambda peer: why if peer == 1 else ""
    wire.network.dial(0, 1)
    wire.run(after_s)
    assert [told[1:] for told in wire.told] == [(0, "dial_failed", 1, why)]


def test_dial_of_a_peer_that_is_paused_when_it_ends_fails_and_is_told() -> None:
    wire = Wire()
    wire.network.dial(0, 1)
    wire.network.is_reachable = lambda peer: "timeout" if peer == 0 else ""
    wire.run(1.0)
    assert [told[1:] for told in wire.told] == [(0, "dial_failed", 1, "timeout")]
    assert not wire.network.has_link(1, 0)


def test_end_of_a_process_is_noticed_soon_after_what_it_sent_last() -> None:
    wire = Wire().linked()
    wire.network.send(0, 1, "last words", 500_000)
    wire.network.end_process(0, silently=False)
    wire.run(5.0)
    assert [(who, what) for _, who, what, _, _ in wire.told] == [(1, "arrived"), (1, "down")]
    assert wire.ends() == [(1, "lost")]


def test_end_of_a_host_is_noticed_only_when_the_link_stalls() -> None:
    wire = Wire().linked()
    wire.network.end_process(0, silently=True)
    assert wire.network.send(1, 0, "into the void", 10)
    wire.run(7.9)
    assert wire.told == []
    wire.run(0.2)
    assert wire.ends() == [(1, "stalled")]


def test_drop_is_told_to_both_sides_once() -> None:
    wire = Wire().linked()
    wire.network.drop(0, 1)
    wire.network.drop(0, 1)
    wire.run(5.0)
    assert wire.ends() == [(0, "dropped"), (1, "lost")]
    assert not wire.network.send(0, 1, "x", 1)


def test_new_link_tells_the_end_of_the_half_open_one_first() -> None:
    wire = Wire().linked()
    wire.network.end_process(0, silently=True)
    wire.network.dial(0, 1)
    wire.run(20.0)
    assert [(who, what) for _, who, what, _, _ in wire.told] == [
        (1, "down"),
        (0, "up"),
        (1, "up"),
    ]


def test_cut_that_heals_soon_delivers_all_in_order() -> None:
    wire = Wire().linked()
    wire.network.cut(0, 1)
    for number in range(10):
        wire.network.send(0, 1, number, 10)
    wire.run(5.0)
    assert wire.arrived(1) == []
    wire.network.heal(0, 1)
    wire.run(1.0)
    assert wire.arrived(1) == list(range(10))
    wire.run(20.0)
    assert wire.ends() == []


def test_cut_that_lasts_ends_the_link_and_the_other_way_stays_open_till_then() -> None:
    wire = Wire().linked()
    wire.network.cut(0, 1)
    wire.network.send(1, 0, "still", 10)
    wire.run(7.0)
    assert wire.arrived(0) == ["still"]
    wire.run(2.0)
    assert wire.ends() == [(0, "stalled"), (1, "stalled")]


def test_clog_holds_and_then_lets_through() -> None:
    wire = Wire().linked()
    wire.network.clog(0, 1, 2.0)
    wire.network.send(0, 1, "late", 10)
    wire.run(1.9)
    assert wire.arrived(1) == []
    wire.run(1.0)
    assert wire.arrived(1) == ["late"]


def test_slowed_path_is_slower_by_that_much() -> None:
    wire = Wire().linked()
    wire.network.slow(0, 1, 1.0)
    wire.network.send(0, 1, "x", 10)
    wire.run(1.0)
    assert wire.arrived(1) == []
    wire.network.slow(0, 1, 0.0)
    wire.run(0.5)
    assert wire.arrived(1) == ["x"]


def test_broken_link_is_lost_on_both_sides_with_what_was_under_way() -> None:
    wire = Wire().linked()
    wire.network.send(0, 1, "x", 10)
    wire.network.break_link(0, 1)
    wire.run(5.0)
    assert wire.arrived(1) == []
    assert wire.ends() == [(0, "lost"), (1, "lost")]
