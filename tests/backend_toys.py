"""A worker without torch, whose every answer depends on all jobs before it. For tests of backends.

Its module is importable in the worker process too (PYTHONPATH), under the name in `TOY`.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmd.compute_api import WorkerConfig
from swarmd.errors import ComputeError, JobFailed
from swarmd.protocols.ids import MicroBatchId
from swarmd.protocols.jobs import Backward, Forward, Job, JobResult, StageCall
from swarmd.run_config import (
    BoundaryConfig,
    DataConfig,
    InnerConfig,
    ModelConfig,
    OuterConfig,
    RunConfig,
)

TOY = "backend_toys:ToyWorker"
TESTS_FOLDER = str(Path(__file__).parent)
PAYLOAD_BYTES_MAX = 5000

TINY_RUN = RunConfig(
    name="tiny",
    preset="",
    model=ModelConfig(vocab_size=16, width=8, layers=2, heads=2, kv_heads=1, ff_width=8),
    boundary=BoundaryConfig(rank=4),
    inner=InnerConfig(),
    outer=OuterConfig(),
    data=DataConfig(),
    layer_ranges=((0, 0), (1, 1)),
    inner_steps=4,
    total_steps=8,
    sequence_tokens=4,
    micro_batch_tokens=8,
    batch_tokens=16,
    seed=11,
)


def toy_config(**changes: Any) -> WorkerConfig:
    values: dict[str, Any] = {"run": TINY_RUN, "stage": 1, "cache_dir": Path("/nonexistent")}
    return WorkerConfig(**{**values, **changes})


def forward(number: int, **changes: Any) -> Forward:
    """A forward-only job. Two micro-batches make a step, eight a round."""
    return Forward(MicroBatchId(0, number), 0, **{"train": False, **changes})


@dataclass(frozen=True)
class ToyAnswer:
    result: JobResult
    output_bytes: int = 0


class ToyWorker:
    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.before_job: Callable[[Job], None] = lambda job: None
        self.slice = config.micro_batch_max or 4
        self.chain = hashlib.blake2b(config.run.canonical(), digest_size=16).digest()
        if config.state_file is not None:
            if not config.state_file.exists():
                raise ComputeError("data_missing", f"{config.state_file} is not there")
            exec(config.state_file.read_text(), {"worker": self})

    def run(
        self, job: Job, inputs: Sequence[memoryview] = (), output: memoryview | None = None
    ) -> ToyAnswer:
        lowered: dict[str, Any] = {}
        while True:
            try:
                self.before_job(job)
                break
            except MemoryError:
                if self.slice == 1:
                    raise
                self.slice //= 2
                lowered = {"micro_batch_lowered_to": self.slice}
        if isinstance(job, StageCall):
            answer = getattr(self, f"call_{job.name}")(job.args, inputs, output)
            return answer if isinstance(answer, ToyAnswer) else ToyAnswer(JobResult(data=answer))
        digest = hashlib.blake2b(self.chain, digest_size=16)
        digest.update(f"{type(job).__name__} {getattr(job, 'micro_batch', '')}".encode())
        for view in inputs:
            digest.update(view)
        self.chain = digest.digest()
        if not isinstance(job, (Forward, Backward)):
            return ToyAnswer(JobResult(data={"chain": self.chain}))
        assert output is not None
        size = 1000 + self.chain[0] * 8
        output[:size] = (self.chain * (size // 16 + 1))[:size]
        result = JobResult(None, 2, 8, 1.5, data={"chain": self.chain, **lowered})
        return ToyAnswer(result, size)

    # ---------------------------------------------------------------------------------- StageCalls

    def call_info(self, args: dict[str, Any], *_: Any) -> dict[str, Any]:
        return {"payload_bytes_max": PAYLOAD_BYTES_MAX, "device": "cpu", "slice": self.slice}

    def call_echo(self, args: dict[str, Any], inputs: Sequence[memoryview], output: Any) -> Any:
        """The inputs joined into the output; `text` back."""
        body = b"".join(inputs)
        if output is not None:
            output[: len(body)] = body
        return ToyAnswer(JobResult(data=args), len(body) if output is not None else 0)

    def call_fail(self, args: dict[str, Any], *_: Any) -> dict[str, Any]:
        raise JobFailed(args["code"], args["text"])

    def call_raise(self, args: dict[str, Any], *_: Any) -> dict[str, Any]:
        raise {"memory": MemoryError, "value": ValueError, "runtime": RuntimeError}[args["kind"]](
            args["text"]
        )

    def call_sleep(self, args: dict[str, Any], *_: Any) -> dict[str, Any]:
        time.sleep(args["s"])
        return {}

    def call_hang(self, args: dict[str, Any], *_: Any) -> dict[str, Any]:
        """Until killed. `mark`: a file that is there once the job runs."""
        Path(args["mark"]).touch()
        threading.Event().wait()
        return {}

    def call_wait(self, args: dict[str, Any], *_: Any) -> ToyAnswer:
        """Until `until` is there; with an output."""
        Path(args["mark"]).touch()
        while not Path(args["until"]).exists():
            time.sleep(0.01)
        return ToyAnswer(JobResult(), 10)

    def call_hold_interpreter(self, args: dict[str, Any], *_: Any) -> dict[str, Any]:
        Path(args["mark"]).touch()
        return {"sum": sum(range(10**12))}  # one C call: no other thread runs until it is done

    def call_exit(self, args: dict[str, Any], *_: Any) -> dict[str, Any]:
        os._exit(args["status"])

    def call_say(self, args: dict[str, Any], *_: Any) -> dict[str, Any]:
        sys.stderr.write(args["text"])
        sys.stderr.flush()
        return {}

    def call_process(self, args: dict[str, Any], *_: Any) -> dict[str, Any]:
        """What the process looks like from inside."""
        with open("/proc/self/oom_score_adj", encoding="ascii") as file:
            oom_score = int(file.read())
        return {
            "modules": sorted(sys.modules),
            "oom_score": oom_score,
            "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
        }
