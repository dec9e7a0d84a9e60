"""Asked again, answered twice, cancelled, given up: nothing counts twice and nothing stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pipeline_bench import HEAD, HEAD2, MB, NEXT, NEXT2, Bench
from pipeline_worker import FAST_LIMITS

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.jobs import Backward, Forget, JobFailure, JobResult
from swarmd.protocols.jobs import Forward as ForwardJob
from swarmd.protocols.messages import pipeline as wire
from swarmd.protocols.pipeline_shape import micro_batch_ref
from swarmd.protocols.routing import Candidate


def test_same_bytes_asked_again_while_at_it_are_answered_once_to_the_newest_question() -> None:
    bench = Bench(2)
    bench.forward(attempt=3)
    bench.forward(attempt=9, first_attempt=3)
    assert len(bench.jobs) == 1
    bench.finish_job(ForwardJob, output=bench.slot(), loss_sum=5.0)
    (gradient,) = bench.sent(wire.Gradient)
    assert gradient.ref.attempt == 9
    bench.check_untouched()


def test_other_bytes_asked_again_begin_anew() -> None:
    bench = Bench(1)
    bench.forward(attempt=3)
    bench.finish_job(ForwardJob, output=bench.slot())
    bench.forward(attempt=9)
    assert any(isinstance(job, Forget) for job in bench.jobs.values())
    assert bench.statistics.in_flight == {"forward": 1}
    assert not bench.slots


@pytest.mark.parametrize("second_caller", [HEAD, HEAD2])
def test_asked_again_after_the_answer_it_computes_and_does_not_count(second_caller: PeerId) -> None:
    bench = Bench(2)
    bench.forward(attempt=3)
    first = bench.jobs[max(bench.jobs)]
    bench.finish_job(ForwardJob, output=bench.slot(), loss_sum=5.0)
    bench.forward(second_caller, attempt=4)
    second = bench.jobs[max(bench.jobs)]
    bench.finish_job(ForwardJob, output=bench.slot(), loss_sum=5.0)
    assert (first.accumulate, second.accumulate) == (True, False)
    assert first.attempt != second.attempt
    assert bench.sent(wire.Gradient)[0].ref.attempt == 4
    assert (bench.statistics.counters.counted, bench.statistics.counters.not_counted) == (1, 1)
    assert bench.statistics.pending == 1


def test_failed_gradient_may_be_counted_the_next_time() -> None:
    bench = Bench(2)
    bench.forward(attempt=3)
    job_id = max(bench.jobs)
    del bench.jobs[job_id]
    bench.tell(fx.ComputeFailed(job_id, JobFailure("out_of_memory", "x" * 10_000)))
    assert bench.sent(wire.Refused)[0].code == "out_of_memory"
    bench.forward(attempt=4)
    assert bench.jobs[max(bench.jobs)].accumulate
    assert bench.statistics.pending == 1


def test_earlier_answer_of_the_same_peer_wins_over_its_later_question() -> None:
    bench = Bench(1)
    bench.forward()
    bench.finish_job(ForwardJob, output=bench.slot())
    bench.now_s = FAST_LIMITS.hop_s_max
    bench.tell(fx.TimerFired("pipeline/wake"))
    (again,) = bench.sent(wire.Forward)
    assert (again.ref.attempt, again.first_attempt) == (1, 0)
    bench.gradient(0)
    (cancel,) = bench.sent(wire.Cancel)
    assert (cancel.ref.attempt, cancel.code) == (1, "done_already")
    assert bench.statistics.in_flight == {"backward": 1}
    assert bench.statistics.peers[0].score == 1.0


def test_first_gradient_wins_and_the_other_replica_is_told() -> None:
    bench = Bench(1)
    both = (Candidate(NEXT, 1, 100.0), Candidate(NEXT2, 1, 50.0))
    bench.do(bench.machine.set_next_stage(both, 0.0))
    bench.forward()
    bench.finish_job(ForwardJob, output=bench.slot())
    bench.now_s = FAST_LIMITS.hop_s_max
    bench.tell(fx.TimerFired("pipeline/wake"))
    assert [e.peer for e in bench.out if isinstance(e, fx.Send)] == [NEXT2]
    bench.gradient(1, NEXT2)
    (send,) = [e for e in bench.out if isinstance(e, fx.Send)]
    assert send.peer == NEXT
    assert bench.sent(wire.Cancel)[0].code == "done_elsewhere"
    bench.gradient(0)
    assert bench.statistics.counters.stale_answers == 1
    assert bench.statistics.in_flight == {"backward": 1}


def test_cancel_of_what_was_counted_is_reported_as_a_double_count() -> None:
    bench = Bench(2)
    bench.forward(attempt=3)
    bench.finish_job(ForwardJob, output=bench.slot(), loss_sum=5.0)
    cancel = wire.Cancel(ref=micro_batch_ref(MB, 3), code="done_elsewhere")
    bench.tell(fx.Arrived(HEAD, cancel))
    assert bench.statistics.counters.double_counts == 1


def test_cancel_frees_everything_and_passes_on() -> None:
    bench = Bench(1)
    bench.forward(attempt=3)
    bench.finish_job(ForwardJob, output=bench.slot())
    bench.tell(fx.Arrived(HEAD, wire.Cancel(ref=micro_batch_ref(MB, 2), code="expired")))
    assert bench.statistics.in_flight == {"away": 1}, "an older question's"
    bench.tell(fx.Arrived(HEAD, wire.Cancel(ref=micro_batch_ref(MB, 3), code="expired")))
    assert bench.sent(wire.Cancel)[0].ref.attempt == 0
    assert [type(job) for job in bench.jobs.values()] == [Forget]
    bench.check_untouched()


def test_lost_caller_frees_graph_and_slots_at_once() -> None:
    bench = Bench(1)
    bench.forward(HEAD)
    bench.forward(HEAD2, micro_batch=MicroBatchId(0, 1))
    bench.finish_job(ForwardJob, output=bench.slot())
    bench.tell(fx.LinkDown(HEAD, "lost"))
    assert [job.micro_batch for job in bench.jobs.values() if isinstance(job, Forget)] == [MB]
    assert bench.statistics.in_flight == {"forward": 1}
    assert not bench.slots
    bench.tell(fx.LinkDown(HEAD2, "lost"))
    bench.finish_job(ForwardJob, output=bench.slot())
    assert any(
        isinstance(job, Forget) and job.micro_batch.index == 1 for job in bench.jobs.values()
    )
    bench.check_untouched()


def test_expired_passage_is_forgotten_by_timer_and_the_caller_is_told() -> None:
    bench = Bench(1)
    bench.forward(deadline_s=0.5)
    bench.finish_job(ForwardJob, output=bench.slot())
    bench.now_s = 0.5
    bench.tell(fx.TimerFired("pipeline/wake"))
    assert bench.sent(wire.Refused)[0].code == "expired"
    assert bench.sent(wire.Cancel)[0].code == "expired"
    assert not any(isinstance(effect, fx.SetTimer) for effect in bench.out)
    bench.check_untouched()


def test_after_a_pause_of_our_own_the_inbox_is_read_before_anybody_is_blamed() -> None:
    bench = Bench(1)
    bench.forward()
    bench.finish_job(ForwardJob, output=bench.slot())
    bench.now_s = FAST_LIMITS.hop_s_max + 1.0
    bench.tell(fx.LoopLag(1.0))
    bench.tell(fx.TimerFired("pipeline/wake"))
    assert bench.sent(wire.Forward) == []
    bench.gradient(0)
    assert bench.statistics.faults == 0
    assert bench.statistics.in_flight == {"backward": 1}


def test_loss_that_is_not_finite_is_refused() -> None:
    for loss_sum in (float("nan"), float("inf"), 1e13):
        bench = Bench(2)
        bench.forward()
        bench.finish_job(ForwardJob, output=bench.slot(), loss_sum=loss_sum)
        assert bench.sent(wire.Refused)[0].code == "not_finite"
        bench.check_untouched()


# ---------------------------------------------------------------------------- time and links


def test_each_deadline_that_passes_doubles_the_next_one() -> None:
    bench = Bench(1, replace(FAST_LIMITS, micro_batch_s=60.0, hop_s_min=1.0, hop_s_max=20.0))
    for index in range(5):
        micro_batch = MicroBatchId(0, index)
        bench.forward(micro_batch=micro_batch, attempt=index, deadline_s=60.0)
        bench.finish_job(ForwardJob, output=bench.slot())
        bench.now_s += 0.1
        bench.gradient(index, micro_batch=micro_batch)
        bench.finish_job(Backward, output=bench.slot())
    bench.forward(micro_batch=MicroBatchId(0, 5), attempt=5, deadline_s=60.0)
    bench.finish_job(ForwardJob, output=bench.slot())
    waits_s = []
    for _ in range(4):
        (timer,) = [effect for effect in bench.out if isinstance(effect, fx.SetTimer)]
        waits_s.append(timer.delay_s)
        bench.now_s += timer.delay_s
        bench.tell(fx.TimerFired("pipeline/wake"))
    lo_s = 1.0  # one stage below
    assert waits_s == pytest.approx([lo_s, 2 * lo_s, 4 * lo_s, 8 * lo_s])


@pytest.mark.parametrize(("cause", "is_banned"), [("lost", True), ("closed", False)])
def test_link_that_ends_with_a_goodbye_brings_no_ban(cause: str, is_banned: bool) -> None:
    bench = Bench(1)
    bench.tell(fx.LinkDown(NEXT, cause))
    assert (bench.statistics.peers[0].banned_for_s > 0) == is_banned


def test_what_a_restarted_callee_held_is_sent_again_at_once() -> None:
    bench = Bench(1)
    bench.forward()
    bench.finish_job(ForwardJob, output=bench.slot())
    bench.do(bench.machine.set_next_stage((Candidate(NEXT, 2, 100.0),), 0.1))
    (again,) = bench.sent(wire.Forward)
    assert (again.ref.attempt, again.first_attempt) == (1, 0)
    bench.gradient(0)
    assert bench.statistics.counters.stale_answers == 1


# ------------------------------------------------------------------------------ at the worker


def test_earlier_gradient_goes_first_whatever_came_first() -> None:
    bench = Bench(1, replace(FAST_LIMITS, in_flight_max=8, forward_queue_max=8, lane_depth=1))
    micro_batches = [MicroBatchId(0, index) for index in (5, 0, 4, 1)]
    for attempt, micro_batch in enumerate(micro_batches):
        bench.forward(micro_batch=micro_batch, attempt=attempt)
        bench.finish_job(ForwardJob, output=bench.slot())
    bench.forward(micro_batch=MicroBatchId(0, 8))  # keeps the lane while the gradients arrive
    for attempt, micro_batch in enumerate(micro_batches):
        bench.gradient(attempt, micro_batch=micro_batch)
    bench.finish_job(ForwardJob, output=bench.slot())
    order = []
    for _ in micro_batches:
        (job,) = [job for job in bench.jobs.values() if isinstance(job, Backward)]
        order.append(job.micro_batch.index)
        bench.finish_job(Backward, output=bench.slot())
    assert order == [0, 1, 5, 4], "by inner step, then as they came"


def test_micro_batch_older_than_the_round_before_is_answered_and_not_counted() -> None:
    bench = Bench(1)
    bench.machine.set_round_gate(2)
    bench.forward()
    bench.finish_job(ForwardJob, output=bench.slot())
    bench.do(bench.machine.finish_round(1, 0.0))
    bench.gradient(0)
    (job,) = [job for job in bench.jobs.values() if isinstance(job, Backward)]
    assert not job.accumulate
    bench.finish_job(Backward, output=bench.slot())
    assert len(bench.sent(wire.Gradient)) == 1
    assert bench.statistics.pending == 0


def test_micro_batch_of_an_old_round_that_begins_anew_counts_into_the_present_step() -> None:
    """Its holder stood still, and meanwhile everybody went on by two rounds."""
    bench = Bench(1)
    bench.machine.set_round_gate(2)
    bench.do(bench.machine.finish_round(1, 0.0))
    bench.do(bench.machine.hold(False, 0.0))
    bench.forward()
    bench.finish_job(ForwardJob, output=bench.slot())
    bench.gradient(0)
    (job,) = [job for job in bench.jobs.values() if isinstance(job, Backward)]
    assert job.accumulate
    bench.finish_job(Backward, output=bench.slot())
    assert (bench.statistics.pending, bench.statistics.counters.counted) == (1, 1)
    bench.forward()
    bench.finish_job(ForwardJob, output=bench.slot())
    bench.gradient(1)
    (job,) = [job for job in bench.jobs.values() if isinstance(job, Backward)]
    assert not job.accumulate, "once, however old"


@pytest.mark.parametrize("fails", [False, True])
def test_backward_that_nobody_waits_for_leaves_no_graph(fails: bool) -> None:
    bench = Bench(1)
    bench.forward()
    bench.finish_job(ForwardJob, output=bench.slot())
    bench.gradient(0)
    bench.tell(fx.LinkDown(HEAD, "lost"))
    assert not any(isinstance(job, Forget) for job in bench.jobs.values()), "it is being used"
    job_id = max(bench.jobs)
    if fails:
        bench.tell(fx.ComputeFailed(job_id, JobFailure("not_finite")))
    else:
        bench.tell(fx.ComputeDone(job_id, JobResult(output=bench.slot(), samples=2)))
    assert any(isinstance(job, Forget) for job in bench.jobs.values()) == fails
    bench.check_untouched()


def test_dead_worker_is_given_nothing_before_the_next_is_ready() -> None:
    bench = Bench(1)
    for index in range(4):
        bench.forward(micro_batch=MicroBatchId(0, index), attempt=index)
    for job_id in sorted(bench.jobs):
        bench.tell(fx.ComputeFailed(job_id, JobFailure("worker_died")))
        assert not any(isinstance(effect, fx.Compute) for effect in bench.out)
    bench.tell(fx.ComputeLost("killed"))
    assert len(bench.sent(wire.Refused)) == 2
    bench.check_untouched()


def test_everything_is_given_up_at_once_when_told_so() -> None:
    bench = Bench(1)
    bench.forward()
    bench.finish_job(ForwardJob, output=bench.slot())
    bench.do(bench.machine.abandon("draining", 0.0))
    assert bench.sent(wire.Refused)[0].code == "draining"
    assert len(bench.sent(wire.Cancel)) == 1
    bench.check_untouched()
