"""A swarm in one process: real machines, drivers, lanes and torch, joined by memory links.

What the daemon does with processes and libp2p, this does without them: fast, exact, and with any
fault that memory links know. Peers are trusted to sign nothing: `verify` says yes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import trio

from swarmd.buffers import SlotPool
from swarmd.checkpoints import CheckpointFolder
from swarmd.compute.inline_backend import InlineBackend
from swarmd.compute_api import WorkerConfig
from swarmd.home import home_at
from swarmd.net.memory import MemoryNetwork
from swarmd.node.disk_quota import DiskQuota
from swarmd.node.driver import Driver
from swarmd.node.files import FileLane
from swarmd.node.lane import ComputeLane
from swarmd.node.saved import states_in
from swarmd.node.slot_plan import slot_classes
from swarmd.protocols import assignment, lease_limits, membership_limits
from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId
from swarmd.protocols.jobs import Job, JobResult
from swarmd.protocols.leases import LeaseBook
from swarmd.protocols.membership import Membership
from swarmd.protocols.messages.gossip import PeerRecord
from swarmd.protocols.outer_rules import OuterRules
from swarmd.protocols.peer import PeerMachine
from swarmd.protocols.peer_setup import PeerSetup
from swarmd.protocols.pipeline_shape import PipelineLimits
from swarmd.protocols.round_surroundings import RoundLimits
from swarmd.run_config import RunConfig


def no_signature(body: bytes) -> bytes:
    return bytes(64)


def any_signature(peer: str, body: bytes, signature: bytes) -> bool:
    return True


JOB_S = 0.01
"""About what a job takes. By an IdleClock work takes no time, and a peer that works in no time has
done a whole run before anybody can have noticed that another one is dead."""


class PacedBackend(InlineBackend):
    """Each job is done at once and told after a fixed time, in which the other peers work."""

    async def submit(self, job: Job) -> JobResult:
        result = await super().submit(job)
        await trio.sleep(JOB_S)
        return result


@dataclass(slots=True)
class InProcessPeer:
    """One peer and what was told of it."""

    name: str
    machine: PeerMachine
    driver: Driver
    slots: SlotPool
    scope: trio.CancelScope
    told: list[fx.Emit] = field(default_factory=list)
    ended: trio.Event = field(default_factory=trio.Event)

    def names(self) -> list[str]:
        return [emit.name for emit in self.told]


class InProcessSwarm:
    """Start peers in the nursery; each knows the first one."""

    def __init__(
        self,
        run: RunConfig,
        folder: Path,
        nursery: trio.Nursery,
        *,
        pipeline_limits: PipelineLimits | None = None,
        seed: int = 1,
    ) -> None:
        self.run = run
        self.network = MemoryNetwork(latency_s=0.0005)
        self.peers: dict[str, InProcessPeer] = {}
        self._folder = folder
        self._nursery = nursery
        self._limits = pipeline_limits or PipelineLimits()
        self._seed = seed
        self._starts: Counter[str] = Counter()

    async def start(self, name: str, stage: int | None) -> InProcessPeer:
        """A peer that asks for `stage`; None: as the swarm decides. Once killed, it goes on with
        its disk."""
        self._starts[name] += 1
        slots = SlotPool(slot_classes(self.run, self._limits.in_flight_max), output_reserve=2)
        transport = self.network.transport(PeerId(name), slots)
        scope = trio.CancelScope()
        ready = trio.Event()
        box: list[InProcessPeer] = []

        async def live() -> None:
            with scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(transport.run)
                    peer = self._make(name, stage, transport, slots, scope, nursery)
                    box.append(peer)
                    nursery.start_soon(peer.driver.run)
                    ready.set()

        self._nursery.start_soon(live)
        await ready.wait()
        self.peers[name] = box[0]
        return box[0]

    def kill(self, name: str) -> None:
        """As SIGKILL: no goodbye."""
        self.network.stop(PeerId(name))
        self.peers.pop(name).scope.cancel()

    def _make(
        self,
        name: str,
        stage: int | None,
        transport: Any,
        slots: SlotPool,
        scope: trio.CancelScope,
        nursery: trio.Nursery,
    ) -> InProcessPeer:
        machine = self._machine(name, stage, transport)
        peer = InProcessPeer(name, machine, None, slots, scope)  # type: ignore[arg-type]
        lane = None

        def on_emit(emit: fx.Emit) -> None:
            peer.told.append(emit)
            if emit.name == "peer_ended":
                peer.ended.set()

        def on_load(wanted: fx.LoadStage) -> None:
            nonlocal lane
            files = peer.driver.files
            assert files is not None
            config = WorkerConfig(
                run=self.run,
                stage=wanted.stage,
                threads=1,
                cache_dir=self._folder / "cache",
                state_file=None if wanted.state is None else files.path_of(wanted.state),
            )

            def told(event: fx.Event) -> None:
                if isinstance(event, fx.ComputeReady):
                    event = fx.ComputeReady({**event.info, "state": wanted.state})
                peer.driver.put(event)

            if lane is None:
                lane = ComputeLane(PacedBackend(config, slots), told, on_gone=lambda *_: None)
                peer.driver.lane = lane
                nursery.start_soon(lane.run)
            lane.load_nowait(config)

        peer.driver = Driver(machine, transport, slots, on_emit=on_emit, on_load=on_load)
        peer.driver.files = FileLane(
            self._folder / name,
            slots,
            nursery,
            peer.driver.put,
            DiskQuota(home_at(self._folder / name), lambda: None),
        )
        peer.driver.files.checkpoints = self.checkpoints_of(name)
        guarded = CheckpointFolder(self._folder / name / "guarded", self.run.run_id, kept=1)
        peer.driver.files.guarded = guarded
        return peer

    def checkpoints_of(self, name: str) -> CheckpointFolder:
        return CheckpointFolder(self._folder / name / "checkpoints", self.run.run_id)

    def _machine(self, name: str, stage: int | None, transport: Any) -> PeerMachine:
        shape = self.run.shape
        record = PeerRecord(
            peer=name,
            incarnation=self._starts[name],
            version=0,
            run_id=self.run.run_id,
            name=name,
            phase="joining",
            addresses=tuple(transport.addresses()),
        )
        membership = Membership(
            record,
            membership_limits.local(),
            no_signature,
            any_signature,
            random.Random(f"{self._seed}/{name}"),
        )
        leases = LeaseBook(
            PeerId(name),
            self._starts[name],
            shape,
            lease_limits.local(),
            sign=no_signature,
            verify=any_signature,
        )
        entries = {
            peer.machine.peer: tuple(peer.machine.membership.record.addresses)
            for peer in list(self.peers.values())[:1]
        }
        found = states_in(self.checkpoints_of(name), stage)
        setup = PeerSetup(
            shape=shape,
            run_body=self.run.canonical(),
            needs=assignment.equal_needs(shape.stages),
            entries=entries,
            stage=stage,
            is_founder=not entries,
            saved=found.saved,
            has_history=found.has_history,
            pipeline_limits=self._limits,
            assignment_limits=assignment.local(),
            outer=OuterRules(**asdict(self.run.outer)),
            round_limits=RoundLimits.local(),
        )
        rng = random.Random(f"{self._seed}/{name}/peer")
        return PeerMachine(setup, membership, leases, rng, trio.current_time())


HANG_S = 600.0
"""A hang must end some time. By the clock of the loop, which is an IdleClock (idle_clock.py)."""


@asynccontextmanager
async def in_process_swarm(
    run: RunConfig, folder: Path, **settings: Any
) -> AsyncIterator[InProcessSwarm]:
    """Everything is cancelled at the end, and a test that hangs fails."""
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            yield InProcessSwarm(run, folder, nursery, **settings)
            nursery.cancel_scope.cancel()
