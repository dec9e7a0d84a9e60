"""What runs beside a peer's machine as long as it takes part: memory of peers, gauges, rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import psutil
import trio

from swarmd.devices import DeviceChoice
from swarmd.node.disk_quota import DiskQuota
from swarmd.node.memory_growth import MemoryGrowth
from swarmd.node.month_traffic import MonthTraffic
from swarmd.node.peer_memory import PeerMemory
from swarmd.node.recent_rounds import RecentRounds
from swarmd.node.rule_watch import RuleWatch
from swarmd.node.swarm_speed import SwarmSpeed
from swarmd.node.traffic_rates import TrafficRates
from swarmd.protocols import effects as fx
from swarmd.protocols.peer import PeerMachine
from swarmd.protocols.stage_past import Spent
from swarmd.run_config import RunConfig

if TYPE_CHECKING:
    from swarmd.node.peer_node import PeerNode


class Watchers:
    """Of one node that takes part in `run`. put: the driver's."""

    def __init__(
        self,
        node: PeerNode,
        run: RunConfig,
        machine: PeerMachine,
        device: DeviceChoice | None,
        quota: DiskQuota,
        put: Callable[[fx.Event], None],
    ) -> None:
        assert node.transport is not None
        life = node.life
        self.memory = PeerMemory(
            life.home,
            run.run_id,
            life.peer,
            lambda: machine.membership.view(trio.current_time()).present(),
            node.reporter.now_utc,
        )
        self.speed = SwarmSpeed(lambda: counted_tokens(machine))
        self.rates = TrafficRates(node.transport.totals, lambda: _step(machine))
        self.rounds = RecentRounds(lambda: (machine.work.round, _spent(machine)))
        self.growth = MemoryGrowth(lambda: psutil.Process().memory_info().rss)
        self._quota = quota
        self._traffic = MonthTraffic(life.home.traffic_file, node.transport.totals)
        self._rules = RuleWatch(
            lambda: node.settings,
            put,
            self._traffic.used_bytes,
            is_on_gpu=device is not None and device.kind == "cuda",
        )

    def start(self, nursery: trio.Nursery) -> None:
        """They run until it is cancelled."""
        for task in (
            self.memory.keep,
            self._traffic.keep,
            self._rules.run,
            self._quota.keep,
            self.speed.keep,
            self.rates.keep,
            self.rounds.keep,
            self.growth.keep,
        ):
            nursery.start_soon(task)


def _step(machine: PeerMachine) -> int | None:
    pipeline, now_s = machine.work.pipeline, trio.current_time()
    if pipeline is None:
        return None
    return machine.work.step_of(pipeline.statistics(now_s).last_step)


def _spent(machine: PeerMachine) -> Spent:
    pipeline = machine.work.pipeline
    told = None if pipeline is None else pipeline.statistics(trio.current_time())
    return machine.work.past.spent(told)


def counted_tokens(machine: PeerMachine) -> int:
    """By everybody, since the run began."""
    done = sum(totals.samples for totals in machine.leases.ledger.contributions().values())
    return done * machine.shape.sequence_tokens
