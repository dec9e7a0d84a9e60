"""Whom to ask next: the replica of the next stage with the least expected finish.

SWARM's idea (arXiv 2301.11913) with the rules of algorithms.md 4.1. Each replica has a virtual
clock, the time until which the work it was given would keep it busy. Choosing charges it up front,
its answer replaces the estimate by what it measured, BUSY takes the charge back, and silence leaves
it: that is what keeps a peer which never answers from collecting work. A newcomer starts at the
latest clock of all, and is given one at a time until its first answer.

Where we differ, and why:
  * the clocks are compared to each other, not to the time of day: they count work received, so that
    replicas share in proportion to their speed also when there is little to do, and all of them
    learn; what lies above the common base fades, so that old charges pin nobody;
  * the round trip is a delay and not an occupation: it counts when comparing and is not charged.
    The time that the bytes take on the link is charged;
  * no replica holds more of what is in flight than its fair share and one: if the estimates are
    wrong (somebody else uses it too), the others still have work;
  * work costs more where it gets lost (standing.py);
  * a scan instead of a heap: candidates are dozens, and every key moves with time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from swarmd.protocols.ids import PeerId
from swarmd.protocols.standing import Standing

SHARE_WINDOW = 32
"""Choices over which `traffic_share` is told."""
EMA_WEIGHT = 0.2
DEBT_HALF_S = 60.0
"""In which half of what a clock is ahead of the base fades."""
UNKNOWN_S_PER_TOKEN = 1e-3
"""Before anybody claimed or measured a speed. Any value: only ratios matter."""
FASTEST_S_PER_TOKEN = 1e-9
"""What may be measured at best, so that a claim of no time at all is not infinite speed."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica of the next stage, as the roster tells. `tokens_per_s` 0: not known."""

    peer: PeerId
    incarnation: int
    tokens_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PeerTraffic:
    """What is told of one replica in status."""

    peer: PeerId
    traffic_share: float
    """Of the last choices."""
    score: float
    outstanding: int
    banned_for_s: float
    s_per_token: float | None
    """Measured, or None while nothing was."""


@dataclass(slots=True)
class _Charge:
    sent_s: float
    tokens: int
    transfer_s: float
    quality: float
    amount_s: float
    is_missed: bool = False


@dataclass(slots=True)
class _Member:
    candidate: Candidate
    clock_s: float
    is_new: bool
    standing: Standing = field(default_factory=Standing)
    s_per_token: float | None = None
    charges: dict[int, _Charge] = field(default_factory=dict)


