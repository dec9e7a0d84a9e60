"""One peer in its daemon: transport, compute worker and control socket around the peer's machine.

The daemon (swarmd/daemon.py) says when; this file holds what is alive. Status and answers are read
from the parts' statistics by report.py; nothing is kept twice.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import trio

from swarmd import __version__
from swarmd.buffers import SlotPool
from swarmd.compute_api import WorkerConfig
from swarmd.device_probe import probe_devices
from swarmd.devices import DeviceChoice, choose_devices
from swarmd.errors import UserError
from swarmd.events_log import EventLog
from swarmd.home import Home
from swarmd.home_files import raise_incarnation
from swarmd.identity import Identity, verify
from swarmd.injection import not_allowed
from swarmd.json_record import render, to_json
from swarmd.local_api.event_feed import EventFeed
from swarmd.local_api.server import serve
from swarmd.named_limits import NamedLimits, limits_of
from swarmd.net.lan_discovery import LanDiscovery
from swarmd.net.transport import Transport
from swarmd.node.driver import Driver
from swarmd.node.files import FileLane
from swarmd.node.handlers import control_handlers
from swarmd.node.lane import ComputeLane
from swarmd.node.late_store import LateStore
from swarmd.node.open_transport import open_lan_discovery, open_transport
from swarmd.node.peer_memory import PeerMemory
from swarmd.node.process_backend import ProcessBackend
from swarmd.node.report import Reporter
from swarmd.node.saved import FoundStates, saved_of
from swarmd.node.slot_plan import OUTPUT_RESERVE, slot_classes
from swarmd.partition import flops_per_token, stage_parameters
from swarmd.peer_config import PeerConfig
from swarmd.protocols import assignment, lease_limits, membership_limits
from swarmd.protocols import effects as fx
from swarmd.protocols.bootstrap import Bootstrap, BootstrapLimits
from swarmd.protocols.ids import PeerId, RunId
from swarmd.protocols.leases import LeaseBook
from swarmd.protocols.membership import Membership
from swarmd.protocols.messages.gossip import PeerRecord
from swarmd.protocols.outer_rules import OuterRules
from swarmd.protocols.peer import PeerMachine
from swarmd.protocols.peer_setup import PeerSetup
from swarmd.protocols.pipeline_shape import PipelineLimits
from swarmd.protocols.reasons import Reason
from swarmd.protocols.round_surroundings import RoundLimits
from swarmd.run_config import RunConfig
from swarmd.run_link import PeerAddress, by_peer
from swarmd.store import write_bytes

log = logging.getLogger("swarmd.node")

EXIT_CODES = {
    "run_complete": 0,
    "drained": 0,
    "drain_incomplete": 5,
    "identity_in_use_elsewhere": 77,
    "version_mismatch": 77,
    "banned": 77,
    "not_admitted": 77,
    "model_does_not_fit": 77,
}
"""Of the reasons with which a peer ends by itself; any other is a failure (1)."""
LOOK_S = 0.1
BYTES_PER_PARAMETER = 20
"""Weight, gradient, two moments, and the copy that graphs in flight keep; float32 each."""
IN_FLIGHT_MIN = 2
"""One is computed while the next one arrives. Above that a peer holds one for each stage: more keep
workers busier, and make gradients older. What matters is their number against the micro-batches of
a step (algorithms 3.3): 8 in flight at 4 a step ended 7 % above the plain loop after 60 steps of
`tiny` on four stages, 5 at 4 a step 6.3 % after 120."""


class PeerNode:
    """See the header. One life: `start_transport`, perhaps `fetch_run`, then `train`."""

    def __init__(
        self,
        home: Home,
        config: PeerConfig,
        identity: Identity,
        incarnation: int,
        started_at: str,
        *,
        stays: bool,
        is_founder: bool,
    ) -> None:
        self.home = home
        self.config = config
        self.identity = identity
        self.incarnation = incarnation
        self.started_at = started_at
        self.stays = stays
        self.is_founder = is_founder
        self.limits: NamedLimits = limits_of("wan")
        self.run: RunConfig | None = None
        self.machine: PeerMachine | None = None
        self.transport: Transport | None = None
        self.lan: LanDiscovery | None = None
        self.driver: Driver | None = None
        self.lane: ComputeLane | None = None
        self.slots: SlotPool | None = None
        self.bootstrap: Bootstrap | None = None
        self.feed = EventFeed(EventLog(home.events_file))
        self.reporter = Reporter(self)
        self._store = LateStore()
        self._nursery: trio.Nursery | None = None
        self._ended = trio.Event()
        self._outcome: tuple[str, int, str] = ("internal_error", 1, "")
        self._wanted_state: str | None = None
        self._device: DeviceChoice | None = None
        self.injection: tuple[str, ...] = ()
        self._memory: PeerMemory | None = None
        self._described: bytes | None = None
        self._described_event = trio.Event()

    @property
    def name(self) -> str:
        return self.config.name or "peer-" + self.identity.peer_id[-4:].lower()

    @property
    def run_id(self) -> str | None:
        return self.run.run_id if self.run is not None else None

    # ------------------------------------------------------------------------------------- phases

    async def serve_control(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """The control socket, from before anything else works until the end."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(serve, self.home, control_handlers(self))
            self.feed.publish("started", peer=self.identity.peer_id)
            task_status.started()
            await trio.sleep_forever()

    async def start_transport(self) -> None:
        """Listen. libp2p takes a second to import, so it happens while the socket answers."""
        assert self._nursery is not None
        transport = await trio.to_thread.run_sync(
            open_transport, self.config, self.identity.seed, self._store
        )
        transport.when_restarted(
            lambda name: self.feed.publish("task_restarted", level="warning", data={"task": name})
        )
        self.transport = transport
        await self._nursery.start(transport.run)
        for wanted, used in transport.ports_changed.items():
            log.warning("port_changed wanted=%d used=%d", wanted, used)

    def look_on_lan(self, run_id: RunId) -> None:
        """Find peers of the run nearby, and let them find us, if the settings allow it."""
        assert self.transport is not None
        assert self._nursery is not None
        if self.lan is None and self.config.lan_discovery:
            self.lan = open_lan_discovery(self.config, self.transport, run_id)
            self._nursery.start_soon(self.lan.run)

    async def anybody_nearby(self, within_s: float) -> bool:
        """Whether somebody was found, or came by himself."""
        assert self.transport is not None
        with trio.move_on_after(within_s):
            while not self.transport.statistics():
                if self.lan is not None and self.lan.found_any.is_set():
                    return True
                await trio.sleep(LOOK_S)
            return True
        return False

    async def fetch_run(self, run_id: RunId, entries: Sequence[PeerAddress]) -> bytes:
        """The run's canonical bytes, from any peer, checked by their hash. Waits for ever."""
        assert self.transport is not None
        assert self._nursery is not None
        self.bootstrap = Bootstrap(
            run_id,
            by_peer(entries),
            hash_of=_hash_of,
            limits=BootstrapLimits(
                report_s=self.limits.bootstrap_report_s,
                retry_s_first=self.limits.retry_first_s,
                retry_s_max=self.limits.retry_known_max_s,
            ),
            rng=self._rng("bootstrap"),
        )
        self._drive(self.bootstrap)
        await self._described_event.wait()
        assert self._described is not None
        self.bootstrap = None
        return self._described

    async def train(self, run: RunConfig, entries: Sequence[PeerAddress]) -> tuple[str, int, str]:
        """Take part until the peer has ended. Returns (code, exit code, text)."""
        assert self.transport is not None
        assert self._nursery is not None
        self.run, self.limits = run, limits_of(run.time_scale)
        if self.injection and not run.allow_injection:
            raise not_allowed()
        if not self.config.observe:
            self._device = await trio.to_thread.run_sync(self._choose_device)
        bounds = _pipeline_limits(run)
        self.slots = SlotPool(
            slot_classes(run, bounds.in_flight_max), output_reserve=OUTPUT_RESERVE
        )
        self._store.fill(self.slots)
        found = await trio.to_thread.run_sync(saved_of, self.home, run, self.config)
        for passed_over in found.unusable:
            log.warning("checkpoint_unusable path=%s why=%s", passed_over.path, passed_over.why)
            self.feed.publish("checkpoint_unusable", level="warn", data=passed_over.told())
        self.machine = machine = self._make_machine(run, by_peer(entries), bounds, found)
        self._memory = PeerMemory(
            self.home,
            run.run_id,
            PeerId(self.identity.peer_id),
            lambda: machine.membership.view(trio.current_time()).present(),
            self.reporter.now_utc,
        )
        self._drive(self.machine)
        self._files().checkpoints = found.folder
        self._nursery.start_soon(self._memory.keep)
        await self._ended.wait()
        return self._outcome

    def _choose_device(self) -> DeviceChoice | None:
        """Blocking. None: the CPU, as asked, without looking any further.

        Raises UserError (exit 2) for a device that does not exist or cannot be used.
        """
        if self.config.device == "cpu" and not self.config.gpu:
            return None
        chosen = choose_devices(probe_devices(), self.config.gpu, self.config.device)
        if len(chosen) > 1:
            raise UserError(
                f"--gpu was given {len(chosen)} times; this version computes on one device",
                code="usage",
                exit_code=2,
                hint="start one daemon for each device, with a home of its own",
            )
        choice, why = chosen[0]
        log.info("device name=%s device=%s why=%s", choice.name, choice.device, why)
        return choice

    def begin_leave(self) -> bool:
        """Drain and go. False: nothing is held yet, there is nothing to drain."""
        if self.machine is None or self.driver is None:
            return False
        self.driver.put(fx.Command("leave"))
        return True

    def call_after(self, delay_s: float, call: Callable[[], None]) -> None:
        assert self._nursery is not None

        async def wait() -> None:
            await trio.sleep(delay_s)
            call()

        self._nursery.start_soon(wait)

    # ------------------------------------------------------------------------------------ the parts

    def _make_machine(
        self,
        run: RunConfig,
        entries: Mapping[PeerId, tuple[str, ...]],
        bounds: PipelineLimits,
        found: FoundStates,
    ) -> PeerMachine:
        assert self.transport is not None
        is_local = run.time_scale == "local"
        peer = PeerId(self.identity.peer_id)
        record = PeerRecord(
            peer=peer,
            incarnation=self.incarnation,
            version=0,
            run_id=run.run_id,
            name=self.name[:64],
            phase="joining",
            observer=self.config.observe,
            addresses=tuple(_without_peer(a) for a in self.transport.addresses()),
            bulk_addresses=tuple(self.transport.bulk_addresses()),
        )
        membership = Membership(
            record,
            membership_limits.local() if is_local else membership_limits.wan(),
            self.identity.sign,
            verify,
            self._rng("membership"),
        )
        leases = LeaseBook(
            peer,
            self.incarnation,
            run.shape,
            lease_limits.local() if is_local else lease_limits.wan(),
            sign=self.identity.sign,
            verify=verify,
        )
        stage = self.config.stage if isinstance(self.config.stage, int) else None
        setup = PeerSetup(
            shape=run.shape,
            run_body=run.canonical(),
            needs=_stage_needs(run),
            is_founder=self.is_founder,
            assignment_limits=assignment.local() if is_local else assignment.wan(),
            entries={p: a for p, a in entries.items() if p != peer},
            stage=stage,
            is_observer=self.config.observe,
            saved=found.saved,
            has_history=found.has_history,
            stays=self.stays,
            agent=f"swarmd/{__version__}",
            stall_after_s=self.limits.stall_after_s_min,
            pipeline_limits=bounds,
            outer=OuterRules(**asdict(run.outer)),
            round_limits=RoundLimits.local() if is_local else RoundLimits(),
        )
        return PeerMachine(setup, membership, leases, self._rng("peer"), trio.current_time())

    def _drive(self, machine: fx.Machine) -> None:
        assert self.transport is not None
        assert self._nursery is not None
        if self.driver is not None:
            self.driver.replace_machine(machine)
            return
        self.driver = Driver(
            machine,
            self.transport,
            self._store,
            on_emit=self._emitted,
            on_load=self._load_stage,
        )
        self.driver.files = FileLane(
            self.home.cache / "state", self._store, self._nursery, self.driver.put
        )
        self._nursery.start_soon(self.driver.run)

    def _load_stage(self, wanted: fx.LoadStage) -> None:
        assert self.run is not None
        assert self.slots is not None
        assert self._nursery is not None
        assert self.driver is not None
        config = WorkerConfig(
            run=self.run,
            stage=wanted.stage,
            device=self._device.device if self._device else "cpu",
            state_file=None if wanted.state is None else self._files().path_of(wanted.state),
            injection=self.injection,
            threads=self.config.threads,
            micro_batch_max=self.config.micro_batch if self.config.micro_batch != "auto" else None,
            cache_dir=self.home.cache,
        )
        self._wanted_state = wanted.state
        if self.lane is None:
            backend = ProcessBackend(
                config,
                self.slots,
                nursery=self._nursery,
                environment=self._device.environment if self._device else None,
            )
            self.lane = ComputeLane(backend, self._compute_told, on_gone=self._worker_gone)
            self.driver.lane = self.lane
            self._nursery.start_soon(self.lane.run)
        self.lane.load_nowait(config)

    def _compute_told(self, event: fx.Event) -> None:
        """From the lane to the machine. A worker that is ready says what it started from."""
        assert self.driver is not None
        if isinstance(event, fx.ComputeReady):
            event = fx.ComputeReady({**event.info, "state": self._wanted_state})
        self.driver.put(event)

    def _files(self) -> FileLane:
        assert self.driver is not None
        assert self.driver.files is not None
        return self.driver.files

    def _worker_gone(self, code: str, text: str) -> None:
        log.error("worker_gone code=%s text=%s", code, text)
        self.feed.publish("worker_died", level="error", code=code, data={"text": text})
        self._finish(code, EXIT_CODES.get(code, 1), text)

    # ------------------------------------------------------------------------------- what is told

    def _emitted(self, told: fx.Emit) -> None:
        match told.name:
            case "run_described":
                self._described = told.fields["body"]
                self._described_event.set()
            case "peer_ended":
                code = told.fields["code"]
                self._finish(code, EXIT_CODES.get(code, 1), "")
            case "incarnation_raised":
                raise_incarnation(self.home, at_least=told.fields["incarnation"])
                self.reporter.event(told)
            case "identity_conflict":
                self.reporter.event(told)
                if told.fields["role"] == "newcomer":
                    self._finish(
                        "identity_in_use_elsewhere",
                        EXIT_CODES["identity_in_use_elsewhere"],
                        f"this key is in use by the peer at {', '.join(told.fields['addresses'])}",
                    )
            case "refused_by_peer" if told.fields["code"] in EXIT_CODES:
                code = told.fields["code"]
                self._finish(code, EXIT_CODES[code], told.fields.get("text", ""))
            case _:
                self.reporter.event(told)

    def _finish(self, code: str, exit_code: int, text: str) -> None:
        if not self._ended.is_set():
            self._outcome = (code, exit_code, text)
            self.reporter.freeze()
            if self._memory is not None:
                self._memory.write(is_last=True)
            self._ended.set()

    def say_failure(self, error: UserError) -> None:
        log.error("failed code=%s text=%s hint=%s", error.code, error, error.hint)

    def write_last_status(self) -> None:
        """state/last_status.json: what was known at the end, for whoever started us."""
        status = self.reporter.last_status or self.reporter.frozen()
        if status is not None:
            write_bytes(self.home.last_status_file, to_json(render(status)).encode())

    def reason(self) -> Reason:
        """The one that is shown."""
        now_s = trio.current_time()
        if self.machine is not None:
            return self.machine.reasons.current
        if self.bootstrap is not None:
            return self.bootstrap.reason(now_s)
        return Reason(code="starting", text="step 1 of 4: opening the network")

    def _rng(self, purpose: str) -> random.Random:
        """Different on every peer and start; inside machines everything follows from it."""
        return random.Random(f"{self.identity.peer_id}/{self.incarnation}/{purpose}/{os.getpid()}")


def _hash_of(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=32).hexdigest()


def _without_peer(address: str) -> str:
    return address.partition("/p2p/")[0]


def _stage_needs(run: RunConfig) -> assignment.StageNeeds:
    """What each stage asks of a device: arithmetic a token, and memory for weights and moments."""
    stages = range(run.stages)
    return assignment.StageNeeds(
        costs=tuple(flops_per_token(run, stage) for stage in stages),
        memory_bytes=tuple(BYTES_PER_PARAMETER * stage_parameters(run, stage) for stage in stages),
    )


def _pipeline_limits(run: RunConfig) -> PipelineLimits:
    """Enough in flight to keep every stage busy, few enough that steps do not mix."""
    in_flight = max(IN_FLIGHT_MIN, run.stages)
    return PipelineLimits(in_flight_max=in_flight, forward_queue_max=max(2, in_flight // 2))
