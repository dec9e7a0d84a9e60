"""A peer with a run link finds the run's description, or says per address why not."""

from __future__ import annotations

import hashlib
import random

from swarmd.protocols import effects as fx
from swarmd.protocols.bootstrap import Bootstrap, BootstrapLimits
from swarmd.protocols.ids import PeerId, RunId
from swarmd.protocols.messages import control

BODY = b"a run"
ALDER, BIRCH = PeerId("alder"), PeerId("birch")


def hash_of(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=32).hexdigest()


def make(**entries: tuple[str, ...]) -> Bootstrap:
    return Bootstrap(
        RunId(hash_of(BODY)),
        {PeerId(peer): addresses for peer, addresses in entries.items()},
        hash_of=hash_of,
        limits=BootstrapLimits(),
        rng=random.Random(1),
    )


def describe(peer: PeerId, body: bytes) -> fx.Arrived:
    return fx.Arrived(peer, control.RunDescription(run_id=hash_of(body), body=body))


def emitted(effects: list[fx.Effect]) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, fx.Emit)]


def test_first_body_that_hashes_right_is_taken_once() -> None:
    machine = make(alder=("/ip4/127.0.0.1/tcp/1",), birch=("/ip4/127.0.0.1/tcp/2",))
    dials = [e.peer for e in machine.handle(fx.Started(), 0.0) if isinstance(e, fx.Dial)]
    assert dials == [ALDER, BIRCH]
    (asked,) = machine.handle(fx.LinkUp(BIRCH), 0.1)
    assert isinstance(asked, fx.Send)
    assert asked.message == control.RunRequest(run_id=hash_of(BODY))
    assert emitted(machine.handle(describe(BIRCH, BODY), 0.2)) == ["run_described"]
    assert machine.handle(describe(ALDER, BODY), 0.3) == []


def test_body_of_another_hash_is_refused_and_counted() -> None:
    machine = make(alder=("/ip4/127.0.0.1/tcp/1",))
    machine.handle(fx.Started(), 0.0)
    machine.handle(fx.LinkUp(ALDER), 0.1)
    effects = machine.handle(describe(ALDER, b"another run"), 0.2)
    assert emitted(effects) == ["run_description_rejected", "state_changed"]
    assert machine.rejected == {ALDER: "hash_mismatch"}


def test_every_address_is_named_with_its_cause() -> None:
    machine = make(alder=("/ip4/127.0.0.1/tcp/1",), birch=("/dns/nowhere/tcp/2",))
    machine.handle(fx.Started(), 0.0)
    assert machine.reason(0.1).code == "connecting"
    machine.handle(fx.DialFailed(ALDER, {"/ip4/127.0.0.1/tcp/1": "refused"}), 0.2)
    reason = machine.reason(5.1)
    assert reason.code == "bootstrap_unreachable"
    assert "0 of 2" in reason.text
    assert reason.details["addresses"] == [
        {"addr": "/ip4/127.0.0.1/tcp/1", "cause": "refused"},
        {"addr": "/dns/nowhere/tcp/2", "cause": "timeout"},
    ]


def test_each_change_is_told_once_and_silence_at_the_time_of_the_report() -> None:
    machine = make(alder=("/ip4/127.0.0.1/tcp/1",), birch=("/dns/nowhere/tcp/2",))
    refused = fx.DialFailed(ALDER, {"/ip4/127.0.0.1/tcp/1": "refused"})
    assert emitted(machine.handle(fx.Started(), 0.0)) == ["state_changed"], "whom it asks"
    assert emitted(machine.handle(refused, 0.2)) == []
    assert emitted(machine.handle(fx.TimerFired("bootstrap/report"), 5.0)) == ["state_changed"]
    assert "tcp/1 refused, /dns/nowhere/tcp/2 timeout" in machine.reason(5.0).text
    assert emitted(machine.handle(fx.TimerFired("bootstrap/retry"), 6.0)) == []
    assert emitted(machine.handle(refused, 6.1)) == [], "the same again"
    found = fx.DialFailed(BIRCH, {"/dns/nowhere/tcp/2": "name_not_found"})
    assert emitted(machine.handle(found, 6.2)) == ["state_changed"]


def test_retries_are_spaced_and_double_up_to_a_bound() -> None:
    machine = make(alder=("/ip4/127.0.0.1/tcp/1",))
    effects, delays = machine.handle(fx.Started(), 0.0), []
    for _ in range(10):
        delays += [effect.delay_s for effect in effects if isinstance(effect, fx.SetTimer)]
        effects = machine.handle(fx.TimerFired("bootstrap/retry"), 0.0)
    assert delays[0] <= 1.25
    assert all(delay <= 75.0 for delay in delays)
    assert delays[-1] >= 45.0
