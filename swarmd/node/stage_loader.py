"""Gets the machine's stage into a compute worker: the device, the lane, the state to start from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import trio

from swarmd.buffers import SlotPool
from swarmd.compute_api import WorkerConfig
from swarmd.device_probe import probe_devices
from swarmd.devices import DeviceChoice, choose_devices
from swarmd.node.lane import ComputeLane
from swarmd.node.life import Life
from swarmd.node.process_backend import STAGE_FACTORY, ProcessBackend
from swarmd.node.spare_worker import SpareWorker
from swarmd.peer_config import PeerConfig
from swarmd.protocols import effects as fx
from swarmd.protocols.jobs import StageCall
from swarmd.run_config import RunConfig

log = logging.getLogger("swarmd.node")


class StageLoader:
    """One worker, made when the first stage is wanted.

    on_event: told of the worker's events, as the driver's `put`. on_gone: told (code, text) when
    there will be no worker any more. path_of: where a state that the machine names lies.
    """

    def __init__(
        self,
        life: Life,
        run: RunConfig,
        slots: SlotPool,
        device: DeviceChoice | None,
        nursery: trio.Nursery,
        *,
        on_event: Callable[[fx.Event], None],
        on_gone: Callable[[str, str], None],
        path_of: Callable[[str], Path],
    ) -> None:
        self._life = life
        self._run = run
        self._slots = slots
        self.device = device
        self._nursery = nursery
        self._on_event = on_event
        self._on_gone = on_gone
        self._path_of = path_of
        self.wanted_state: str | None = None
        """By the name that the machine gave it."""
        self.lane: ComputeLane | None = None
        self.injection = life.injection
        """With which the next worker is started."""
        self._backend: ProcessBackend | None = None
        self._spare = SpareWorker()
        self.on_lowered: Callable[[int], None] = lambda sequences: None
        self.micro_batch_lowered_to: int | None = None
        """Sequences at a time since memory ran out; None: it has not."""
        self.memory_bytes: tuple[int | None, int | None] = (None, None)
        """Of a GPU, held now and at most, as the worker told last."""

    def prepare(self) -> None:
        """A stage will be wanted soon: have a process that has done its imports by then."""
        imports = STAGE_FACTORY.partition(":")[0]
        self._spare.start(self._nursery, self._slots.fd, self._environment, imports)

    @property
    def _environment(self) -> Mapping[str, str] | None:
        return self.device.environment if self.device else None

    def load(self, wanted: fx.LoadStage) -> ComputeLane:
        """Have a worker that holds this stage. Returns the lane in front of it."""
        settings = self._life.config
        config = WorkerConfig(
            run=self._run,
            stage=wanted.stage,
            device=self.device.device if self.device else "cpu",
            state_file=None if wanted.state is None else self._path_of(wanted.state),
            injection=self.injection,
            threads=settings.threads,
            micro_batch_max=settings.micro_batch if settings.micro_batch != "auto" else None,
            memory_max_bytes=settings.memory_limit,
            cache_dir=self._life.home.cache,
            data_source=settings.data_source or "",
        )
        self.wanted_state = wanted.state
        if self.lane is None:
            self.lane = self._make_lane(config)
        self.lane.load_nowait(config)
        return self.lane

    def _make_lane(self, config: WorkerConfig) -> ComputeLane:
        backend = ProcessBackend(
            config,
            self._slots,
            nursery=self._nursery,
            environment=self._environment,
            spare=self._spare,
        )
        self._backend = backend
        lane = ComputeLane(backend, self._told, on_gone=self._on_gone)
        self._nursery.start_soon(lane.run)
        return lane

    async def inject(self, specs: Sequence[str]) -> None:
        """Have the worker suffer and commit these, and no others. Raises ComputeError."""
        self.injection = tuple(specs)
        if self._backend is not None:
            await self._backend.submit(StageCall("inject", {"specs": list(specs)}))

    def _told(self, event: fx.Event) -> None:
        """From the lane to the machine. A worker that is ready says what it started from."""
        if isinstance(event, fx.ComputeReady):
            event = fx.ComputeReady({**event.info, "state": self.wanted_state})
        if isinstance(event, fx.ComputeDone):
            data = event.result.data
            self._mind_lowering(data.get("micro_batch_lowered_to"))
            if "device_bytes" in data:
                self.memory_bytes = (data["device_bytes"], data["device_peak_bytes"])
        self._on_event(event)

    def _mind_lowering(self, sequences: int | None) -> None:
        """Memory ran out, and the worker went on with fewer sequences at a time."""
        if sequences and sequences != self.micro_batch_lowered_to:
            self.micro_batch_lowered_to = sequences
            log.warning("micro_batch_lowered to=%d", sequences)
            self.on_lowered(sequences)


def choose_device(config: PeerConfig) -> tuple[DeviceChoice | None, str]:
    """(device, why this one). Blocking. None: the CPU, as asked, without looking any further.

    Raises UserError (exit 2) for a device that does not exist or cannot be used.
    """
    if config.observe or config.device == ("cpu",):
        return None, "asked for"
    ((choice, why),) = choose_devices(probe_devices(), config.gpu, config.device[0])
    log.info("device name=%s device=%s why=%s", choice.name, choice.device, why)
    return choice, why
