"""What we make of what we hear: records, rumours, and the silence of links.

Rules: our own ears outweigh rumours (a peer that we heard just now is not accused on hearsay); the
accused is told, so that it can answer; a death is believed only of a peer that had time to answer,
and on two voices of peers that should have links to it, else we look for ourselves; who is dead is
dropped at the transport too, since neither side of a frozen connection notices. And an accuser is
heard only in its own name and within its credit (accusers.py).

Effects gather in `out`, which the machine hands on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from swarmd.protocols import effects as fx
from swarmd.protocols.accusers import Accusers
from swarmd.protocols.dissemination import Dissemination
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.introductions import Introductions
from swarmd.protocols.link_keeper import LinkKeeper
from swarmd.protocols.messages.gossip import VERDICTS, Gossip, PeerRecord, Rumour, SignedRecord
from swarmd.protocols.own_voice import OwnVoice
from swarmd.protocols.probing import Prober
from swarmd.protocols.records import Haste, life_of, read_record, stamp_of
from swarmd.protocols.rings import Rings
from swarmd.protocols.roster import Entry, Liveness, Meaning, Merged, Roster
from swarmd.protocols.suspicion import Life, Suspicions

VOICES = 2
"""Accusers that should know, before a death is believed that we did not see."""
SENDERS_MAX = 1_024
"""Senders whose rejected messages are counted one by one."""


@dataclass(slots=True)
class _Question:
    """We told a peer that it stands accused, and wait for it to refute."""

    life: Life
    at_s: float
    rumour: Rumour
    is_due: bool = True
    """Its silence is still to be judged."""


class Judgement:
    """Changes roster, rings and suspicions; fills the queue of news."""

    def __init__(
        self,
        own: PeerId,
        voice: OwnVoice,
        roster: Roster,
        rings: Rings,
        keeper: LinkKeeper,
        prober: Prober,
        suspicions: Suspicions,
        accusers: Accusers,
        news: Dissemination,
        out: list[fx.Effect],
    ) -> None:
        self._peer = own
        self._voice = voice
        self._roster = roster
        self._rings = rings
        self._keeper = keeper
        self._prober = prober
        self._suspicions = suspicions
        self._accusers = accusers
        self._news = news
        self._out = out
        self._questions: dict[PeerId, _Question] = {}
        self.introductions = Introductions()
        self.rejected: dict[PeerId, Counter[str]] = {}

    # ------------------------------------------------------------------------------------- records

    def take_records(
        self, source: PeerId, records: tuple[SignedRecord, ...], now_s: float
    ) -> tuple[set[PeerId], int]:
        """(who was unknown before, how many records told more than progress)."""
        strangers = set()
        learned = 0
        for signed in records:
            known = self._roster.whose(signed.body)
            if known is not None:  # most of what arrives
                self._news.known_by((known, "record"), signed, source)
                continue
            if not self._may_tell(source, signed, now_s):
                self._roster.counters["too_many_newcomers"] += 1
                continue
            try:
                merged = self._roster.merge(signed, now_s)
            except RemoteProtocolError as error:
                self.reject(source, error.code, error.text)
                continue
            peer = PeerId(merged.record.peer)
            if merged.meaning is Meaning.OWN:
                self._voice.meet_own_record(merged.record, now_s)
            elif merged.meaning is not Meaning.OLDER:
                learned += merged.haste is Haste.AT_ONCE
                if merged.meaning is Meaning.NEW:
                    strangers.add(peer)
                self._news.put((peer, "record"), signed, told=(source, peer), haste=merged.haste)
                self._learned(peer, merged)
        return strangers, learned

    def _may_tell(self, source: PeerId, signed: SignedRecord, now_s: float) -> bool:
        """Who brings peers by hearsay that were not there has a limited credit."""
        try:
            record = read_record(signed.body)
        except RemoteProtocolError:
            return True  # the roster will say what is wrong with it
        peer, held = PeerId(record.peer), self._roster.get(PeerId(record.peer))
        is_first_hand = peer in (source, self._peer) or peer in self._keeper.links
        if is_first_hand or record.phase == "left":
            return True
        if held is not None and (held.is_present or not self._revives(record, held)):
            return True
        return self.introductions.take(source, len(self._roster), now_s)

    @staticmethod
    def _revives(record: PeerRecord, held: Entry) -> bool:
        is_newer = stamp_of(record) > stamp_of(held.record)
        return is_newer and (life_of(record) > held.life or held.liveness is Liveness.LEFT)

    def _learned(self, peer: PeerId, merged: Merged) -> None:
        record = merged.record
        self._news.fresh = max(self._news.fresh, merged.haste)
        if merged.meaning is Meaning.CHANGED and merged.haste is not Haste.AT_ONCE:
            return
        entry = self._roster.get(peer)
        assert entry is not None
        told = {"peer": peer, "stage": record.stage, "phase": record.phase}
        if entry.liveness is Liveness.LEFT:
            was_there = merged.before is None or merged.before.phase != "left"
            self._end_presence(peer)
            if was_there:
                self._emit("peer_left", **told)
        elif merged.meaning is Meaning.NEW:
            self._begin_presence(peer)
            self._emit("peer_joined", **told, incarnation=record.incarnation)
        elif merged.meaning is Meaning.RETURNED:
            self._begin_presence(peer)
            self._emit("peer_returned", **told, incarnation=record.incarnation)
        elif merged.meaning is Meaning.REFUTED:
            self._begin_presence(peer)
            self._emit("peer_refuted", **told)
        else:
            self._emit("record_changed", **told, round=record.round)

    def _begin_presence(self, peer: PeerId) -> None:
        self._suspicions.end(peer)
        self._questions.pop(peer, None)
        for verdict in VERDICTS:
            self._news.withdraw((peer, verdict))
        self._rings.add(peer)
        self._keeper.rings_changed()
        self._keeper.try_soon(peer)

    def _end_presence(self, peer: PeerId) -> None:
        self._suspicions.end(peer)
        self._questions.pop(peer, None)
        self._prober.forget(peer)
        self._news.withdraw((peer, "suspect"))
        self._rings.remove(peer)
        self._keeper.rings_changed()

    # ------------------------------------------------------------------------------------- rumours

    def take_rumour(
        self, source: PeerId, rumour: Rumour, strangers: set[PeerId], now_s: float
    ) -> None:
        """Hearsay. `strangers`: peers of whom we know nothing but what came in this message."""
        if rumour.verdict not in VERDICTS:
            self.reject(source, "malformed", f"rumour of {rumour.verdict!r}")
            return
        peer = PeerId(rumour.peer)
        life = (rumour.incarnation, rumour.refutation)
        entry = self._roster.get(peer)
        if entry is None or life < entry.life:
            return
        if life > entry.life:  # only the accused begins its lives, and could refute none of these
            self._roster.counters["unknown_life"] += 1
            return
        if peer == self._peer:
            self._hear_of_ourselves(source, rumour, life, now_s)
        elif not entry.is_present:
            self._news.known_by((peer, rumour.verdict), rumour, source)
        elif self._prober.heard_recently(peer, now_s) and not self._owes_answer(peer, life, now_s):
            self._ask(peer, life, rumour, now_s)
        elif self._is_worth_hearing(source, rumour, life, now_s):
            is_vouched = peer in strangers and source != rumour.accuser
            self._believe(entry, life, rumour, is_vouched, now_s)

    def _hear_of_ourselves(self, source: PeerId, rumour: Rumour, life: Life, now_s: float) -> None:
        if not self._accusers.is_genuine(rumour):
            self.reject(source, "bad_signature", f"rumour in the name of {rumour.accuser}")
            return
        self._voice.hear_accusation(life, now_s)

    def _owes_answer(self, peer: PeerId, life: Life, now_s: float) -> bool:
        """We told it of an accusation of that life, and it has not refuted it in due time."""
        asked = self._questions.get(peer)
        if asked is None or asked.life < life:
            return False
        return now_s - asked.at_s >= self._suspicions.timeout_s_min / 2

    def follow_up(self, now_s: float) -> None:
        """Whom we hear, but who does not refute what we told it: perhaps it did not get it."""
        if not self._questions:
            return
        for peer in sorted(self._questions):
            asked = self._questions[peer]
            if asked.is_due and self._owes_answer(peer, asked.life, now_s):
                asked.is_due = False
                entry = self._roster.get(peer)
                if entry is not None and entry.liveness is Liveness.ALIVE:
                    self.take_rumour(peer, asked.rumour, set(), now_s)

    def _is_worth_hearing(self, source: PeerId, rumour: Rumour, life: Life, now_s: float) -> bool:
        """It is not the same voice again, is no forgery, and the accuser has credit left."""
        peer, accuser = PeerId(rumour.peer), PeerId(rumour.accuser)
        held = self._suspicions.get(peer)
        is_known_voice = held is not None and held.life >= life and held.has_accuser(accuser)
        if is_known_voice:
            return rumour.verdict == "dead"
        if accuser not in self._roster or accuser == peer:
            return False
        if not self._accusers.is_genuine(rumour):
            self.reject(source, "bad_signature", f"rumour in the name of {accuser}")
            return False
        return self._accusers.spend(accuser, self._roster.present_count, now_s)

    def _believe(
        self, entry: Entry, life: Life, rumour: Rumour, is_vouched: bool, now_s: float
    ) -> None:
        """A death is believed at once if the peer had stood accused here for half the least time,
        on voices enough; else it stands accused now, and has the least time to answer.

        is_vouched: of a peer that we never knew, and by another than who buried it: a newcomer must
        not wake the dead of the whole swarm.
        """
        peer = PeerId(rumour.peer)
        if rumour.verdict != "dead":
            self._suspect(entry, life, rumour, "hearsay", now_s)
            return
        held = self._suspicions.get(peer)
        had_time = held is not None and self._suspicions.is_half_spent(peer, now_s)
        self._suspect(entry, life, rumour, "hearsay", now_s)
        if is_vouched or (had_time and self._is_known_enough(peer)):
            self._bury(entry, rumour, now_s)
        elif peer in self._suspicions:
            self._suspicions.hasten(peer)

    # ---------------------------------------------------------------------------------- judgement

    def accuse(self, peer: PeerId, why: str, now_s: float) -> None:
        """We ourselves do not hear it."""
        entry = self._roster.get(peer)
        if entry is None or not entry.is_present or peer == self._peer:
            return
        held = self._suspicions.get(peer)
        if held is None or not held.has_accuser(self._peer):
            rumour = self._accusers.rumour(peer, entry.life, "suspect")
            self._suspect(entry, entry.life, rumour, why, now_s)

    def judge(self, now_s: float) -> None:
        """Those whose time is up are dead, unless we know it from hearsay only: then we look."""
        for peer in self._suspicions.expired(now_s):
            entry = self._roster.get(peer)
            if entry is None or not entry.is_present:
                self._suspicions.end(peer)
            elif self._is_known_enough(peer):
                life = self._suspicions.life_of(peer, entry.life)
                self._bury(entry, self._accusers.rumour(peer, life, "dead"), now_s)
            elif self._prober.heard_recently(peer, now_s):
                self._suspicions.vouch(peer)
                self.tell_the_accused(peer, now_s)
            else:
                held = self._suspicions.get(peer)
                accusation = (held.rumour,) if held is not None and held.rumour else ()
                self._prober.doubt(peer, now_s, accusation)

    def _is_known_enough(self, peer: PeerId) -> bool:
        """We did not hear it ourselves, or two did not that should have links to it; or somebody
        hears it and told it, and still it does not refute."""
        held = self._suspicions.get(peer)
        if held is None:
            return False
        if self._peer in held.witnesses or held.is_vouched:
            return True
        could_know = len(self._rings.neighbours(peer))
        return len(held.witnesses) >= min(VOICES, could_know)

    def vouch(self, peer: PeerId) -> None:
        """A helper has just heard it, and told it: it gets time to refute."""
        if peer in self._suspicions:
            self._suspicions.vouch(peer)

    def tell_the_accused(self, peer: PeerId, now_s: float) -> None:
        """A peer that we hold for suspect or dead speaks to us: say so, it will answer."""
        entry = self._roster.get(peer)
        if entry is None or entry.liveness in (Liveness.ALIVE, Liveness.LEFT):
            return
        life = self._suspicions.life_of(peer, entry.life)
        if not self._has_asked(peer, life):
            rumour = entry.death or self._accusers.rumour(peer, life, str(entry.liveness))
            self._ask(peer, life, rumour, now_s)

    def link_went_up(self, peer: PeerId, now_s: float) -> None:
        """What we told it before may have been lost with the former link."""
        self._questions.pop(peer, None)
        self.tell_the_accused(peer, now_s)

    def reject(self, source: PeerId, code: str, text: str) -> None:
        """Count what a peer should not have sent; told once for each code."""
        counts = self.rejected.get(source)
        if counts is None:
            if len(self.rejected) >= SENDERS_MAX:
                del self.rejected[next(iter(self.rejected))]
            counts = self.rejected[source] = Counter()
        counts[code] += 1
        if counts[code] == 1:
            self._emit("record_rejected", peer=source, code=code, text=text)

    def _suspect(self, entry: Entry, life: Life, rumour: Rumour, why: str, now_s: float) -> None:
        peer, accuser = PeerId(rumour.peer), PeerId(rumour.accuser)
        could_know = self._rings.neighbours(peer)
        is_worth_telling = self._suspicions.accuse(
            peer,
            life,
            accuser,
            now_s,
            rumour=rumour,
            is_witness=accuser == self._peer or accuser in could_know,
            others=len(could_know) - 1,
        )
        if not is_worth_telling:
            return
        if rumour.verdict == "suspect":
            self._news.put((peer, "suspect"), rumour, told=(accuser,))
            self._news.fresh = Haste.AT_ONCE
        if entry.liveness is Liveness.ALIVE:
            self._roster.set_liveness(entry, Liveness.SUSPECT, now_s)
            self._keeper.hurry(peer, now_s)
            self._emit("peer_suspect", peer=peer, accuser=accuser, why=why)

    def _bury(self, entry: Entry, death: Rumour, now_s: float) -> None:
        peer = PeerId(entry.record.peer)
        held = self._suspicions.get(peer)
        if held is not None:
            for accuser in (*held.witnesses, *held.hearsay):
                self._accusers.was_right(accuser)
        self._roster.set_liveness(entry, Liveness.DEAD, now_s)
        entry.death = death
        self._end_presence(peer)
        self._news.put((peer, "dead"), death, told=(PeerId(death.accuser),))
        self._news.withdraw((peer, "record"))
        self._news.fresh = Haste.AT_ONCE
        if peer in self._keeper.links:
            self._out.append(fx.Send(peer, Gossip(rumours=(death,))))
            self._out += self._keeper.drop(peer, "dead")
        self._emit(
            "peer_dead",
            peer=peer,
            accuser=death.accuser,
            silent_s=now_s - entry.last_heard_s,
            stage=entry.record.stage,
        )

    def _has_asked(self, peer: PeerId, life: Life) -> bool:
        asked = self._questions.get(peer)
        return asked is not None and asked.life >= life

    def _ask(self, peer: PeerId, life: Life, rumour: Rumour, now_s: float) -> None:
        """Once for each life and link."""
        if peer in self._keeper.links and not self._has_asked(peer, life):
            self._questions[peer] = _Question(life, now_s, rumour)
            self._out.append(fx.Send(peer, Gossip(rumours=(rumour,))))

    def _emit(self, event_name: str, **fields: Any) -> None:
        self._out.append(fx.Emit(event_name, fields))
