"""One peer in its daemon: transport, compute worker and control socket around the peer's machine.

The daemon (swarmd/daemon.py) says when; this file holds what is alive. Status and answers are read
from the parts' statistics by report.py; nothing is kept twice.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from swarmd.buffers import SlotPool
from swarmd.checkpoints import CheckpointFolder
from swarmd.data.at_hand import is_at_hand
from swarmd.devices import described
from swarmd.events_log import EventLog
from swarmd.home_files import raise_incarnation, read_known_peers
from swarmd.injection import not_allowed
from swarmd.json_record import render, to_json
from swarmd.local_api.event_feed import EventFeed
from swarmd.local_api.server import serve
from swarmd.named_limits import NamedLimits, limits_of
from swarmd.net.lan_discovery import LanDiscovery
from swarmd.node.disk_quota import DiskQuota
from swarmd.node.driver import Driver
from swarmd.node.files import FileLane
from swarmd.node.handlers import control_handlers
from swarmd.node.lane import ComputeLane
from swarmd.node.late_store import LateStore
from swarmd.node.life import Life
from swarmd.node.make_machine import make_machine, pipeline_limits
from swarmd.node.open_transport import open_lan_discovery, open_transport
from swarmd.node.open_web import open_web
from swarmd.node.peer_faults import PeerFaults
from swarmd.node.report import Reporter
from swarmd.node.saved import saved_of
from swarmd.node.slot_plan import OUTPUT_RESERVE, slot_classes
from swarmd.node.stage_loader import StageLoader, choose_device
from swarmd.node.start_book import StartBook
from swarmd.node.watchers import Watchers
from swarmd.protocols import effects as fx
from swarmd.protocols.bootstrap import Bootstrap, BootstrapLimits
from swarmd.protocols.ids import RunId
from swarmd.protocols.peer import PeerMachine
from swarmd.protocols.reasons import Reason, SecondsByReason
from swarmd.protocols.saved_states import fetched_in
from swarmd.protocols.seat import STATE_CODES
from swarmd.protocols.tokeniser_fetch import TokeniserFetch, TokeniserLimits
from swarmd.run_config import RunConfig
from swarmd.run_link import PeerAddress, by_peer
from swarmd.store import write_bytes
from swarmd.tokeniser_files import name_of

if TYPE_CHECKING:
    from swarmd.net.swarm_transport import SwarmTransport
    from swarmd.node.companions import Companions

log = logging.getLogger("swarmd.node")

_T = TypeVar("_T")

EXIT_CODES = {
    "run_complete": 0,
    "drained": 0,
    "stopped_now": 0,
    "drain_incomplete": 5,
    "identity_in_use_elsewhere": 77,
    "version_mismatch": 77,
    "banned": 77,
    "not_admitted": 77,
    "model_does_not_fit": 77,
}
"""Of the reasons with which a peer ends by itself; any other is a failure (1)."""
LOOK_S = 0.1
DUMPED_EVENTS = 50
"""At SIGUSR1."""


class PeerNode:
    """See the header. One life: `start_transport`, perhaps `fetch_run`, then `train`."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.settings = life.config
        """As they hold now: some change while it runs (reload.py)."""
        self.limits: NamedLimits = limits_of("wan")
        self.run: RunConfig | None = None
        self.machine: PeerMachine | None = None
        self.transport: SwarmTransport | None = None
        self.lan: LanDiscovery | None = None
        self.driver: Driver | None = None
        self.faults = PeerFaults(life.injection)
        self.loader: StageLoader | None = None
        self.slots: SlotPool | None = None
        self.start_book = StartBook(trio.current_time)
        self.ports_changed: dict[int, int] = {}
        """Wanted port to the one used instead."""
        self.on_change: Callable[[], None] = lambda: None
        """Told when state or reason have changed."""
        self.on_leave: Callable[..., bool] = self.begin_leave
        self.feed = EventFeed(EventLog(life.home.events_file))
        self.companions: Companions | None = None
        self.quota = DiskQuota(life.home, lambda: self.settings.disk_limit)
        self.reporter = Reporter(self)
        self.device_text = ""
        """For people: where it computes, once that is chosen."""
        self._store = LateStore()
        self._nursery: trio.Nursery | None = None
        self._ended = trio.Event()
        self._outcome: tuple[str, int, str] = ("internal_error", 1, "")
        self.watchers: Watchers | None = None
        self._fetched: bytes | None = None
        self._fetched_event = trio.Event()

    @property
    def run_id(self) -> str | None:
        return self.run.run_id if self.run is not None else None

    @property
    def lane(self) -> ComputeLane | None:
        return self.loader.lane if self.loader is not None else None

    # ------------------------------------------------------------------------------------- phases

    async def serve_control(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """The control socket, from before anything else works until the end."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(serve, self.life.home, control_handlers(self))
            self.feed.publish("started", peer=self.life.peer)
            task_status.started()
            await trio.sleep_forever()

    async def serve_web(self, say: Callable[[str], None]) -> None:
        """The web view and the metrics, if wanted. `say`: where they are."""
        assert self._nursery is not None
        servers = await open_web(self, say)
        if servers is not None:
            self._nursery.start_soon(servers.run)

    async def start_transport(self) -> None:
        """Listen. libp2p takes a second to import, so it happens while the socket answers."""
        assert self._nursery is not None
        transport = await _in_thread(
            open_transport, self.life.config, self.life.identity.seed, self._store
        )
        transport.when_restarted(
            lambda name: self.feed.publish("task_restarted", level="warning", data={"task": name})
        )
        self.transport = transport
        await self._nursery.start(transport.run)
        self.ports_changed = transport.ports_changed
        for wanted, used in self.ports_changed.items():
            log.warning("port_changed wanted=%d used=%d", wanted, used)
        if self.ports_changed:
            changed = sorted(self.ports_changed.items())
            self.reporter.health.hold(
                "port_changed",
                ", ".join(f"port {wanted} is taken: {used} instead" for wanted, used in changed),
                impact="addresses that others remember may lead elsewhere",
                fix="free the port, or choose another one with `--port`",
            )

    def look_on_lan(self, run_id: RunId) -> None:
        """Find peers of the run nearby, and let them find us, if the settings allow it."""
        assert self.transport is not None
        assert self._nursery is not None
        if self.lan is None and self.life.config.lan_discovery:
            self.lan = open_lan_discovery(self.life.config, self.transport, run_id)
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
        bootstrap = Bootstrap(
            run_id,
            by_peer(entries),
            hash_of=name_of,
            limits=BootstrapLimits(
                report_s=self.limits.bootstrap_report_s,
                retry_s_first=self.limits.retry_first_s,
                retry_s_max=self.limits.retry_known_max_s,
            ),
            rng=self.life.rng("bootstrap"),
        )
        body = await self._outcome_of(bootstrap)
        assert body is not None
        return body

    async def fetch_tokeniser(self, name: str, entries: Sequence[PeerAddress]) -> bytes | None:
        """The file of that hash, from any peer; None if nobody who answers soon has it."""
        limits = TokeniserLimits(answer_s=self.limits.bootstrap_report_s)
        fetch = TokeniserFetch(name, by_peer(entries), hash_of=name_of, limits=limits)
        return await self._outcome_of(fetch)

    async def _outcome_of(self, machine: Bootstrap | TokeniserFetch) -> bytes | None:
        self._fetched_event = trio.Event()
        self.start_book.explains = machine.reason
        self._drive(machine)
        await self._fetched_event.wait()
        self.start_book.explains = None
        return self._fetched

    async def train(self, run: RunConfig, entries: Sequence[PeerAddress]) -> tuple[str, int, str]:
        """Take part until the peer has ended. Returns (code, exit code, text)."""
        assert self.transport is not None
        assert self._nursery is not None
        life = self.life
        self.run, self.limits = run, limits_of(run.time_scale)
        if life.injection and not run.allow_injection:
            raise not_allowed()
        self.start_book.is_at(4, "looking at this machine and at what an earlier life saved")
        device, why = await _in_thread(choose_device, life.config)
        self.device_text = described(device, why, life.config.threads)
        self.slots = SlotPool(
            slot_classes(run, pipeline_limits(run).in_flight_max), output_reserve=OUTPUT_RESERVE
        )
        self._store.fill(self.slots)
        found = await _in_thread(saved_of, life.home, run, life.config)
        for passed_over in found.unusable:
            log.warning("checkpoint_unusable path=%s why=%s", passed_over.path, passed_over.why)
            self.feed.publish("checkpoint_unusable", level="warning", data=passed_over.told())
        is_founder = life.is_founder and not found.has_history and not self.has_been_in(run)
        has_data = await _in_thread(is_at_hand, run, life.home.cache, life.config.data_source)
        begins = {"is_founder": is_founder, "lacks_data": not has_data}
        machine = make_machine(life, run, self.transport, by_peer(entries), found, **begins)
        self.machine = machine
        driver = self._drive(machine)
        assert driver.files is not None
        driver.files.checkpoints, driver.files.guarded = found.folder, found.guarded_folder
        self.loader = StageLoader(
            life,
            run,
            self.slots,
            device,
            self._nursery,
            on_event=driver.put,
            on_gone=self._worker_gone,
            path_of=driver.files.path_of,
        )
        self.loader.on_lowered = self._micro_batch_lowered
        self.watchers = Watchers(self, run, machine, device, self.quota, driver.put)
        self.watchers.start(self._nursery)
        await self._ended.wait()
        return self._outcome

    def has_been_in(self, run: RunConfig) -> bool:
        """Whether this home took part in the run before: it holds states, or knows others of it."""
        life = self.life
        folder = CheckpointFolder(life.home.checkpoints, run.run_id)
        return folder.path.is_dir() or bool(read_known_peers(life.home, run.run_id))

    def begin_leave(self, *, now: bool = False) -> bool:
        """Drain and go. False: nothing is held yet, there is nothing to drain."""
        if self.machine is None or self.driver is None:
            return False
        self.driver.put(fx.Command("leave", {"now": now}))
        return True

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        """Runs until the node ends."""
        assert self._nursery is not None
        self._nursery.start_soon(task)

    def call_after(self, delay_s: float, call: Callable[[], None]) -> None:
        assert self._nursery is not None

        async def wait() -> None:
            await trio.sleep(delay_s)
            call()

        self._nursery.start_soon(wait)

    # ---------------------------------------------------------------------------------- the machine

    def _drive(self, machine: fx.Machine) -> Driver:
        """Run `machine` in place of any other."""
        assert self.transport is not None
        assert self._nursery is not None
        if self.driver is not None:
            self.driver.replace_machine(machine)
            return self.driver
        self.driver = driver = Driver(
            machine,
            self.transport,
            self._store,
            on_emit=self._emitted,
            on_load=self._load_stage,
        )
        driver.files = FileLane(
            self.life.states, self._store, self._nursery, driver.put, self.quota
        )
        self.faults.apply(driver)
        self._nursery.start_soon(driver.run)
        return driver

    def _load_stage(self, wanted: fx.LoadStage) -> None:
        assert self.loader is not None, "a stage was wanted before there was a run"
        assert self.driver is not None
        self.driver.lane = self.loader.load(wanted)

    def _micro_batch_lowered(self, sequences: int) -> None:
        data = {"to": sequences}
        self.feed.publish("micro_batch_lowered", level="warning", code="out_of_memory", data=data)

    def _worker_gone(self, code: str, text: str) -> None:
        log.error("worker_gone code=%s text=%s", code, text)
        self.feed.publish("worker_died", level="error", code=code, data={"text": text})
        wanted = "" if self.loader is None else self.loader.wanted_state or ""
        if code in STATE_CODES and fetched_in([wanted]):
            return  # the machine, which was told before, gets another state
        if code == "data_missing" and self.settings.wanted_stage is None:
            return  # or another stage
        self._finish(code, EXIT_CODES.get(code, 1), text)

    # ------------------------------------------------------------------------------- what is told

    def _emitted(self, told: fx.Emit) -> None:
        match told.name:
            case "run_described" | "tokeniser_fetched" | "tokeniser_not_found":
                self._fetched = told.fields.get("body")
                self._fetched_event.set()
            case "peer_ended":
                code = told.fields["code"]
                self._finish(code, EXIT_CODES.get(code, 1), "")
            case "incarnation_raised":
                raise_incarnation(self.life.home, at_least=told.fields["incarnation"])
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
            case "state_changed":
                self.reporter.state_changed(told)
                self.on_change()
            case "stage_claimed" if self.loader is not None:
                self.loader.prepare()
            case _:
                self.reporter.event(told)

    def _finish(self, code: str, exit_code: int, text: str) -> None:
        if not self._ended.is_set():
            self._outcome = (code, exit_code, text)
            self.reporter.freeze()
            if self.watchers is not None:
                self.watchers.memory.write(is_last=True)
            self._ended.set()

    async def log_dump(self) -> None:
        """Statistics and the last events, into the log."""
        found = await control_handlers(self).answers["dump"]({})
        log.info("dump %s", to_json(render(found)))
        for event in self.feed.latest(DUMPED_EVENTS):
            log.info("dump_event %s", to_json(event))

    def write_last_status(self) -> None:
        """state/last_status.json: what was known at the end, for whoever started us."""
        status = self.reporter.last_status
        if status is not None:
            write_bytes(self.life.home.last_status_file, to_json(render(status)).encode())

    @property
    def reasons(self) -> SecondsByReason:
        """With the one that is shown as the current one."""
        return self.start_book.seconds() if self.machine is None else self.machine.reasons

    def reason(self) -> Reason:
        return self.reasons.current


async def _in_thread(work: Callable[..., _T], *args: Any) -> _T:
    """As trio's, but what was cancelled meanwhile does not go on with the result."""
    found = await trio.to_thread.run_sync(work, *args)
    await trio.lowlevel.checkpoint_if_cancelled()
    return found
