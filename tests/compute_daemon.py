"""A daemon's process with nothing but a worker, for tests that kill or stop it.

    python compute_daemon.py toy|stage JOB FOLDER

Prints the worker's pid as soon as it is ready, runs JOB (`idle` for none; its mark is FOLDER/mark)
and prints what came of it. One JSON object a line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio
from backend_toys import TESTS_FOLDER, TINY_RUN, TOY, toy_config

from swarmd.buffers import SlotPool
from swarmd.node.process_backend import STAGE_FACTORY, ProcessBackend
from swarmd.node.worker_life import WorkerLimits
from swarmd.protocols.jobs import StageCall


async def main(kind: str, job: str, folder: Path) -> None:
    pool = SlotPool([(1 << 16, 4)])
    async with trio.open_nursery() as nursery:
        backend = ProcessBackend(
            toy_config(run=TINY_RUN, threads=1, cache_dir=folder),
            pool,
            nursery=nursery,
            limits=WorkerLimits(silence_s=3.0, tick_s=0.1),
            factory=TOY if kind == "toy" else STAGE_FACTORY,
            environment={"PYTHONPATH": TESTS_FOLDER},
        )
        info = await backend.start()
        say({"pid": info["pid"]})
        if job == "idle":
            await trio.sleep_forever()
        args = {"mark": str(folder / "mark"), "until": str(folder / "until")}
        result = await backend.submit(StageCall(job, args))
        say({"data": result.data, "has_torch": "torch" in sys.modules, "info": info})
        await backend.aclose()


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], Path(sys.argv[3]))
