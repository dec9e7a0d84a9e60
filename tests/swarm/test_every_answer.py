"""What a real daemon answers to every command, before, while and after it is stopped with SIGSTOP.

One observer on loopback: no torch, so it costs seconds. Every object is checked against its schema.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command_line import swarmd
from daemons import Daemons, daemons

from swarmd.home import Home, home_at
from swarmd.identity import load

pytestmark = [pytest.mark.process]

ANSWERED = [
    "status", "peers", "peers --all", "plan", "contributions", "data audit", "metrics", "events",
    "logs", "wait --for joined", "run show", "run link", "run ls", "config show", "identity show",
    "paths", "ps", "version", "debug dump", "debug inject --list", "cordon", "uncordon", "pause",
    "resume", "bugreport",
]  # fmt: skip

LOOKING = ["status", "peers", "plan", "contributions", "metrics", "events", "logs"]
HEAVY = ["torch", "numpy", "libp2p", "trio", "rich", "multiaddr", "starlette", "hypercorn"]


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    with daemons(tmp_path_factory.mktemp("one"), stages=2) as swarm:
        swarm.start("p0", "--observe", first=True)
        swarm.wait("it has joined", lambda: swarm.status("p0")["state"] == "waiting")
        yield swarm


@pytest.fixture
def home(standing: Daemons) -> Home:
    return home_at(standing.peers["p0"].home)


@pytest.mark.parametrize("line", ANSWERED)
def test_answer_is_of_its_schema_and_0(line: str, home: Home) -> None:
    words = line.split()
    found = swarmd(*words, "--json", "--timeout", "20s", home=home)
    assert found.code == 0, found.out + found.err
    if words[0] == "events":
        assert found.lines
    elif words[0] != "logs":  # a quiet start writes nothing
        assert found.object["schema"].startswith("swarmd.")
    as_text = swarmd(*words, "--timeout", "20s", home=home)
    assert as_text.code == found.code
    assert "\x1b" not in as_text.out


def test_stopped_daemon_is_told_apart_in_a_second_and_answers_again_when_it_goes_on(
    standing: Daemons, home: Home
) -> None:
    process = standing.peers["p0"].process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        begun_s = time.monotonic()
        status = swarmd("status", "--json", home=home)
        took_s = time.monotonic() - begun_s
        peers = swarmd("peers", "--json", home=home)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    print(f"status of a stopped daemon took {took_s:.2f} s")
    assert (status.code, status.error["code"]) == (4, "daemon_silent")
    assert peers.error["code"] == "daemon_silent"
    standing.wait("it answers again", lambda: swarmd("status", home=home).code == 0)


def test_no_secret_is_in_arguments_files_or_answers_and_files_are_the_users_alone(
    standing: Daemons, home: Home
) -> None:
    seed = load(home.identity_key).seed
    forms = [seed, seed.hex().encode(), base64.b64encode(seed)[:-1]]
    process = standing.peers["p0"].process
    assert process is not None
    told = [word.encode() for word in psutil.Process(process.pid).cmdline()]
    told += [swarmd(*line.split(), "--json", home=home).out.encode() for line in ANSWERED]
    for path in sorted(standing.peers["p0"].home.rglob("*")):
        if path.is_socket() or path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or _is_ours(path), path
        elif path.is_dir():
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        if path.is_file() and path != home.identity_key:
            told.append(path.read_bytes())
    assert not [form for form in forms for text in told if form in text]


def _is_ours(path: Path) -> bool:
    """Written by the test's own harness."""
    return path.name == "output.log"


def test_strangers_who_knock_at_the_ports_are_named(standing: Daemons, home: Home) -> None:
    """TLS without a certificate, at the tensors' port; at libp2p's it is no libp2p at all."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    pid = standing.status("p0")["peer"]["pid"]
    listening = [c for c in psutil.Process(pid).net_connections("tcp") if c.status == "LISTEN"]
    ports = sorted({connection.laddr.port for connection in listening})
    assert len(ports) == 2
    for port in ports:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as plain:
            plain.settimeout(20)
            with context.wrap_socket(plain) as knocking:
                knocking.recv(1)

    def refused() -> set[str]:
        return set(standing.status("p0")["refused"]["by_code"])

    expected = {"bad_certificate", "handshake_failed"}
    standing.wait("both are counted", lambda: expected <= refused())
    for command in ("status", "peers"):
        shown = swarmd(command, home=home).out
        assert "bad certificate" in shown, shown
        assert "handshake failed" in shown, shown
    assert "swarmd_refused_total" in swarmd("metrics", home=home).out


def test_looking_at_a_running_peer_loads_nothing_heavy(home: Home) -> None:
    """Its speed is in docs/lab.md; this is why it is fast."""
    script = (
        "import json, sys\n"
        "from swarmd.cli.main import run\n"
        f"codes = [run(['--home', {str(home.root)!r}, *line.split()]) for line in {LOOKING!r}]\n"
        f"print(json.dumps([codes, [name for name in {HEAVY!r} if name in sys.modules]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [[0] * len(LOOKING), []]
