"""What a real daemon does with its own device: given back by `pause`, taken in smaller pieces."""

from __future__ import annotations

from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from daemons import Daemons, daemons

from swarmd.events_log import read_events

pytestmark = [pytest.mark.process, pytest.mark.swarm, pytest.mark.slow]

WORKER_BYTES_MIN = 100 << 20
"""torch alone takes more."""


def of_the_state(swarm: Daemons) -> tuple[str, str]:
    status = swarm.status("p0")
    return status["state"], status["reason"]["code"]


def test_paused_daemon_has_no_worker_and_its_memory_and_goes_on_when_resumed(
    tmp_path: Path,
) -> None:
    with daemons(tmp_path, stages=1, peers_min=1) as swarm:
        swarm.start("p0", first=True)
        swarm.wait("it trains", lambda: swarm.status("p0")["progress"]["inner_step"] >= 2)
        process = swarm.peers["p0"].process
        assert process is not None
        daemon = psutil.Process(process.pid)
        before_bytes = swarm.status("p0")["resources"]["rss_bytes"]
        step = swarm.status("p0")["progress"]["inner_step"]
        swarm.tell("p0", "pause")
        swarm.wait("the worker is gone", lambda: not daemon.children())
        assert of_the_state(swarm) == ("paused", "paused")
        assert "the device is free" in swarm.status("p0")["reason"]["text"]
        after_bytes = swarm.status("p0")["resources"]["rss_bytes"]
        print(f"rss {before_bytes / 2**20:.0f} MiB, paused {after_bytes / 2**20:.0f} MiB")
        assert before_bytes - after_bytes > WORKER_BYTES_MIN
        swarm.tell("p0", "resume")
        swarm.wait("it goes on", lambda: swarm.status("p0")["progress"]["inner_step"] > step + 1)
        assert swarm.status("p0")["faults"]["count"] == 0
        swarm.tell("p0", "pause", "--for", "2s")
        swarm.wait("it is paused", lambda: of_the_state(swarm) == ("paused", "paused"))
        swarm.wait("it goes on by itself", lambda: of_the_state(swarm)[0] == "training")


def lowered(swarm: Daemons) -> list[dict[str, object]]:
    events = read_events(swarm.peers["p0"].home / "state" / "events.jsonl")
    return [event for event in events if event["event"] == "micro_batch_lowered"]


def test_memory_that_runs_out_leads_to_smaller_pieces_and_every_second_is_booked(
    tmp_path: Path,
) -> None:
    with daemons(tmp_path, stages=1, peers_min=1) as swarm:
        swarm.start("p0", "--inject", "oom", first=True)
        (event, *_) = swarm.wait("memory ran out", lambda: lowered(swarm))
        swarm.wait("it trains on", lambda: swarm.status("p0")["progress"]["inner_step"] >= 3)
        status = swarm.status("p0")
        print(f"micro-batch {status['peer']['device']['micro_batch']}, {event['data']}")
        assert status["peer"]["device"]["micro_batch"] == lowered(swarm)[-1]["data"]["to"]  # type: ignore[index]
        assert status["resources"]["worker_restarts"] == 0
        used = status["resources"]
        assert 0 < used["worker_cpu_s"] <= 1.2 * used["worker_busy_s"], "one thread"
        spent_s = sum(status["time"]["by_reason"].values())
        assert abs(spent_s - status["time"]["uptime_s"]) <= 1.0
