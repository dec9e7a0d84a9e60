"""Membership among real daemons: what docs/faults.md asks of identities, deaths and lies.

Four observers share one run (they hold no stage, so a test is cheap), and each test finds and
leaves them whole. How fast things go is for docs/lab.md; here all waits are for conditions.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest
import trio
from daemons import Daemons, daemons
from strangers import stranger

from swarmd.home import home_at
from swarmd.home_files import read_known_peers
from swarmd.protocols.ids import RunId
from swarmd.protocols.messages.control import Refusal, RunDescription, RunRequest
from swarmd.protocols.messages.gossip import Gossip
from swarmd.run_link import PeerAddress, RunLink, parse_run_link

pytestmark = [pytest.mark.process, pytest.mark.swarm]
NAMES = ["p0", "p1", "p2", "p3"]


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    with daemons(tmp_path_factory.mktemp("observers"), stages=2) as swarm:
        swarm.start("p0", "--observe", first=True)
        for name in NAMES[1:]:
            swarm.start(name, "--observe", via="p0")
        yield swarm


@pytest.fixture
def swarm(standing: Daemons) -> Daemons:
    """Everybody there, and everybody knows it. Who was killed comes back through others."""
    for name in NAMES:
        if not standing.peers[name].is_running:
            standing.start(name, "--observe")
    standing.wait("all four see all four", lambda: all(seen(standing, name) for name in NAMES))
    return standing


def seen(swarm: Daemons, observer: str, others: list[str] = NAMES) -> bool:
    entries = swarm.entries(observer)
    return all(entries[swarm.id(name)]["liveness"] == "alive" for name in others)


def liveness(swarm: Daemons, observer: str, peer: str) -> str:
    found: str = swarm.entries(observer)[peer]["liveness"]
    return found


def test_killed_peer_is_dead_for_everybody_and_comes_back_as_the_same_one(swarm: Daemons) -> None:
    """IDEN-01, MEMB-04 a: one entry for this id, with a higher incarnation."""
    killed = swarm.id("p3")
    before = swarm.entries("p1")
    swarm.kill("p3")
    others = ["p0", "p1", "p2"]
    swarm.wait(
        "p3 is dead for all",
        lambda: all(liveness(swarm, name, killed) == "dead" for name in others),
    )
    swarm.start("p3", "--observe")
    swarm.wait("all see p3 again", lambda: all(seen(swarm, name) for name in NAMES))
    for name in others:
        after = swarm.entries(name)
        assert after[killed]["incarnation"] > before[killed]["incarnation"]
        assert after.keys() == before.keys()


def test_quick_restart_is_no_second_peer(swarm: Daemons) -> None:
    """IDEN-01: back before anybody could call it dead."""
    restarted = swarm.id("p2")
    before = swarm.entries("p1")[restarted]["incarnation"]
    swarm.kill("p2")
    swarm.start("p2", "--observe")

    def is_back(name: str) -> bool:
        entry = swarm.entries(name)[restarted]
        return bool(entry["incarnation"] > before and entry["liveness"] == "alive")

    others = ["p0", "p1", "p3"]
    swarm.wait("its new life is known", lambda: all(is_back(name) for name in others))
    assert all(len(swarm.entries(name)) == len(NAMES) for name in others)


def test_frozen_peer_is_dead_and_returns_with_a_new_life(swarm: Daemons) -> None:
    """IDEN-04, MEMB-04 b: the same process, one entry, and nobody holds its death against it."""
    frozen = swarm.id("p1")
    pid, life = swarm.status("p1")["peer"]["pid"], swarm.entries("p0")[frozen]["incarnation"]
    others = ["p0", "p2", "p3"]
    swarm.peers["p1"].signal(signal.SIGSTOP)
    try:
        swarm.wait(
            "p1 is dead for all",
            lambda: all(liveness(swarm, name, frozen) == "dead" for name in others),
        )
    finally:
        swarm.peers["p1"].signal(signal.SIGCONT)
    swarm.wait("all see all again", lambda: all(seen(swarm, name) for name in NAMES))
    assert swarm.status("p1")["peer"]["pid"] == pid
    swarm.wait(
        "its new life is known and written down",
        lambda: (
            all(swarm.entries(name)[frozen]["incarnation"] > life for name in NAMES)
            and swarm.status("p1")["peer"]["incarnation"] > life
        ),
    )
    assert all(len(swarm.entries(name)) == len(NAMES) for name in others)


def test_founder_dies_and_a_newcomer_joins_through_another(swarm: Daemons) -> None:
    """MEMB-01: the founder's address is in everybody's link; others work as well."""
    run_id, _ = entry_of(swarm, "p0")
    home = home_at(swarm.peers["p0"].home)
    swarm.wait("it has written down whom it knows", lambda: read_known_peers(home, run_id))
    swarm.kill("p0")
    swarm.start("late", "--observe", via="p2")
    there = ["p1", "p2", "p3", "late"]
    swarm.wait("it is in", lambda: all(seen(swarm, name, there) for name in there))
    swarm.start("p0", "--observe")  # as an ordinary peer: without --first
    swarm.wait("the founder is back", lambda: seen(swarm, "p0", [*there, "p0"]))
    swarm.peers["late"].signal(signal.SIGTERM)
    code, output = swarm.peers["late"].ended()
    assert code == 0, output


def test_second_daemon_on_a_home_is_refused_and_told_who_holds_it(swarm: Daemons) -> None:
    """IDEN-02 a."""
    peer = swarm.peers["p1"]
    words = [sys.executable, "-m", "swarmd", "--home", str(peer.home), "join", "--no-input"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 75, done.stderr
    assert str(swarm.status("p1")["peer"]["pid"]) in done.stderr
    assert seen(swarm, "p0")


def test_copied_key_is_refused_and_told_where_the_first_is(swarm: Daemons) -> None:
    """IDEN-02 b: the newcomer ends with 77; the first stays, and stays alive for all."""
    held = swarm.id("p1")
    address = swarm.entries("p0")[held]["address"]
    copy = swarm.folder / "copy"
    shutil.copytree(swarm.peers["p1"].home, copy, ignore=shutil.ignore_patterns("run", "*.lock"))
    swarm.start("copy", "--observe", via="p0")
    code, output = swarm.peers["copy"].ended()
    assert code == 77, output
    assert address in output
    assert "Traceback" not in output
    assert swarm.peers["p1"].is_running
    swarm.wait("p1 is alive for all", lambda: all(seen(swarm, name) for name in NAMES))


def test_halves_that_are_cut_apart_and_healed_are_one_swarm_again(swarm: Daemons) -> None:
    """MEMB-02: each half holds the other for dead; once healed, one roster, and no new lives."""
    halves = (["p0", "p1"], ["p2", "p3"])
    lives = {name: swarm.entries("p0")[swarm.id(name)]["incarnation"] for name in NAMES}
    for here, there in (halves, halves[::-1]):
        spec = "cut=" + ",".join(swarm.id(name) for name in there)
        for name in here:
            assert swarm.peers[name].ask("inject", {"specs": [spec]}) is not None

    def holds_for_dead(name: str, there: list[str]) -> bool:
        return all(liveness(swarm, name, swarm.id(other)) == "dead" for other in there)

    swarm.wait(
        "the halves have lost each other",
        lambda: all(
            holds_for_dead(name, there) for here, there in (halves, halves[::-1]) for name in here
        ),
    )
    assert all(seen(swarm, name, here) for here in halves for name in here)
    for name in NAMES:
        assert swarm.peers[name].ask("inject", {"clear": True}) is not None
    swarm.wait("all four see all four", lambda: all(seen(swarm, name) for name in NAMES))
    entries = swarm.entries("p3")
    assert {name: entries[swarm.id(name)]["incarnation"] for name in NAMES} == lives


def test_daemon_at_rest_takes_less_than_150_mb_without_its_worker(swarm: Daemons) -> None:
    for name in NAMES:
        daemon = psutil.Process(swarm.status(name)["peer"]["pid"])
        assert daemon.memory_info().rss < 150e6


# ----------------------------------------------------------------------------------------- lies


def entry_of(swarm: Daemons, name: str) -> tuple[RunId, PeerAddress]:
    link = parse_run_link(swarm.link(name))
    own = swarm.id(name)
    return link.run_id, next(entry for entry in link.entries if entry.peer == own)


async def test_forged_and_foreign_records_are_refused_and_counted(swarm: Daemons) -> None:
    """SEC-04: another's record under our key, and our own for another run."""
    run_id, entry = entry_of(swarm, "p0")
    victim = swarm.id("p1")
    incarnation = swarm.entries("p0")[victim]["incarnation"]
    async with stranger() as liar:
        peer = await liar.connect(entry)
        own = liar.record(run_id)
        await liar.greet(peer, run_id, own)
        stolen = replace(own, peer=victim, incarnation=incarnation + 9, phase="left")
        liar.say(peer, Gossip(records=(liar.sign(stolen),)))
        liar.say(peer, Gossip(records=(liar.sign(replace(own, run_id="f" * 64, version=2)),)))
        counted: dict[str, Any] = {}
        with trio.fail_after(60):
            while not {"bad_signature", "wrong_run"} <= counted.keys():
                counted = await trio.to_thread.run_sync(
                    lambda: swarm.entries("p0").get(liar.id, {}).get("rejected", {})
                )
                await trio.sleep(0.1)
    after = swarm.entries("p0")[victim]
    assert (after["incarnation"], after["liveness"]) == (incarnation, "alive")


