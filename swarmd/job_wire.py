"""What the daemon and its compute worker say to each other, as bytes. No I/O.

A frame is four bytes of length, then one msgpack value. Every value is built and read by a function
here that names its fields: nothing is pickled, and no tensor passes (they lie in slots).

    daemon                                        worker
    ["load", {config, slot_classes, life,
              factory}]                      ->
                                             <-   ["ready", info], or ["lost", code, text] and exit
    ["job", number, job, output slot]        ->
                                             <-   ["done", number, result, output bytes]
                                                  or ["failed", number, code, text],
                                                  or ["lost", code, text] and exit
    ["stop"]                                 ->   exit

Both ends are of one version and trust each other: a frame that makes no sense is a bug, ValueError.
Values inside `args` and `data` are plain; a tuple arrives as a list.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgpack

from swarmd.compute_api import WorkerConfig
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
from swarmd.run_config import run_from_plain

FRAME_BYTES_MAX = 64 << 20
"""A job or a result without its tensors. Far above need; a length beyond it is garbage."""

_LENGTH = struct.Struct(">I")


# ------------------------------------------------------------------------------------------ frames


def pack_frame(value: Any) -> bytes:
    """Raises TypeError if `value` holds anything but plain values."""
    body: bytes = msgpack.packb(value, use_bin_type=True)
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {len(body)} bytes: tensors belong into slots")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Bytes in, values out, however the bytes were cut."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The values that `data` completes."""
        self._buffer += data
        values = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            values.append(msgpack.unpackb(body, raw=False, strict_map_key=False))
        return values


def unpack_frame(frame: bytes) -> Any:
    """The one value of a whole frame."""
    (value,) = FrameReader().feed(frame)
    return value


# -------------------------------------------------------------------------------------------- jobs


def pack_job(job: Job) -> bytes:
    """Raises TypeError if `args` hold anything but plain values."""
    body: bytes = msgpack.packb(_job_to_plain(job), use_bin_type=True)
    return body


def unpack_job(body: bytes) -> Job:
    return _job_from_plain(msgpack.unpackb(body, raw=False, strict_map_key=False))


def _job_to_plain(job: Job) -> list[Any]:
    match job:
        case Forward():
            return [
                "forward",
                _micro_batch_to_plain(job.micro_batch),
                job.attempt,
                job.train,
                _ref_to_plain(job.input),
            ]
        case Backward():
            return [
                "backward",
                _micro_batch_to_plain(job.micro_batch),
                job.attempt,
                _ref_to_plain(job.gradient),
                job.accumulate,
            ]
        case Forget():
            return ["forget", _micro_batch_to_plain(job.micro_batch), job.attempt]
        case Step():
            return ["step", job.step]
        case StageCall():
            inputs = [_ref_to_plain(ref) for ref in job.inputs]
            return ["call", job.name, job.args, inputs, job.output_bytes]


def _job_from_plain(plain: list[Any]) -> Job:
    match plain:
        case ["forward", micro_batch, attempt, train, ref]:
            return Forward(
                _micro_batch_from_plain(micro_batch), attempt, train, _ref_from_plain(ref)
            )
        case ["backward", micro_batch, attempt, ref, accumulate]:
            gradient = _ref_from_plain(ref)
            assert gradient is not None, "a backward without a gradient"
            return Backward(_micro_batch_from_plain(micro_batch), attempt, gradient, accumulate)
        case ["forget", micro_batch, attempt]:
            return Forget(_micro_batch_from_plain(micro_batch), attempt)
        case ["step", step]:
            return Step(step)
        case ["call", name, args, inputs, output_bytes]:
            refs = tuple(ref for ref in map(_ref_from_plain, inputs) if ref is not None)
            return StageCall(name, args, refs, output_bytes)
    raise ValueError(f"no job: {plain!r:.200}")


def result_to_plain(result: JobResult) -> list[Any]:
    """Without `output`: the daemon knows which slot it lent."""
    return [
        result.samples,
        result.tokens,
        result.loss_sum,
        result.busy_s,
        result.cpu_s,
        result.data,
    ]


def result_from_plain(plain: list[Any], output: BufferRef | None) -> JobResult:
    """`output`: the lent slot at the size that was written, or None."""
    samples, tokens, loss_sum, busy_s, cpu_s, data = plain
    return JobResult(
        output=output,
        samples=samples,
        tokens=tokens,
        loss_sum=loss_sum,
        busy_s=busy_s,
        cpu_s=cpu_s,
        data=data,
    )


def inputs_of(job: Job) -> tuple[BufferRef, ...]:
    """The slots a job reads."""
    match job:
        case Forward(input=BufferRef() as ref) | Backward(gradient=ref):
            return (ref,)
        case StageCall():
            return job.inputs
    return ()


def output_bytes_of(job: Job, payload_bytes_max: int) -> int:
    """How large a slot to lend a job for what it writes; 0: it writes nothing.

    payload_bytes_max: the largest activation or gradient of the stage, as the worker reported.
    """
    match job:
        case Forward() | Backward():
            return payload_bytes_max
        case StageCall():
            return job.output_bytes
    return 0


def _micro_batch_to_plain(micro_batch: MicroBatchId) -> list[Any]:
    return [micro_batch.round, micro_batch.index, micro_batch.held_out]


def _micro_batch_from_plain(plain: list[Any]) -> MicroBatchId:
    round_number, index, held_out = plain
    return MicroBatchId(round_number, index, held_out)


def _ref_to_plain(ref: BufferRef | None) -> list[int] | None:
    return None if ref is None else [ref.slot, ref.generation, ref.size_bytes]


def _ref_from_plain(plain: list[int] | None) -> BufferRef | None:
    return None if plain is None else BufferRef(*plain)


# ------------------------------------------------------------------------------------------ config


def config_to_plain(config: WorkerConfig) -> dict[str, Any]:
    return {
        "run": config.run.canonical(),
        "stage": config.stage,
        "device": config.device,
        "threads": config.threads,
        "micro_batch_max": config.micro_batch_max,
        "recompute": config.recompute,
        "memory_max_bytes": config.memory_max_bytes,
        "cache_dir": str(config.cache_dir),
        "data_source": config.data_source,
        "state_file": None if config.state_file is None else str(config.state_file),
        "injection": list(config.injection),
    }


def config_from_plain(plain: dict[str, Any]) -> WorkerConfig:
    run = msgpack.unpackb(plain["run"], raw=False)
    state_file = plain["state_file"]
    return WorkerConfig(
        run=run_from_plain(run),
        stage=plain["stage"],
        device=plain["device"],
        threads=plain["threads"],
        micro_batch_max=plain["micro_batch_max"],
        recompute=plain["recompute"],
        memory_max_bytes=plain["memory_max_bytes"],
        cache_dir=Path(plain["cache_dir"]),
        data_source=plain["data_source"],
        state_file=None if state_file is None else Path(state_file),
        injection=tuple(plain["injection"]),
    )