class Router:
    """The candidates of one next stage. Attempts are named by the caller's number."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._members: dict[PeerId, _Member] = {}
        """Sorted by peer."""
        self._linked: set[PeerId] = set()
        self._links: dict[PeerId, tuple[float, float]] = {}
        """(rtt_s, bytes_per_s); 0: not known."""
        self._base_s = 0.0
        self._faded_at_s = 0.0
        self._chosen: deque[PeerId] = deque(maxlen=SHARE_WINDOW)

    # -------------------------------------------------------------------------- told from outside

    def set_candidates(self, candidates: Iterable[Candidate]) -> list[PeerId]:
        """Replace them. Returns those that restarted: what their former self held is lost."""
        fresh: dict[PeerId, _Member] = {}
        restarted = []
        latest_s = max((m.clock_s for m in self._members.values()), default=self._base_s)
        for candidate in sorted(candidates, key=lambda item: item.peer):
            known = self._members.get(candidate.peer)
            if known is not None and known.candidate.incarnation == candidate.incarnation:
                known.candidate = candidate
                fresh[candidate.peer] = known
                continue
            if known is not None:
                restarted.append(candidate.peer)
            fresh[candidate.peer] = _Member(candidate, latest_s, is_new=bool(self._members))
        self._members = fresh
        return restarted

    def set_linked(self, peer: PeerId, is_linked: bool) -> None:
        """Only who is linked is chosen."""
        if is_linked:
            self._linked.add(peer)
        else:
            self._linked.discard(peer)
            self._links.pop(peer, None)

    def set_link(self, peer: PeerId, rtt_s: float, bytes_per_s: float) -> None:
        """Figures of the link, measured below. 0: not known."""
        if peer in self._linked:
            self._links[peer] = (rtt_s, bytes_per_s)

    # ------------------------------------------------------------------------------------- choice

    def choose(
        self,
        tokens: int,
        now_s: float,
        *,
        attempt: int,
        size_bytes: int = 0,
        exclude: Container[PeerId] = (),
    ) -> tuple[PeerId | None, str]:
        """Whom to give `tokens` of work, charged at once as `attempt`; and why, or why nobody.

        Reasons: least_finish, only_one; no_peer, not_linked, banned, busy, excluded.
        """
        members, reason = self._usable(now_s, exclude)
        if not members:
            return None, reason
        self._fade(now_s)
        pool = self._with_room(members, now_s) if len(members) > 1 else members
        self._base_s = max(self._base_s, min(member.clock_s for member in pool))
        keyed = []
        for member in pool:
            rtt_s, transfer_s = self._link_times(member, size_bytes)
            quality = member.standing.quality(now_s)
            amount_s = (self._work_s(member, tokens) + transfer_s) / quality
            start_s = max(member.clock_s, self._base_s)
            charge = _Charge(now_s, tokens, transfer_s, quality, amount_s)
            keyed.append((start_s + amount_s + rtt_s, start_s, member, charge))
        first_s = min(key_s for key_s, _, _, _ in keyed)
        _, start_s, member, charge = self._rng.choice([k for k in keyed if k[0] == first_s])
        member.clock_s = start_s + charge.amount_s
        member.charges[attempt] = charge
        self._chosen.append(member.candidate.peer)
        return member.candidate.peer, "least_finish" if len(members) > 1 else "only_one"

    def usable(self, now_s: float) -> tuple[bool, str]:
        """Whether anybody could be asked, were it not busy; reasons as of `choose`."""
        members, reason = self._usable(now_s, ())
        return bool(members) or reason == "busy", reason

    def _usable(self, now_s: float, exclude: Container[PeerId]) -> tuple[list[_Member], str]:
        """Who may be asked; if nobody, the obstacle that is nearest to being over."""
        members = []
        obstacles = set()
        for peer, member in self._members.items():
            if peer not in self._linked:
                obstacles.add("not_linked")
            elif member.standing.banned_for_s(now_s):
                obstacles.add("banned")
            elif member.standing.paused_for_s(now_s):
                obstacles.add("busy")
            elif peer in exclude:
                obstacles.add("excluded")
            else:
                members.append(member)
        for reason in ("excluded", "busy", "banned", "not_linked"):
            if reason in obstacles:
                return members, reason
        return members, "no_peer"

    def _with_room(self, members: list[_Member], now_s: float) -> list[_Member]:
        """Those below their fair share of what is in flight; never nobody."""
        speeds = [member.standing.quality(now_s) / self._work_s(member, 1) for member in members]
        in_flight = 1 + sum(len(member.charges) for member in members)
        total = sum(speeds)
        roomy = [
            member
            for member, speed in zip(members, speeds, strict=True)
            if len(member.charges) < 1 + speed / total * in_flight
            and not (member.is_new and member.charges)
        ]
        return roomy or members

    def _work_s(self, member: _Member, tokens: int) -> float:
        if member.s_per_token is not None:
            return member.s_per_token * tokens
        if member.candidate.tokens_per_s > 0:
            return max(FASTEST_S_PER_TOKEN, 1.0 / member.candidate.tokens_per_s) * tokens
        known = [m.s_per_token for m in self._members.values() if m.s_per_token is not None]
        return (sum(known) / len(known) if known else UNKNOWN_S_PER_TOKEN) * tokens

    def _link_times(self, member: _Member, size_bytes: int) -> tuple[float, float]:
        """(round trip, time of the bytes), seconds."""
        rtt_s, bytes_per_s = self._links.get(member.candidate.peer, (0.0, 0.0))
        return rtt_s, size_bytes / bytes_per_s if bytes_per_s > 0 else 0.0

    def _fade(self, now_s: float) -> None:
        keep = 0.5 ** (max(0.0, now_s - self._faded_at_s) / DEBT_HALF_S)
        self._faded_at_s = now_s
        for member in self._members.values():
            ahead_s = max(0.0, member.clock_s - self._base_s)
            member.clock_s = self._base_s + ahead_s * keep

    # ----------------------------------------------------------------------------------- outcomes

    def delivered(self, peer: PeerId, attempt: int, now_s: float, busy_s: float = 0.0) -> None:
        """It answered. `busy_s`: what its own worker spent, 0 if it does not say."""
        member = self._members.get(peer)
        charge = member.charges.pop(attempt, None) if member else None
        if member is None or charge is None:
            return
        elapsed_s = max(0.0, now_s - charge.sent_s)
        rtt_s = self._links.get(peer, (0.0, 0.0))[0]
        work_s = min(busy_s, elapsed_s) or max(0.0, elapsed_s - charge.transfer_s - rtt_s)
        measured = max(FASTEST_S_PER_TOKEN, work_s / max(1, charge.tokens))
        if member.s_per_token is None:
            member.s_per_token = measured
        else:
            member.s_per_token += EMA_WEIGHT * (measured - member.s_per_token)
        member.clock_s += (work_s + charge.transfer_s) / charge.quality - charge.amount_s
        if charge.is_missed:
            member.standing.redeemed(now_s)
        member.standing.delivered(now_s)
        member.is_new = False

    def busy(self, peer: PeerId, attempt: int, now_s: float, retry_in_s: float = 0.0) -> None:
        """It has no room: no fault, no charge, and nothing more until then or its next answer."""
        member = self._uncharge(peer, attempt)
        if member is not None:
            member.standing.pause(retry_in_s, now_s)

    def refused(self, peer: PeerId, attempt: int, now_s: float, *, is_fault: bool) -> None:
        """It will not do it. `is_fault`: it should have."""
        member = self._uncharge(peer, attempt)
        if member is not None:
            member.standing.end_pause()
            if is_fault:
                member.standing.missed(now_s)

    def overdue(self, peer: PeerId, attempt: int, now_s: float) -> None:
        """It has not answered in time. The charge stays until it does."""
        member = self._members.get(peer)
        charge = member.charges.get(attempt) if member else None
        if member is not None and charge is not None and not charge.is_missed:
            charge.is_missed = True
            member.standing.missed(now_s)

    def misled(self, peer: PeerId, now_s: float) -> None:
        """What it delivered was of no use after all."""
        member = self._members.get(peer)
        if member is not None:
            member.standing.missed(now_s)

    def withdrawn(self, peer: PeerId, attempt: int) -> None:
        """We want no answer any more. Its clock keeps the charge: it may have done the work."""
        member = self._members.get(peer)
        if member is not None:
            member.charges.pop(attempt, None)

    def unreachable(self, peer: PeerId, now_s: float, *, is_fault: bool = True) -> None:
        """A dial failed or its link ended: what it was charged is void. A fault brings a ban."""
        member = self._members.get(peer)
        if member is not None:
            for attempt in list(member.charges):
                self._uncharge(peer, attempt)
            if is_fault:
                member.standing.unreachable(now_s)

    def _uncharge(self, peer: PeerId, attempt: int) -> _Member | None:
        member = self._members.get(peer)
        charge = member.charges.pop(attempt, None) if member else None
        if member is None or charge is None:
            return None
        member.clock_s -= charge.amount_s
        return member

    # -------------------------------------------------------------------------------------- views

    @property
    def peers(self) -> tuple[PeerId, ...]:
        return tuple(self._members)

    def charged_s(self, peer: PeerId) -> float:
        """What it is charged for answers that have not come."""
        return sum(charge.amount_s for charge in self._members[peer].charges.values())

    def banned_for_s(self, peer: PeerId, now_s: float) -> float:
        return self._members[peer].standing.banned_for_s(now_s)

    def statistics(self, now_s: float) -> tuple[PeerTraffic, ...]:
        chosen = max(1, len(self._chosen))
        return tuple(
            PeerTraffic(
                peer=peer,
                traffic_share=self._chosen.count(peer) / chosen,
                score=member.standing.score(now_s),
                outstanding=len(member.charges),
                banned_for_s=member.standing.banned_for_s(now_s),
                s_per_token=member.s_per_token,
            )
            for peer, member in self._members.items()
        )
