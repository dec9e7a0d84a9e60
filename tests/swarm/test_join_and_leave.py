"""What a volunteer sees of `swarmd join`, from the first second to the last: real daemons."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from daemons import Daemons, daemons, run_text

pytestmark = pytest.mark.process


def said(swarm: Daemons, name: str) -> str:
    return (swarm.peers[name].home / "output.log").read_text(encoding="utf-8")


def test_join_says_what_it_does_and_a_home_founds_only_once(tmp_path: Path) -> None:
    with daemons(tmp_path, stages=1) as swarm, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        swarm.start("p0", "--observe", "--listen", f"127.0.0.1:{port}", first=True)
        swarm.wait("p0 listens", lambda: swarm.link("p0"))
        link = "others join with: swarmd join 'swarmd://"
        swarm.wait("it says how others join", lambda: link in said(swarm, "p0"))
        text = said(swarm, "p0")
        assert "founds the swarm" in text
        assert f"port {port} is taken" in text
        assert "port_changed" in {item["code"] for item in swarm.status("p0")["health"]["items"]}
        assert "SWARMD_LIFELINE" not in text

        swarm.start("p1", "--observe", via="p0")
        swarm.wait("p1 sees p0", lambda: swarm.status("p1")["peers"]["alive"] == 2)
        assert "joins through 1 address" in said(swarm, "p1")
        memory = swarm.peers["p0"].home / "state" / "known_peers.json"
        swarm.wait("p0 has written down whom it knows", memory.exists)
        swarm.peers["p0"].signal(signal.SIGTERM)
        assert swarm.peers["p0"].ended()[0] == 0
        assert said(swarm, "p0").splitlines()[-1] == "left the swarm in order (drained)"
        swarm.start("p0", "--observe", first=True)
        swarm.wait("p0 is back", lambda: swarm.status("p0")["peers"]["alive"] == 2)
        assert "--first founds only once" in said(swarm, "p0")

        leave = [sys.executable, "-m", "swarmd", "--home", str(swarm.peers["p1"].home), "leave"]
        done = subprocess.run([*leave, "--now"], capture_output=True, text=True, timeout=120)
        assert (done.returncode, "stopped now" in done.stdout) == (0, True), done.stderr
        swarm.wait(
            "p0 was told",
            lambda: (
                swarm.entries("p0")[swarm.id("p0")] and swarm.status("p0")["peers"]["alive"] == 1
            ),
        )
        assert "left" in {entry["liveness"] for entry in swarm.entries("p0").values()}


def test_detached_daemon_has_the_home_that_was_named_relative_to_where_we_are(
    tmp_path: Path,
) -> None:
    """And the run file: it may not look for either from another directory."""

    def told(*words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "swarmd", "--home", "p0", "--json", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    (tmp_path / "run.toml").write_text(run_text(1, 1), encoding="utf-8")
    joined = told(
        *("join", "run.toml", "--first", "--observe", "--listen", "127.0.0.1:0"),
        *("--lan-discovery", "off", "--detach", "--timeout", "2m"),
    )
    try:
        assert told("status")["peer"]["pid"] == joined["pid"]
        assert joined["home"] == str(tmp_path / "p0")
        assert told("leave")["outcome"] == "drained"
    except BaseException:
        os.kill(joined["pid"], signal.SIGKILL)
        raise


def test_signal_while_it_starts_is_exit_0_without_a_traceback(tmp_path: Path) -> None:
    with daemons(tmp_path, stages=1) as swarm:
        peer = swarm.start("p0", "--observe", "--json", first=True)
        swarm.wait("it has its home", (peer.home / "run" / "lock").exists)
        peer.signal(signal.SIGINT)
        code, output = peer.ended()
        assert code == 0, output
        lines = [line for line in output.splitlines() if line.startswith("{")]
        assert all(json.loads(line)["schema"] == "swarmd.event" for line in lines)
        assert lines, "events on standard output"
        assert "Traceback" not in output + (peer.home / "state" / "swarmd.log").read_text()


def test_address_that_is_not_ours_is_refused_in_words(tmp_path: Path) -> None:
    with daemons(tmp_path, stages=1) as swarm:
        peer = swarm.start("p0", "--observe", "--listen", "192.0.2.9:0", first=True)
        code, output = peer.ended()
    assert code == 2, output
    assert "192.0.2.9 cannot be listened on" in output
