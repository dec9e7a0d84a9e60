"""Real daemons on loopback: found without an address, reached through a third, shaped."""

from __future__ import annotations

from pathlib import Path

import pytest
from daemons import daemons
from free_ports import free_ports

from swarmd.events_log import read_events
from swarmd.home import home_at
from swarmd.run_link import ADDRESS_EXAMPLE

pytestmark = pytest.mark.process


def test_a_peer_is_found_on_the_local_network_and_both_can_be_dialled(tmp_path: Path) -> None:
    with daemons(tmp_path, stages=1) as swarm:
        lan = ("--observe", "--lan-discovery", "on", "--shape", "20mbit,60ms")
        swarm.start("p0", *lan, first=True)
        run_id = swarm.wait("p0 has its run", lambda: swarm.status("p0")["run"]["id"])
        swarm.start("p1", *lan, "--quota-month", "2kB", run=f"swarmd://{run_id}")
        swarm.wait(
            "both see each other",
            lambda: all(swarm.status(name)["peers"]["alive"] == 2 for name in ("p0", "p1")),
        )
        swarm.wait(
            "both are told that they can be dialled",
            lambda: all(swarm.status(name)["peer"]["reachable"] == "yes" for name in ("p0", "p1")),
        )
        other = swarm.id("p1")
        rtt_ms = swarm.wait("a round trip", lambda: swarm.entries("p0")[other]["rtt_ms"])
        assert rtt_ms >= 60
        assert swarm.entries("p0")[other]["path"] == "direct"
        reason = swarm.status("p1")["reason"]
        assert reason["code"] == "quota_exhausted", "it is a member all the same"
        assert reason["eta_basis"] == "schedule"


def test_boot_07_peers_that_cannot_dial_each_other_meet_through_a_third(tmp_path: Path) -> None:
    with daemons(tmp_path, stages=1) as swarm:
        swarm.start("p0", "--observe", first=True)
        for name in ("p1", "p2"):
            swarm.start(name, "--observe", "--announce", nobodys_address(), via="p0")
        first, second = swarm.id("p1"), swarm.id("p2")
        swarm.wait(
            "p1 and p2 are linked through p0",
            lambda: (
                swarm.entries("p1")[second]["path"] == swarm.entries("p2")[first]["path"] == "relay"
            ),
        )
        assert swarm.entries("p1")[swarm.id("p0")]["path"] == "direct"
        told = [one["addr"] for one in swarm.peers["p1"].ask("netcheck")["addresses"]]  # type: ignore[index]
        control, bulk = told[:2]
        assert swarm.entries("p0")[first]["address"] == control.partition("/p2p/")[0]
        port = int(control.partition("/p2p/")[0].rpartition("/")[2])
        assert bulk == f"/ip4/127.0.0.1/tcp/{port + 1}", "what is announced covers both ports"


def nobodys_address() -> str:
    (port,) = free_ports(1)
    return f"/ip4/127.0.0.1/tcp/{port}"


def test_boot_01_and_05_who_finds_nobody_says_where_it_asked_and_what_would_help(
    tmp_path: Path,
) -> None:
    run = f"swarmd://{'ab' * 32}"
    with daemons(tmp_path, stages=1) as swarm:
        nowhere = f"{nobodys_address()}/p2p/{ADDRESS_EXAMPLE.rpartition('/')[2]}"
        late = swarm.start("p1", "--timeout", "4s", run=f"{run}?peer={nowhere}")
        alone = swarm.start("p0", "--lan-discovery", "on", run=run)
        code, said = alone.ended()
        assert code == 2, said
        assert "no_entry_address" in said
        assert "hint: give a run link" in said
        code, said = late.ended()
        assert code == 69, said
        address = nowhere.partition("/p2p/")[0]
        assert said.count(f"joining: 0 of 1 entry addresses reachable: {address} refused") == 1
        last = said.splitlines()[-2:]
        assert f"{address} refused (bootstrap_unreachable)" in last[0]
        assert last[1].startswith("hint: ")
        ended = [event for event in read_events(home_at(late.home).events_file)][-1]
        assert (ended["event"], ended["code"]) == ("ended", "bootstrap_unreachable")
