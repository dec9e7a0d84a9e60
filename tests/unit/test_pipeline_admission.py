"""What a machine takes from a peer, refuses, ignores and counts (WIRE-02)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_bench import HEAD, HEAD2, MB, NEXT, NEXT2, Bench
from pipeline_worker import FAST_LIMITS

from swarmd.protocols import effects as fx
from swarmd.protocols.errors import LocalProtocolError
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.jobs import Backward, JobFailure, JobResult
from swarmd.protocols.jobs import Forward as ForwardJob
from swarmd.protocols.limits import ROUNDS_OPEN_MAX
from swarmd.protocols.messages import pipeline as wire
from swarmd.protocols.pipeline_shape import micro_batch_ref
from swarmd.protocols.routing import Candidate

# -------------------------------------------------------------------------------- rules broken


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"to_stage": 2}, "wrong_stage"),
        ({"to_stage": 0}, "wrong_stage"),
        ({"basis_version": 1}, "wrong_basis"),
        ({"micro_batch": MicroBatchId(99, 0)}, "wrong_round"),
        ({"micro_batch": MicroBatchId(0, 12)}, "malformed"),
        ({"micro_batch": MicroBatchId(0, 1, held_out=True)}, "malformed"),
        ({"samples": 3}, "wrong_shape"),
        ({"tokens": 17}, "wrong_shape"),
        ({"with_payload": False}, "malformed"),
    ],
)
def test_forward_that_breaks_a_rule_is_refused_counted_and_leaves_nothing(
    changes: dict[str, Any], code: str
) -> None:
    bench = Bench(1)
    bench.forward(**changes)
    (refused,) = bench.sent(wire.Refused)
    assert refused.code == code
    assert refused.basis_version == (0 if code == "wrong_basis" else None)
    assert bench.statistics.counters.rejected == {(HEAD, code): 1}
    bench.check_untouched()
    bench.forward()
    assert bench.statistics.in_flight == {"forward": 1}, "its good messages still work"


def test_a_head_takes_no_forward() -> None:
    bench = Bench(0)
    bench.forward()
    assert bench.sent(wire.Refused)[0].code == "wrong_stage"
    bench.check_untouched()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"samples": 3}, "wrong_shape"),
        ({"basis_version": 4}, "wrong_basis"),
        ({"with_payload": False}, "malformed"),
    ],
)
def test_nonsense_instead_of_a_gradient_is_counted_and_asked_for_elsewhere(
    changes: dict[str, Any], code: str
) -> None:
    bench = Bench(1)
    bench.forward()
    bench.finish_job(ForwardJob, output=bench.slot())
    (first,) = bench.sent(wire.Forward)
    both = (Candidate(NEXT, 1, 100.0), Candidate(NEXT2, 1, 100.0))
    bench.do(bench.machine.set_next_stage(both, 0.0))
    bench.gradient(first.ref.attempt, **changes)
    assert bench.statistics.counters.rejected == {(NEXT, code): 1}
    (send,) = [e for e in bench.out if isinstance(e, fx.Send)]
    assert send.peer == NEXT2
    assert bench.sent(wire.Forward)[0].first_attempt == first.ref.attempt
    assert len(bench.slots) == 1, "only what was sent is kept"


@pytest.mark.parametrize(
    ("peer", "attempt", "micro_batch"),
    [(NEXT2, 0, MB), (NEXT, 1, MB), (NEXT, 0, MicroBatchId(0, 1))],
)
def test_answer_to_no_open_question_changes_nothing(
    peer: PeerId, attempt: int, micro_batch: MicroBatchId
) -> None:
    bench = Bench(1)
    bench.forward()
    bench.finish_job(ForwardJob, output=bench.slot())
    bench.gradient(attempt, peer, micro_batch=micro_batch)
    ref = micro_batch_ref(micro_batch, attempt)
    bench.tell(fx.Arrived(peer, wire.Busy(ref=ref), None))
    bench.tell(fx.Arrived(peer, wire.Refused(ref=ref, code="from the future"), None))
    assert bench.statistics.in_flight == {"away": 1}
    assert bench.statistics.counters.stale_answers == 3
    assert len(bench.slots) == 1


def test_unknown_refusal_code_is_a_refusal_like_any_other() -> None:
    bench = Bench(1)
    bench.forward()
    bench.finish_job(ForwardJob, output=bench.slot())
    refused = wire.Refused(ref=micro_batch_ref(MB, 0), code="from the future")
    bench.tell(fx.Arrived(NEXT, refused))
    assert bench.statistics.in_flight == {"routing": 1}
    assert bench.statistics.peers[0].score < 1.0


@given(st.integers(0, 2**32 - 1))
def test_any_messages_in_any_order_raise_nothing_and_leave_nothing(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(1)
    for _ in range(40):
        bench.now_s += rng.random() * 0.2
        micro_batch = MicroBatchId(rng.randrange(2), rng.randrange(3), rng.random() < 0.2)
        peer = rng.choice((HEAD, HEAD2, NEXT))
        attempt = rng.randrange(4)
        ref = micro_batch_ref(micro_batch, attempt)
        has_payload = rng.random() < 0.8
        match rng.randrange(7):
            case 0 | 1:
                bench.forward(
                    peer,
                    micro_batch=micro_batch,
                    attempt=attempt,
                    first_attempt=rng.randrange(attempt + 1),
                    with_payload=has_payload,
                    samples=rng.choice((1, 2, 2, 2)),
                )
            case 2:
                bench.gradient(attempt, peer, micro_batch=micro_batch, with_payload=has_payload)
            case 3:
                bench.tell(fx.Arrived(peer, wire.Busy(ref=ref, retry_in_s=rng.random())))
            case 4:
                bench.tell(fx.Arrived(peer, wire.Refused(ref=ref, code="malformed")))
            case 5:
                bench.tell(fx.Arrived(peer, wire.Cancel(ref=ref, code="done_elsewhere")))
            case 6 if bench.jobs:
                job_id = rng.choice(sorted(bench.jobs))
                job = bench.jobs.pop(job_id)
                is_real = isinstance(job, ForwardJob | Backward)
                result = JobResult(output=bench.slot() if is_real else None, samples=2)
                bench.tell(fx.ComputeDone(job_id, result))
    bench.tell(fx.LinkDown(HEAD, "lost"))
    bench.tell(fx.LinkDown(HEAD2, "lost"))
    bench.tell(fx.LinkDown(NEXT, "lost"))
    for job_id in sorted(bench.jobs):
        bench.tell(fx.ComputeFailed(job_id, JobFailure("cancelled")))
    assert not bench.slots
    assert bench.machine.is_empty


# ----------------------------------------------------------------------------- nobody's fault


def test_no_slot_is_busy_and_no_fault() -> None:
    bench = Bench(1)
    message = wire.Forward(
        ref=micro_batch_ref(MB, 1),
        first_attempt=1,
        to_stage=1,
        basis_version=0,
        samples=2,
        tokens=16,
        deadline_s=5.0,
    )
    bench.tell(fx.Arrived(HEAD, message, None, payload_refused=True))
    assert len(bench.sent(wire.Busy)) == 1
    assert not bench.statistics.counters.rejected


def test_later_round_is_busy_until_the_gate_opens() -> None:
    bench = Bench(1)
    bench.forward(micro_batch=MicroBatchId(1, 0))
    assert len(bench.sent(wire.Busy)) == 1
    bench.machine.set_round_gate(1)
    bench.forward(micro_batch=MicroBatchId(1, 0))
    assert bench.out[-1] == fx.Emit("pipeline/first_of_round", {"round": 1})


def test_round_that_nobody_remembers_is_refused_as_late_without_blame() -> None:
    bench = Bench(1)
    bench.machine.set_round_gate(2)
    bench.do(bench.machine.finish_round(ROUNDS_OPEN_MAX, 0.0))
    bench.do(bench.machine.hold(False, 0.0))
    bench.forward(micro_batch=MicroBatchId(0, 0))
    assert bench.sent(wire.Refused)[0].code == "late"
    bench.forward(micro_batch=MicroBatchId(1, 0))
    assert not bench.sent(wire.Refused)
    assert not bench.statistics.counters.rejected


def test_queue_is_bounded_and_says_busy_with_patience() -> None:
    bench = Bench(1, replace(FAST_LIMITS, in_flight_max=9, forward_queue_max=3, lane_depth=2))
    for index in range(8):
        bench.forward(micro_batch=MicroBatchId(0, index), attempt=index)
    assert bench.statistics.in_flight == {"queued": 3, "forward": 2}
    (busy,) = bench.sent(wire.Busy)
    assert 0 < busy.retry_in_s <= FAST_LIMITS.busy_retry_s_max
    assert bench.statistics.counters.busy_sent == 3


def test_what_is_away_counts_as_in_flight_too() -> None:
    bench = Bench(1, replace(FAST_LIMITS, in_flight_max=3, forward_queue_max=3))
    for index in range(3):
        bench.forward(micro_batch=MicroBatchId(0, index), attempt=index)
        bench.finish_job(ForwardJob, output=bench.slot())
    assert bench.statistics.in_flight == {"away": 3}
    bench.forward(micro_batch=MicroBatchId(0, 3))
    assert len(bench.sent(wire.Busy)) == 1


def test_without_a_worker_everything_is_busy() -> None:
    bench = Bench(1)
    bench.tell(fx.ComputeLost("gone"))
    bench.forward()
    assert len(bench.sent(wire.Busy)) == 1
    bench.check_untouched()


def test_draining_and_expired_are_refused_without_blame() -> None:
    bench = Bench(1)
    bench.forward(deadline_s=0.0)
    assert bench.sent(wire.Refused)[0].code == "expired"
    bench.do(bench.machine.drain(True, 0.0))
    bench.forward()
    assert bench.sent(wire.Refused)[0].code == "draining"
    assert not bench.statistics.counters.rejected
    bench.check_untouched()


def test_start_says_what_is_wrong() -> None:
    with pytest.raises(LocalProtocolError, match="wrong_stage"):
        Bench(1).machine.start(MB, 0.0)
    bench = Bench(0)
    assert not bench.machine.leads(MB)
    bench.do(bench.machine.start(MB, 0.0))
    assert bench.machine.leads(MB)
    with pytest.raises(LocalProtocolError, match="duplicate"):
        bench.machine.start(MB, 0.0)
    with pytest.raises(LocalProtocolError, match="wrong_round"):
        bench.machine.start(MicroBatchId(0, 99), 0.0)
    bench.do(bench.machine.drain(True, 0.0))
    with pytest.raises(LocalProtocolError, match="draining"):
        bench.machine.start(MicroBatchId(0, 1), 0.0)


def test_capacity_counts_what_is_in_flight_and_what_waits() -> None:
    bench = Bench(0, replace(FAST_LIMITS, in_flight_max=6, forward_queue_max=3))
    assert bench.machine.capacity(0.0) == 3
    for index in range(5):
        bench.do(bench.machine.start(MicroBatchId(0, index), 0.0))
    assert bench.machine.capacity(0.0) == 0
    bench.finish_job(ForwardJob, output=bench.slot())
    assert bench.machine.capacity(0.0) == 1
    bench.tell(fx.LinkDown(NEXT, "lost"))
    assert bench.machine.capacity(0.0) == 0


def test_foreign_events_and_jobs_are_left_alone() -> None:
    bench = Bench(1)
    foreign = bench.slot()
    for event in (
        fx.Started(),
        fx.Command("pause"),
        fx.TimerFired("gossip/probe"),
        fx.ComputeDone(999, JobResult(output=foreign)),
        fx.ComputeFailed(999, JobFailure("cancelled")),
    ):
        assert bench.tell(event) == []
    assert bench.slots == {foreign}
