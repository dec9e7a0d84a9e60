"""STAG-01 with real daemons: the peers of a stage are killed and their homes lost; training goes on
from a snapshot that peers of the other stage kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from daemons import Daemons, answer_of, daemons

from swarmd.home import home_at

pytestmark = [pytest.mark.process, pytest.mark.swarm, pytest.mark.slow]

GUARD_ROUNDS = 2


def events(swarm: Daemons, name: str, event: str) -> list[dict[str, Any]]:
    path = home_at(swarm.peers[name].home).events_file
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return [told for told in found if told["event"] == event]


def test_a_stage_that_was_lost_with_its_disks_is_restored_without_an_operator(
    tmp_path: Path,
) -> None:
    settings = {"inner_steps": 4, "total_steps": 4000, "guard_rounds": GUARD_ROUNDS}
    with daemons(tmp_path, stages=2, peers_min=4, **settings) as swarm:
        names = [f"p{number}" for number in range(4)]
        swarm.start("p0", first=True)
        for name in names[1:]:
            swarm.start(name, via="p0")

        def round_of(name: str) -> int:
            return int(swarm.status(name)["progress"]["outer_round"])

        def stage_of(name: str) -> int:
            return int(swarm.status(name)["stage"]["index"])

        swarm.wait("all train", lambda: all(round_of(name) >= 3 for name in names))
        last = [name for name in names if stage_of(name) == 1]
        left = [name for name in names if name not in last]
        swarm.wait(
            "the last stage is guarded",
            lambda: any(
                e["stage"] == 1 for name in left for e in events(swarm, name, "state_guarded")
            ),
        )
        before = {name: round_of(name) for name in left}
        for name in last:
            swarm.kill(name)
            shutil.rmtree(swarm.peers[name].home)

        restored = swarm.wait(
            "somebody restores it",
            lambda: [e for name in left for e in events(swarm, name, "state_restored")],
        )
        assert restored[0]["stage"] == 1
        lost = restored[0]["data"]["rounds_lost"]
        print(f"rounds lost {lost}, guarded every {GUARD_ROUNDS}")
        assert 0 <= lost <= GUARD_ROUNDS + 1
        swarm.wait(
            "training goes on",
            lambda: all(round_of(name) >= before[name] + 2 for name in left),
        )


def test_a_whole_swarm_comes_back_though_one_stage_is_in_a_guardians_hands_alone(
    tmp_path: Path,
) -> None:
    settings = {"inner_steps": 4, "total_steps": 4000, "guard_rounds": GUARD_ROUNDS}
    with daemons(tmp_path, stages=2, peers_min=2, **settings) as swarm:
        swarm.start("p0", first=True)
        swarm.start("p1", via="p0")
        both = ("p0", "p1")

        def round_of(name: str) -> int:
            return int((swarm.status(name).get("progress") or {}).get("outer_round") or 0)

        def audited(name: str) -> dict[str, Any]:
            return answer_of("--home", str(swarm.peers[name].home), "data", "audit")

        swarm.wait("both train", lambda: all(round_of(name) >= 3 for name in both))
        at_last = next(n for n in both if swarm.status(n)["stage"]["index"] == 1)
        head = next(name for name in both if name != at_last)
        swarm.wait("the last stage is guarded", lambda: events(swarm, head, "state_guarded"))
        done = audited(head)["samples_completed"]
        before = round_of(head)
        for name in both:
            swarm.kill(name)
        shutil.rmtree(swarm.peers[at_last].home / "data")
        swarm.start(head)
        swarm.start(at_last, via=head)
        swarm.wait("training goes on", lambda: all(round_of(n) >= before + 2 for n in both))
        late = [e for e in events(swarm, head, "lease_expired") if e["data"]["reason"] == "late"]
        assert len(late) < 50
        for name in both:
            found = audited(name)
            assert found["clean"]
            assert found["samples_completed"] >= done * (before - GUARD_ROUNDS) // (before + 1)


def test_any_peer_exports_a_run_that_is_on_and_the_last_of_a_stage_hands_it_over(
    tmp_path: Path,
) -> None:
    settings = {"inner_steps": 4, "total_steps": 4000, "guard_rounds": 0}
    with daemons(tmp_path, stages=2, peers_min=2, **settings) as swarm:
        swarm.start("p0", first=True)
        swarm.start("p1", via="p0")
        both = ("p0", "p1")

        def round_of(name: str) -> int:
            return int(swarm.status(name)["progress"]["outer_round"])

        swarm.wait("both train", lambda: all(round_of(name) >= 2 for name in both))
        stages = {int(swarm.status(name)["stage"]["index"]): name for name in both}
        head, last = stages[0], stages[1]
        folder = tmp_path / "model"
        at_head = ("--home", str(swarm.peers[head].home))
        made = answer_of(*at_head, "export", "--to", "hf-safetensors", str(folder))
        assert made["complete"]
        assert made["round"] >= 2
        assert (folder / "config.json").exists()
        told = answer_of(*at_head, "eval", "--from", str(folder), "--threads", "1")
        assert 1.0 < told["loss"] < 7.0
        began = round_of(head)
        swarm.wait("training went on meanwhile", lambda: round_of(head) > began)

        left = answer_of("--home", str(swarm.peers[last].home), "leave")
        assert left["outcome"] == "drained"
        assert left["state_handed_to"] == [swarm.id(head)]
        code, _ = swarm.peers[last].ended()
        assert code == 0
        swarm.start("p2", via=head)
        restored = swarm.wait(
            "a newcomer takes the stage", lambda: events(swarm, "p2", "state_restored")
        )
        assert restored[0]["stage"] == 1
        assert restored[0]["data"]["rounds_lost"] <= 1
        goes_on = round_of(head)
        swarm.wait("training goes on", lambda: round_of(head) > goes_on)
