"""Jobs, results and configs come through the wire as they went in, however the bytes are cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from backend_toys import TINY_RUN, toy_config
from hypothesis import given
from hypothesis import strategies as st

from swarmd.job_wire import (
    FRAME_BYTES_MAX,
    FrameReader,
    config_from_plain,
    config_to_plain,
    inputs_of,
    output_bytes_of,
    pack_frame,
    pack_job,
    result_from_plain,
    result_to_plain,
    unpack_frame,
    unpack_job,
)
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import (
    Backward,
    BufferRef,
    Forget,
    Forward,
    Job,
    JobResult,
    StageCall,
    Step,
)

numbers = st.integers(0, 2**40)
refs = st.builds(BufferRef, numbers, numbers, numbers)
micro_batches = st.builds(MicroBatchId, numbers, numbers, st.booleans())
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)  # fmt: skip
args = st.dictionaries(st.text(max_size=9), plain, max_size=4)
jobs: st.SearchStrategy[Job] = st.one_of(
    st.builds(Forward, micro_batches, numbers, st.booleans(), st.none() | refs),
    st.builds(Backward, micro_batches, numbers, refs, st.booleans()),
    st.builds(Forget, micro_batches, numbers),
    st.builds(Step, numbers),
    st.builds(StageCall, st.text(max_size=9), args, st.tuples(refs, refs) | st.just(()), numbers),
)
results = st.builds(
    JobResult,
    st.none(),
    numbers,
    numbers,
    st.none() | st.floats(allow_nan=False),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    args,
)


@given(jobs)
def test_a_job_survives(job: Job) -> None:
    assert unpack_job(pack_job(job)) == job


@given(results, st.none() | refs)
def test_a_result_survives_and_gets_the_slot_that_was_lent(
    result: JobResult, output: BufferRef | None
) -> None:
    there = unpack_frame(pack_frame(result_to_plain(result)))
    back = result_from_plain(there, output)
    assert back.output == output
    assert result_to_plain(back) == result_to_plain(result)


@given(st.lists(plain, max_size=4), st.integers(1, 7))
def test_frames_come_out_whole_however_they_are_cut(values: list[object], step: int) -> None:
    stream = b"".join(pack_frame(value) for value in values)
    reader, out = FrameReader(), []
    for start in range(0, len(stream), step):
        out.extend(reader.feed(stream[start : start + step]))
    assert out == values


def test_a_length_that_is_garbage_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(ValueError, match="frame of"):
        FrameReader().feed((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))


def test_a_tensor_in_a_job_is_refused() -> None:
    with pytest.raises(ValueError, match="slots"):
        pack_frame(bytes(FRAME_BYTES_MAX + 1))


def test_a_config_survives() -> None:
    config = toy_config(
        device="cuda:1",
        threads=2,
        micro_batch_max=3,
        recompute=True,
        data_source="text:/data/*",
        cache_dir=Path("/cache"),
        state_file=Path("/state"),
        injection=("oom@step=3",),
    )
    assert config_from_plain(unpack_frame(pack_frame(config_to_plain(config)))) == config
    assert config_from_plain(config_to_plain(toy_config())) == toy_config()
    assert config_from_plain(config_to_plain(toy_config())).run == TINY_RUN


def test_slots_of_a_job_are_told_from_it_alone() -> None:
    ref, micro_batch = BufferRef(1, 2, 3), MicroBatchId(0, 0)
    assert inputs_of(Forward(micro_batch, 0, True)) == ()
    assert inputs_of(Forward(micro_batch, 0, True, ref)) == (ref,)
    assert inputs_of(Backward(micro_batch, 0, ref)) == (ref,)
    assert inputs_of(StageCall("x", {}, (ref, ref))) == (ref, ref)
    assert inputs_of(Step(1)) == inputs_of(Forget(micro_batch, 0)) == ()
    assert output_bytes_of(Forward(micro_batch, 0, True), 99) == 99
    assert output_bytes_of(Backward(micro_batch, 0, ref), 99) == 99
    assert output_bytes_of(StageCall("x", output_bytes=7), 99) == 7
    assert output_bytes_of(Step(1), 99) == 0