async def test_peer_of_another_run_is_refused_with_the_reason(swarm: Daemons) -> None:
    """BOOT-08."""
    _, entry = entry_of(swarm, "p0")
    async with stranger() as guest:
        peer = await guest.connect(entry)
        answer = await guest.greet(peer, "e" * 64)
    assert isinstance(answer, Refusal)
    assert answer.code == "wrong_run"
    refused = await trio.to_thread.run_sync(lambda: swarm.status("p0")["refused"])
    assert refused["by_code"]["wrong_run"] >= 1


async def test_description_that_does_not_hash_to_the_run_id_is_refused(swarm: Daemons) -> None:
    """A joiner whose only entry lies shows why, and joins once an honest one is named too."""
    run_id, honest = entry_of(swarm, "p0")
    async with stranger() as liar:
        body = b"\x80"
        liar.answer = lambda message: (
            RunDescription(run_id=run_id, body=body) if isinstance(message, RunRequest) else None
        )
        lie = PeerAddress(liar.id, liar.address.partition("/p2p/")[0])
        swarm.start("victim", "--observe", run=str(RunLink(run_id, (lie,))))

        def shows_why() -> bool:
            told = swarm.status("victim")["reason"]
            return any(item["cause"] == "hash_mismatch" for item in told["subject"]["addresses"])

        await trio.to_thread.run_sync(swarm.wait, "the lie is named", shows_why)
        swarm.kill("victim")
        both = str(RunLink(run_id, (lie, honest)))
        swarm.start("victim", "--observe", run=both)
        await trio.to_thread.run_sync(swarm.wait, "it is in", lambda: seen(swarm, "victim"))
    swarm.peers["victim"].signal(signal.SIGTERM)
    assert (await trio.to_thread.run_sync(swarm.peers["victim"].ended))[0] == 0
