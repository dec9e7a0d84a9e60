"""The named times of leasing, and what each costs (docs/cli.md, section 14)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLimits:
    """All times in seconds. `wan()` are the defaults, `local()` is for swarms on one machine."""

    flush_s: float = 0.25
    """Between two announcements. Lower: fewer micro-batches done twice, more messages."""
    flush_s_per_head: float = 0.025
    """With many heads announcements become rarer, so that the traffic of a peer stays the same."""
    flush_s_max: float = 10.0
    calm_s_per_head: float = 0.6
    """What a head tells the others in the middle of a round, where nobody needs it soon, comes this
    much rarer for each of them: a head then hears some 500 bytes a second of all the others."""
    calm_s_max: float = 30.0
    calm_parts: float = 8.0
    """But so many times in what remains of the round, as far as the pace so far tells."""
    news_s: float = 0.5
    """What an announcement needs to reach all heads once it is sent."""
    digest_s: float = 2.0
    """Between two comparisons with a neighbour, which repair what was lost."""
    digest_s_per_peer: float = 0.05
    digest_s_max: float = 20.0
    offers_s: float = 10.0
    """Without news of our rounds for so long, one neighbour's word on past rounds is enough."""
    lease_s_min: float = 5.0
    lease_s_first: float = 60.0
    """Until a head's own times are known: through seven stages of three seconds each, there and
    back, a micro-batch takes 42."""
    lease_s_max: float = 70.0
    """dead_after_s + 60."""
    lease_medians: float = 4.0
    """A lease lasts so many times what its holder's micro-batches usually take."""
    quiet_s: float = 3.0
    """A head that has told of no progress for so long, and for three of its usual strides, does
    not keep others from the micro-batches that would be its own."""
    round_s_first: float = 600.0
    """Until rounds have been seen; a guess, never tuned."""
    round_s_min: float = 30.0
    round_medians: float = 3.0
    """A round may take so many times what rounds usually take before the next opens anyway."""

    def flush_after_s(self, heads: int) -> float:
        """Between two announcements where others wait for them."""
        return min(self.flush_s_max, max(self.flush_s, self.flush_s_per_head * heads))

    def calm_after_s(self, heads: int) -> float:
        """The longest between two announcements of a head that works."""
        calm_s = min(self.calm_s_max, self.calm_s_per_head * heads)
        return max(self.flush_after_s(heads), calm_s)

    def news_after_s(self, heads: int, remaining_s: float | None) -> float:
        """Between two announcements of a head, with so much of the round before it."""
        if remaining_s is None:
            return self.flush_after_s(heads)
        wait_s = min(self.calm_after_s(heads), remaining_s / self.calm_parts)
        return max(self.flush_after_s(heads), wait_s)

    def digest_after_s(self, peers: int) -> float:
        """Between two comparisons, with so many others there."""
        return max(self.digest_s, min(self.digest_s_max, self.digest_s_per_peer * peers))


def wan() -> LeaseLimits:
    return LeaseLimits()


def local(dead_after_s: float = 4.0) -> LeaseLimits:
    return LeaseLimits(
        flush_s=0.1,
        calm_s_per_head=0.0,
        news_s=0.1,
        digest_s=1.0,
        offers_s=4.0,
        lease_s_min=2.0,
        lease_s_first=30.0,
        lease_s_max=dead_after_s + 60.0,
        quiet_s=1.5,
        round_s_min=10.0,
    )
