"""The named times and counts of membership, and what each costs (docs/cli.md, section 14).

How `dead_after_s` comes about for a peer that freezes without a sign: its links go quiet
(probe_interval_s), a probe waits (probe_timeout_s), helpers try (indirect_timeout_s), it stands
accused (suspicion_s_min once others confirm), each rounded up to a tick, and the verdict spreads.
The sum is checked here, so that no change of one value breaks the promise of another.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarmd.protocols.limits import CONTROL_MESSAGES_BURST, CONTROL_MESSAGES_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipLimits:
    """All times in seconds. `wan()` are the defaults, `local()` is for swarms on one machine."""

    tick_s: float = 0.25
    """How often anything that may be due is looked at. Lower: sharper times, more wake-ups."""
    probe_interval_s: float = 1.0
    """A link quiet for so long is probed. Lower: earlier notice, more messages."""
    probe_timeout_s: float = 1.5
    """For an answer over a healthy link; a slow link gets three times its usual round trip."""
    indirect_timeout_s: float = 1.5
    """For the helpers, who may have to dial first."""
    helpers: int = 3
    suspicion_s_min: float = 3.5
    """From accusation to death once others confirm: the accused must hear of it and answer. With 3
    somebody paused for just half of dead_after_s died once in 2 523 simulated swarms: the probe had
    left before the pause, and word of its end was on its way."""
    suspicion_s_max: float = 4.5
    """The same with a single accuser."""
    confirmations: int = 3
    dead_after_s: float = 10.0
    """The promise to others: silence until a peer is dead for everybody."""
    spread_s: float = 1.0
    """What urgent news needs to reach everybody; measured in the simulator."""
    health_score_max: int = 3
    """Local health stretches time-outs at most (1 + this) fold."""

    rings: int = 3
    """Two neighbours on each. More: faster news and more witnesses, more probes."""
    full_mesh_max: int = 8
    """Up to so many peers everybody is everybody's neighbour."""
    dial_patience_s: float = 1.0
    """Of the peer with the larger id: the other dials first, so that links are not made twice."""
    dials_max: int = 8
    """At once."""
    links_max: int = 64
    """A link that neither side wants is closed after surplus_s; above this number, at once."""
    surplus_s: float = 30.0
    retry_first_s: float = 1.0
    retry_known_max_s: float = 10.0
    """Back-off bound towards peers that were well ten minutes ago."""
    retry_max_s: float = 60.0
    long_dead_s: float = 600.0
    reunite_s: float = 1.0
    """Between two tries at any of the dead: how a healed partition is found."""

    gossip_delay_s: float = 0.1
    """Urgent news is held so long to travel together. Lower: faster, more messages."""
    gossip_gathered_s: float = 1.5
    """The same for news of a round, which all have at about the same time. Probes and their answers
    take it along before, where a link is quiet."""
    gossip_spacing_s: float = 0.3
    """Between two such sendings at least: bounds messages where urgent news never ends."""
    sync_interval_s: float = 30.0
    """Anti-entropy with a random neighbour; also on every new link."""
    progress_s_min: float = 2.0
    """A peer's counters and rounds are told at most so often ..."""
    progress_per_s: float = 4.0
    """... and at most so many peers of the whole swarm do in a second: bytes stay flat."""
    forget_s: float = 86_400.0
    identity_window_s: float = 15.0
    """A record of our own that we did not make: until so long after our start it is taken for a
    former life of ours, later for another holder of the key."""
    messages_per_s: float = CONTROL_MESSAGES_PER_S
    messages_burst: float = float(CONTROL_MESSAGES_BURST)

    def __post_init__(self) -> None:
        steps = (
            self.probe_interval_s,
            self.probe_timeout_s,
            self.indirect_timeout_s,
            self.suspicion_s_min,
        )
        worst_s = sum(steps) + len(steps) * self.tick_s + self.spread_s
        assert worst_s <= self.dead_after_s, f"dead only after {worst_s} s"
        assert 0 < self.tick_s <= self.probe_interval_s / 2
        assert self.dead_soonest_s > self.dead_after_s / 2, "a pause of half of it kills nobody"
        assert self.suspicion_s_min <= self.suspicion_s_max
        assert self.retry_first_s <= self.retry_known_max_s <= self.retry_max_s
        assert 2 * self.rings <= self.links_max

    @property
    def dead_soonest_s(self) -> float:
        """So long a pause at least until others hold the peer for dead: it began as a probe left,
        each step's tick had just been, and the shortest suspicion did."""
        steps = (self.probe_timeout_s, self.indirect_timeout_s, self.suspicion_s_min)
        return sum(steps) - 2 * self.tick_s

    @property
    def suspect_after_s(self) -> float:
        """Silence after which others may have begun to doubt."""
        return self.probe_interval_s + self.probe_timeout_s


def wan() -> MembershipLimits:
    """Round trips of up to a second, tens to thousands of peers."""
    return MembershipLimits()


def local() -> MembershipLimits:
    """A handful of peers on one crowded machine."""
    return MembershipLimits(
        tick_s=0.125,
        probe_interval_s=0.5,
        probe_timeout_s=0.6,
        indirect_timeout_s=0.6,
        suspicion_s_min=1.25,
        suspicion_s_max=1.75,
        dead_after_s=4.0,
        spread_s=0.5,
        dial_patience_s=0.5,
        retry_first_s=0.5,
        retry_known_max_s=5.0,
        retry_max_s=10.0,
        reunite_s=0.5,
        gossip_delay_s=0.05,
        gossip_gathered_s=0.25,
        gossip_spacing_s=0.15,
        sync_interval_s=10.0,
        progress_s_min=0.5,
        identity_window_s=10.0,
    )
