"""`swarmd netcheck`: with a daemon and without one, for people and programs."""

from __future__ import annotations

from typing import Any

import pytest
from command_line import FakeDaemon, swarmd

from swarmd.home import Home
from swarmd.json_record import render
from swarmd.result_records import InterfaceAddress, Neighbour, Netcheck

NEAR = "12D3KooWGC8xfFjnnHnZeCVv1xZQ5PYvhDYQZ5GUJmZ3N2kFbG1S"
ADDR = f"/ip4/127.0.0.1/tcp/1/p2p/{NEAR}"


def of_daemon(reachable: Any, path: Any = "direct") -> dict[str, Any]:
    listed = InterfaceAddress(
        addr="/ip4/203.0.113.7/tcp/4710", interface="eth0", announced=True, reachable=reachable,
        why="reached by 2 of 3 neighbours",
    )  # fmt: skip
    near = Neighbour(peer=NEAR, stage=1, path=path, rtt_ms=28.2, up_bytes_per_s=2.4e6)
    found = Netcheck(
        addresses=[listed], nat="endpoint_independent", ipv4=True, ipv6=False, relays=[NEAR],
        neighbours=[near],
    )  # fmt: skip
    return render(found)


def test_what_the_daemon_found_is_shown_with_a_verdict(home: Home) -> None:
    daemon = FakeDaemon(home)
    daemon.replies("netcheck", of_daemon("yes"))
    with daemon.running():
        shown = swarmd("netcheck", home=home)
        found = swarmd("netcheck", "--json", "--peer", ADDR, home=home).object
    assert shown.code == 0, shown.err
    for part in (
        "203.0.113.7:4710", "eth0", "reached by 2 of 3", "endpoint-independent", "IPv6 none",
        "·bG1S", "direct", "28 ms", "19.2 / -", "takes part in prairie-1b",
    ):  # fmt: skip
        assert part in shown.out
    assert (found["schema"], found["nat"]) == ("swarmd.netcheck", "endpoint_independent")
    assert found["verdict"]["stages"] == 1
    assert daemon.asked[-2] == ("netcheck", {"peers": [ADDR]})


@pytest.mark.parametrize(
    ("reachable", "path", "code"),
    [("yes", "direct", 0), ("unknown", "relay", 0), ("no", "relay", 1), ("yes", "none", 1)],
)
def test_who_cannot_be_reached_or_reach_anybody_ends_with_1(
    home: Home, reachable: str, path: str, code: int
) -> None:
    daemon = FakeDaemon(home)
    daemon.replies("netcheck", of_daemon(reachable, path))
    with daemon.running():
        assert swarmd("netcheck", home=home).code == code


def test_without_daemon_run_or_peer_it_looks_at_this_machine_alone(home: Home) -> None:
    home.create()
    home.config_file.write_text("[net]\nlisten = '127.0.0.1:0'\n")
    found = swarmd("netcheck", "--json", home=home)
    assert found.code == 0, found.err
    report = found.object
    announced = [address for address in report["addresses"] if address["announced"]]
    assert len(announced) == 2, "control and bulk"
    assert {address["reachable"] for address in announced} == {"unknown"}
    assert (report["nat"], report["neighbours"]) == ("unknown", [])
    assert not home.identity_key.exists(), "no key is made"


def test_a_named_peer_that_does_not_answer_is_said_and_ends_with_1(home: Home) -> None:
    home.create()
    home.config_file.write_text("[net]\nlisten = '127.0.0.1:0'\n")
    shown = swarmd("netcheck", "--peer", ADDR, home=home)
    assert shown.code == 1
    assert "not reached" in shown.out
    assert swarmd("netcheck", "--peer", "nonsense", home=home).code == 2
