"""Whom to ask next: the replica of the next stage with the least expected finish.

SWARM's idea (arXiv 2301.11913) with the rules of algorithms.md 4.1. Each replica has a virtual
clock, the time until which the work it was given would keep it busy. Choosing charges it up front,
its answer replaces the estimate by what it measured, BUSY takes the charge back, and silence leaves
it: that is what keeps a peer which never answers from collecting work. A newcomer starts at the
latest clock of all, and is given one at a time until its first answer.

Where we differ, and why:
  * the clocks are compared to each other, not to the time of day: they count work received, so that
    replicas share in proportion to their speed also when there is little to do, and all of them
    learn; the distances between them fade, so that old charges pin nobody;
  * the round trip is a delay and not an occupation: it counts when comparing and is not charged.
    The time that the bytes take on the link is charged;
  * no replica holds more of what is in flight than its fair share and one: if the estimates are
    wrong (somebody else uses it too), the others still have work;
  * work costs more where it gets lost (standing.py);
  * BUSY costs the transfer of a payload, so it teaches how much a replica takes from us;
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
CREDIT_CHARGES = 5
"""How far a clock may lag, in charges: who was passed over does not get all of it back at once."""
DEBT_HALF_S = 60.0
"""In which the clocks come half way together."""
WINDOW_GAIN = 0.1
"""After BUSY, how much more is tried with each answer: a payload in vain once in ten."""
CLAIM_FACTOR_MAX = 4.0
"""How much faster or slower than those measured a claim alone can make a peer: a wrong one neither
floods it nor keeps it from ever being measured."""
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
    window: float = float("inf")
    """How many it has room for from us, as far as it has shown."""

    @property
    def in_time(self) -> int:
        """How many it may still answer in time."""
        return sum(not charge.is_missed for charge in self.charges.values())

    @property
    def is_full(self) -> bool:
        return self.in_time + 1 > self.window


@dataclass(slots=True)
class _Bid:
    """What giving a micro-batch to one member would mean."""

    member: _Member
    rtt_s: float
    transfer_s: float
    quality: float
    amount_s: float
    start_s: float = 0.0

    @property
    def finish_s(self) -> float:
        return self.start_s + self.amount_s + self.rtt_s


class Router:
    """The candidates of one next stage. Attempts are named by the caller's number."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._members: dict[PeerId, _Member] = {}
        """Sorted by peer."""
        self._linked: set[PeerId] = set()
        self._links: dict[PeerId, tuple[float, float]] = {}
        """(rtt_s, bytes_per_s); 0: not known."""
        self._faded_at_s = 0.0
        self._chosen: deque[PeerId] = deque(maxlen=SHARE_WINDOW)

    # -------------------------------------------------------------------------- told from outside

    def set_candidates(self, candidates: Iterable[Candidate]) -> list[PeerId]:
        """Replace them. Returns those that restarted: what their former self held is lost."""
        fresh: dict[PeerId, _Member] = {}
        restarted = []
        latest_s = max((m.clock_s for m in self._members.values()), default=0.0)
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

    def set_linked(self, peer: PeerId, is_linked: bool) -> bool:
        """Only who is linked is chosen. True if that is new."""
        if is_linked == (peer in self._linked):
            return False
        if is_linked:
            self._linked.add(peer)
        else:
            self._linked.discard(peer)
            self._links.pop(peer, None)
        return True

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
        bids = [self._bid(member, tokens, size_bytes, now_s) for member in members]
        pool = self._with_room(self._without_novices(bids))
        latest_s = max(bid.member.clock_s for bid in pool)
        for bid in pool:
            bid.start_s = max(bid.member.clock_s, latest_s - CREDIT_CHARGES * bid.amount_s)
        first_s = min(bid.finish_s for bid in pool)
        chosen = self._rng.choice([bid for bid in pool if bid.finish_s == first_s])
        member = chosen.member
        member.clock_s = chosen.start_s + chosen.amount_s
        member.charges[attempt] = _Charge(
            now_s, tokens, chosen.transfer_s, chosen.quality, chosen.amount_s
        )
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
            elif member.standing.paused_for_s(now_s) or member.is_full:
                obstacles.add("busy")
            elif peer in exclude:
                obstacles.add("excluded")
            else:
                members.append(member)
        for reason in ("excluded", "busy", "banned", "not_linked"):
            if reason in obstacles:
                return members, reason
        return members, "no_peer"

    def _bid(self, member: _Member, tokens: int, size_bytes: int, now_s: float) -> _Bid:
        rtt_s, bytes_per_s = self._links.get(member.candidate.peer, (0.0, 0.0))
        transfer_s = size_bytes / bytes_per_s if bytes_per_s > 0 else 0.0
        quality = member.standing.quality(now_s)
        amount_s = (self._s_per_token(member) * tokens + transfer_s) / quality
        return _Bid(member, rtt_s, transfer_s, quality, amount_s)

    def _without_novices(self, bids: list[_Bid]) -> list[_Bid]:
        """Who is new and has one already waits for its first answer, unless all are so."""
        seasoned = [bid for bid in bids if not (bid.member.is_new and bid.member.charges)]
        return seasoned or bids

    def _with_room(self, bids: list[_Bid]) -> list[_Bid]:
        """Those that hold less than their fair share of what is in flight, and one. Not empty."""
        in_flight = 1 + sum(len(bid.member.charges) for bid in bids)
        total = sum(1.0 / bid.amount_s for bid in bids)
        return [
            bid for bid in bids if len(bid.member.charges) < 1 + in_flight / (bid.amount_s * total)
        ]

    def _s_per_token(self, member: _Member) -> float:
        """Measured, or guessed from its claim as the others' measurements bear out theirs."""
        if member.s_per_token is not None:
            return member.s_per_token
        claim = member.candidate.tokens_per_s
        measured = [m for m in self._members.values() if m.s_per_token is not None]
        if not measured:
            return max(FASTEST_S_PER_TOKEN, 1.0 / claim) if claim > 0 else UNKNOWN_S_PER_TOKEN
        costs = [m.s_per_token or 0.0 for m in measured]
        mean = sum(costs) / len(costs)
        honest = [m.candidate.tokens_per_s * (m.s_per_token or 0.0) for m in measured]
        guess = sum(honest) / len(honest) / claim if claim > 0 else mean
        return min(CLAIM_FACTOR_MAX * mean, max(mean / CLAIM_FACTOR_MAX, guess))

    def _fade(self, now_s: float) -> None:
        keep = 0.5 ** (max(0.0, now_s - self._faded_at_s) / DEBT_HALF_S)
        self._faded_at_s = now_s
        base_s = min(member.clock_s for member in self._members.values())
        for member in self._members.values():
            member.clock_s = base_s + (member.clock_s - base_s) * keep

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
        member.window += WINDOW_GAIN
        member.is_new = False

    def busy(self, peer: PeerId, attempt: int, now_s: float, retry_in_s: float = 0.0) -> None:
        """It has no room: no fault, no charge. Nothing more until then or its next answer, and then
        no more at once than it has taken now."""
        member = self._uncharge(peer, attempt)
        if member is not None:
            member.window = max(1.0, member.in_time)
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
