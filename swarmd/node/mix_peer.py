"""A peer that does nothing but outer rounds: what `swarmd bench mix` measures.

Real are the transport and its links, driver and slots, the compute worker in a process of its own,
and the round machine. Left out is what would only hide the rounds' own patience: there is no
membership to notice that a peer is gone, so nobody is told; no leases and no pipeline. The inner
phase of a round is one tiny micro-batch and one step, so that there is something to average.

    python -m swarmd.node.mix_peer --run FILE --cache DIR [--threads N]

A JSON object a line. Out: `peer`, `addresses`, `bulk_addresses`; in: `others`, the same of each by
its id; out: `ready`, the coordinates of the vector; in: `go`; out, for each round: `round`,
`outcome`, `included`, `at_s` on the system's monotonic clock; at the end `digest`, of the weights,
or `failed`. When standard input ends, so does the peer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import trio

from swarmd.buffers import SlotPool
from swarmd.compute_api import WorkerConfig
from swarmd.net.swarm_transport import SwarmTransport
from swarmd.node.driver import Driver
from swarmd.node.lane import ComputeLane
from swarmd.node.late_store import LateStore
from swarmd.node.process_backend import ProcessBackend
from swarmd.node.slot_plan import OUTPUT_RESERVE, slot_classes
from swarmd.protocols import effects as fx
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.jobs import Forward, Job, JobResult, StageCall, Step
from swarmd.protocols.outer_rules import OuterRules
from swarmd.protocols.rounds import RoundKeeper
from swarmd.run_config import RunConfig, run_from_canonical

ROUND_EVENTS = ("round_committed", "round_partial", "round_skipped")
LINE_BYTES_MAX = 1 << 20
REDIAL_S = 0.5
"""Whoever dials first may find the other one not there yet; and a link may be lost."""


class MixMachine:
    """One replica of a stage whose others are known from the start.

    Emits ready (elements), ROUND_EVENTS, rounds/ended, digest (digest), failed (why).
    """

    def __init__(self, own: PeerId, run: RunConfig, others: Mapping[PeerId, Mapping[str, Any]]):
        self._own = own
        self._run = run
        self._others = others
        self._members = sorted([own, *others])
        self._numbers = itertools.count()
        self._keeper = RoundKeeper(
            own,
            0,
            run.shape,
            OuterRules(**asdict(run.outer)),
            next_job_id=lambda: next(self._numbers),
        )
        self._linked: set[PeerId] = set()
        self._elements: int | None = None
        self._is_ready = False
        self._round = 0
        self._asked: dict[int, str] = {}
        """Our own jobs: forward, step, digest."""

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        match event:
            case fx.Started():
                return [*self._meet(), fx.LoadStage(0)]
            case fx.TimerFired("redial"):
                return self._dial()
            case fx.DialFailed():
                return [fx.SetTimer("redial", REDIAL_S)]
            case fx.ComputeReady(info):
                self._elements = info["parameters"]
                return self._look_whether_ready()
            case fx.Command("go"):
                present = dict.fromkeys(self._members, 0)
                effects = self._keeper.set_replicas(present, now_s)
                return self._follow([*effects, *self._keeper.start(0, now_s), *self._train()])
            case fx.ComputeDone(job_id, result) if job_id in self._asked:
                return self._done(self._asked.pop(job_id), result, now_s)
            case fx.ComputeFailed(job_id, failure) if job_id in self._asked:
                return [_failed(f"{self._asked.pop(job_id)}: {failure.code} {failure.text}")]
            case fx.ComputeLost(text):
                return [_failed(text)]
        effects = self._note_link(event)
        effects += self._follow(self._keeper.handle(event, now_s))
        return [*effects, *self._look_whether_ready()]

    def _meet(self) -> list[fx.Effect]:
        locations: list[fx.Effect] = [
            fx.Locate(peer, tuple(other["bulk_addresses"]))
            for peer, other in sorted(self._others.items())
        ]
        return [*locations, *self._dial()]

    def _dial(self) -> list[fx.Effect]:
        """One of two dials."""
        return [
            fx.Dial(peer, tuple(other["addresses"]))
            for peer, other in sorted(self._others.items())
            if peer > self._own and peer not in self._linked
        ]

    def _note_link(self, event: fx.Event) -> list[fx.Effect]:
        """A lost link is dialled again, as membership does where there is one."""
        match event:
            case fx.LinkUp(peer):
                self._linked.add(peer)
            case fx.LinkDown(peer):
                self._linked.discard(peer)
                return [fx.SetTimer("redial", REDIAL_S)]
        return []

    def _look_whether_ready(self) -> list[fx.Effect]:
        if self._is_ready or self._elements is None or self._linked != set(self._others):
            return []
        self._is_ready = True
        return [fx.Emit("ready", {"elements": self._elements})]

    # -------------------------------------------------------------------------------------- rounds

    def _train(self) -> list[fx.Effect]:
        """The inner phase: every member has a micro-batch of its own."""
        place = self._members.index(self._own)
        micro_batch = MicroBatchId(self._round, place)
        return [
            self._ask("forward", Forward(micro_batch, self._round, train=True)),
            self._ask("step", Step(self._round)),
        ]

    def _ask(self, name: str, job: Job) -> fx.Compute:
        job_id = next(self._numbers)
        self._asked[job_id] = name
        return fx.Compute(job_id, job)

    def _done(self, name: str, result: JobResult, now_s: float) -> list[fx.Effect]:
        if name == "step":
            samples = self._run.micro_batch_samples
            return self._follow(self._keeper.inner_ended(self._round, samples, now_s))
        if name == "digest":
            return [fx.Emit("digest", {"digest": result.data["digest"]})]
        return []

    def _follow(self, effects: list[fx.Effect]) -> list[fx.Effect]:
        """And the next inner phase where a round has ended."""
        more: list[fx.Effect] = []
        for effect in effects:
            if isinstance(effect, fx.Emit) and effect.name == "rounds/ended":
                self._round = effect.fields["round"] + 1
                is_over = self._round >= self._run.rounds
                more += [self._ask("digest", StageCall("digest"))] if is_over else self._train()
        return [*effects, *more]


def _failed(why: str) -> fx.Emit:
    return fx.Emit("failed", {"why": why})


# ----------------------------------------------------------------------------------------- process


async def take_part(run: RunConfig, cache: Path, threads: int) -> None:
    """Until standard input ends."""
    store = LateStore()
    transport = SwarmTransport(os.urandom(32), ["/ip4/127.0.0.1/tcp/0"], store)
    lines = _lines(trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())))
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        _tell(
            peer=transport.peer_id,
            addresses=list(transport.addresses()),
            bulk_addresses=list(transport.bulk_addresses()),
        )
        others = {PeerId(peer): other for peer, other in (await anext(lines))["others"].items()}
        slots = SlotPool(slot_classes(run, 1), output_reserve=OUTPUT_RESERVE)
        store.fill(slots)
        config = WorkerConfig(run=run, stage=0, threads=threads, cache_dir=cache)
        machine = MixMachine(transport.peer_id, run, others)
        driver = Driver(
            machine, transport, slots, on_emit=_emitted, on_load=lambda _: lane.load_nowait(config)
        )
        backend = ProcessBackend(config, slots, nursery=nursery)
        gone = partial(_tell, failed="the worker cannot be started")
        lane = ComputeLane(backend, driver.put, on_gone=lambda *_: gone())
        driver.lane = lane
        nursery.start_soon(lane.run)
        nursery.start_soon(driver.run)
        async for _ in lines:
            driver.put(fx.Command("go"))
        nursery.cancel_scope.cancel()


def _emitted(emit: fx.Emit) -> None:
    if emit.name in ROUND_EVENTS:
        fields = emit.fields
        _tell(
            round=fields["round"],
            outcome=emit.name.removeprefix("round_"),
            included=len(fields["included"]),
            at_s=time.monotonic(),
        )
    elif emit.name == "ready":
        _tell(ready=emit.fields["elements"])
    elif emit.name == "digest":
        _tell(digest=emit.fields["digest"])
    elif emit.name == "failed":
        _tell(failed=emit.fields["why"])


def _tell(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


async def _lines(stream: trio.lowlevel.FdStream) -> AsyncIterator[dict[str, Any]]:
    buffer = b""
    async for chunk in stream:
        buffer += chunk
        *whole, buffer = buffer.split(b"\n")
        assert len(buffer) < LINE_BYTES_MAX, "a line is short"
        for line in whole:
            yield json.loads(line)


def main(arguments: list[str]) -> int:
    """See the header."""
    parser = argparse.ArgumentParser(prog="python -m swarmd.node.mix_peer")
    parser.add_argument("--run", type=Path, required=True, help="canonical bytes of a RunConfig")
    parser.add_argument("--cache", type=Path, required=True, help="where the corpus is packed")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    options = parser.parse_args(arguments)
    run = run_from_canonical(options.run.read_bytes())
    trio.run(take_part, run, options.cache, options.threads)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
