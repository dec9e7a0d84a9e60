"""The promises in seconds, bytes and shares: docs/cli.md section 14, by name.

Which set holds is part of the run (`time_scale`): `wan` for strangers on the internet, `local` for
processes of one machine, where the same things take less time. Adaptive limits are null here; the
daemon shows their present value in `status` under `limits`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedLimits:
    """Units are in the names. None: adaptive."""

    first_reply_s: float = 3.0
    """From start to a control socket that answers."""
    status_reply_s: float = 1.0
    """Any reading command."""
    bootstrap_report_s: float = 5.0
    """From start to a named reason when nobody answers."""
    settle_s: float = 5.0
    """Simultaneous starters see each other."""
    probe_interval_s: float = 1.0
    dead_after_s: float = 10.0
    """Silence until a peer is dead for everybody."""
    reset_reroute_s: float = 1.0
    """From a closed connection to the next attempt elsewhere."""
    identity_conflict_s: float = 15.0
    """Two living holders of one key are noticed."""
    round_deadline_s: float | None = None
    """Median + k median deviations of past exchanges, at least 2."""
    update_grace_s: float | None = None
    """10 % of the median round, at least 1."""
    stall_after_s: float | None = None
    """5 x median round, at least `stall_after_s_min`."""
    stall_after_s_min: float = 30.0
    state_stall_s: float = 5.0
    """No byte from a donor."""
    state_slow_ratio: float = 0.1
    donor_share_max: float = 0.5
    lease_s: float | None = None
    """4 x median time of a micro-batch."""
    drain_deadline_s: float = 60.0
    stop_grace_s: float = 5.0
    children_gone_s: float = 2.0
    worker_restart_s: float = 5.0
    retry_first_s: float = 1.0
    retry_max_s: float = 60.0
    retry_known_max_s: float = 10.0
    """Towards a peer that has never been seen to fail for good."""
    log_repeat_s: float = 60.0
    control_message_bytes_max: int = MIB
    control_messages_per_s: float = 20.0
    memory_growth_bytes_per_min: int = MIB
    idle_cpu_share: float = 0.02
    """Of one core, by a daemon whose swarm waits, its worker not counted."""

    def __post_init__(self) -> None:
        assert self.probe_interval_s < self.dead_after_s
        assert self.retry_first_s <= self.retry_known_max_s <= self.retry_max_s
        assert self.bootstrap_report_s >= self.first_reply_s

    def shown(self, **adaptive: float | None) -> dict[str, float | None]:
        """For `status`: every limit, the adaptive ones with the values given."""
        values = asdict(self)
        assert adaptive.keys() <= values.keys()
        return values | adaptive


WAN = NamedLimits()
LOCAL = replace(
    WAN,
    bootstrap_report_s=3.0,
    probe_interval_s=0.5,
    dead_after_s=4.0,
    identity_conflict_s=10.0,
    stall_after_s_min=15.0,
    drain_deadline_s=20.0,
    retry_first_s=0.5,
    retry_max_s=10.0,
    retry_known_max_s=5.0,
    idle_cpu_share=0.05,
)


_BY_TIME_SCALE = {"wan": WAN, "local": LOCAL}
TIME_SCALES = tuple(_BY_TIME_SCALE)


def limits_of(time_scale: str) -> NamedLimits:
    """By the run's `time_scale`."""
    return _BY_TIME_SCALE[time_scale]
