"""What we say of ourselves, and when: changes, answers to accusers, and a new life after a sleep.

Three ways to contradict those who think wrong of us. Accused or suspected: a higher refutation of
the same life. Perhaps declared dead while we slept: a new life, with a higher incarnation, so that
nobody has to take a verdict back. Someone else's record with our key: own_record.py says who it is.
"""

from __future__ import annotations

import math
import random

from swarmd.protocols import effects as fx
from swarmd.protocols.dissemination import Dissemination
from swarmd.protocols.ids import PeerId
from swarmd.protocols.local_health import LocalHealth
from swarmd.protocols.messages.gossip import PeerRecord
from swarmd.protocols.own_record import OwnRecord
from swarmd.protocols.records import Haste
from swarmd.protocols.roster import Roster
from swarmd.protocols.suspicion import Life

REFUTE_EVERY_S = 0.5


class OwnVoice:
    """Signs, puts into the roster, queues as news. Effects gather in `out`."""

    def __init__(
        self,
        own: OwnRecord,
        roster: Roster,
        news: Dissemination,
        health: LocalHealth,
        out: list[fx.Effect],
        rng: random.Random,
    ) -> None:
        self._own = own
        self._peer = PeerId(own.record.peer)
        self._roster = roster
        self._news = news
        self._health = health
        self._out = out
        self._rng = rng
        self._accused_in: Life | None = None
        self._refuted_at_s = -math.inf

    def publish(self, now_s: float, haste: Haste) -> None:
        """Sign what has gathered about ourselves and queue it."""
        spread = self._rng.uniform(0.75, 1.25)
        signed = self._own.publish(now_s, self._roster.present_count, spread)
        self._roster.put_own(signed, self._own.record, now_s)
        self._news.put((self._peer, "record"), signed, haste=haste)
        self._news.fresh = max(self._news.fresh, haste)

    # ---------------------------------------------------------------------------------- accusers

    def hear_accusation(self, life: Life, now_s: float) -> None:
        """Somebody holds that life of ours for suspect or dead."""
        self._accused_in = max(life, self._accused_in or life)
        self.answer_accusers(now_s)

    def answer_accusers(self, now_s: float) -> None:
        """Refute what has gathered; at most twice a second, whoever shouts."""
        if self._accused_in is not None and now_s - self._refuted_at_s >= REFUTE_EVERY_S:
            self.refute(self._accused_in, now_s, "accused")

    def refute(self, life: Life, now_s: float, why: str) -> None:
        """Contradict an accusation of that life of ours."""
        self._accused_in = None
        self._refuted_at_s = now_s
        self._own.refute(life)
        self._health.was_accused()
        self.publish(now_s, Haste.AT_ONCE)
        self._emit("refuted", why=why, refutation=self._own.record.refutation)

    # -------------------------------------------------------------------------------------- lives

    def rejoin(self, now_s: float) -> None:
        """We slept so long that we may have been declared dead."""
        self._accused_in = None
        self._begin_life(self._own.record, now_s)

    def meet_own_record(self, other: PeerRecord, now_s: float) -> None:
        """Somebody signed with our key, and it was not us."""
        must_step, role = self._own.meet(other, now_s)
        if must_step:
            self._begin_life(other, now_s)
        if role in ("elder", "newcomer"):
            self._emit("identity_conflict", role=role, addresses=other.addresses)

    def _begin_life(self, former: PeerRecord, now_s: float) -> None:
        self._own.step_over(former)
        self.publish(now_s, Haste.AT_ONCE)
        self._emit("incarnation_raised", incarnation=self._own.record.incarnation)

    def _emit(self, event_name: str, **fields: object) -> None:
        self._out.append(fx.Emit(event_name, fields))
