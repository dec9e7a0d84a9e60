"""Stages among real daemons: nobody deals them out, and each place has a reason.

The run has not begun (daemons.py), so stages are made from the seed and nothing is trained; what is
tried is who takes which, who moves, and what everybody is told.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import wall_clock
from daemons import Daemons, daemons

from swarmd.protocols.reasons import STATE_OF_CODE

pytestmark = [pytest.mark.process, pytest.mark.swarm]


def places(swarm: Daemons, name: str) -> dict[str, dict[str, Any]]:
    """The lines of `swarmd plan`, by peer name."""
    found = swarm.peers[name].ask("plan") or {}
    return {line["name"]: line for line in found.get("peers", [])}


def why_unexplained(status: dict[str, Any]) -> str | None:
    """What is wrong with how a peer explains itself (CLI-02)."""
    reason = status["reason"]
    if reason["code"] not in STATE_OF_CODE or not reason["text"]:
        return f"no reason: {reason}"
    if status["state"] not in STATE_OF_CODE[reason["code"]]:
        return f"{status['state']} because of {reason['code']}"
    spent_s = sum(status["time"]["by_reason"].values())
    if abs(spent_s - status["time"]["uptime_s"]) > 1.0:
        return f"{spent_s} s explained of {status['time']['uptime_s']} s"
    if reason["eta_s"] is not None and reason["eta_s"] < 0.0:
        return f"an ETA in the past: {reason}"
    return None


@pytest.mark.slow
def test_stages_are_manned_and_manned_again_and_who_is_told_to_stay_stays(tmp_path: Path) -> None:
    """STAG-01 with a peer to spare; a joiner says at every moment what it does and why."""
    names = ["p0", "p1", "p2", "p3"]
    with daemons(tmp_path, stages=3) as swarm:
        swarm.start("p0", first=True)
        for name in names[1:3]:
            swarm.start(name, via="p0")
        swarm.wait("three stages are manned", lambda: swarm.agree(names[:3]))
        swarm.start("p3", via="p2")
        unexplained: list[str] = []

        def is_in() -> bool:
            status = swarm.status("p3")
            if status:
                found = why_unexplained(status)
                unexplained.extend([found] if found else [])
            return swarm.agree(names)

        swarm.wait("the fourth is in", is_in)
        assert not unexplained

        before = places(swarm, "p0")
        doubled = next(s for s, peers in enumerate(swarm.map_of("p0")) if len(peers) == 2)
        stays, moves = [n for n in names if before[n]["stage"] == doubled]
        alone = next(n for n in names if n not in (stays, moves))
        others = [n for n in names if n != alone]
        swarm.tell(stays, "pin", str(doubled))
        swarm.tell(moves, "cordon")
        observer = next(n for n in others if n not in (stays, moves))
        swarm.wait("the marks are known", lambda: marked(swarm, observer, stays, moves))
        swarm.kill(alone)

        def says_none_to_spare(name: str) -> bool:
            found = swarm.peers[name].ask("plan") or {}
            return "none to spare" in found.get("why", "")

        swarm.wait("nobody may move", lambda: all(says_none_to_spare(name) for name in others))

        def names_the_stage(name: str) -> bool:
            reason = swarm.status(name)["reason"]
            lacks = before[alone]["stage"]
            return bool(
                reason["code"] == "waiting_for_stage" and reason["subject"]["stage"] == lacks
            )

        swarm.wait("all say which stage", lambda: all(names_the_stage(name) for name in others))
        for name in others:
            assert places(swarm, name)[stays]["stage"] == doubled
            assert places(swarm, name)[moves]["stage"] == doubled

        swarm.tell(moves, "uncordon")
        swarm.wait("all stages are manned again", lambda: swarm.agree(others))
        after = places(swarm, observer)
        assert after[moves]["stage"] == before[alone]["stage"]
        assert after[stays]["stage"] == doubled, "pinned"
        assert all(line["why"] == "keep" for line in after.values()), after


def marked(swarm: Daemons, observer: str, pinned: str, cordoned: str) -> bool:
    told = places(swarm, observer)
    return bool(told[pinned]["pinned"] and told[cordoned]["cordoned"])


@pytest.mark.skipif(wall_clock.compiler() is None, reason="needs a C compiler")
@pytest.mark.slow
def test_wall_clocks_two_hours_apart_change_nothing(tmp_path: Path) -> None:
    """MEMB-06: one an hour ahead, one an hour behind; they train the run to its end."""
    library = wall_clock.build(tmp_path)
    with daemons(tmp_path, stages=2, peers_min=2, total_steps=4, inner_steps=2) as swarm:
        ahead = wall_clock.environment(library, 3600)
        behind = wall_clock.environment(library, -3600)
        swarm.start("ahead", "--stage", "0", first=True, environment=ahead)
        swarm.link("ahead")
        shown = datetime.fromisoformat(swarm.status("ahead")["generated_at"])
        assert shown - datetime.now(UTC) > timedelta(minutes=50), "the shift does not work"
        swarm.start("behind", "--stage", "1", via="ahead", environment=behind)
        for name in ("ahead", "behind"):
            code, output = swarm.peers[name].ended()
            assert code == 0, output
            assert "Traceback" not in output
