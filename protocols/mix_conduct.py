"""Whose mixes came too late, whose were refused: each offence told and counted once.

Who broke a rule is left out for some rounds by those who saw it themselves, for longer each time.
Messages of another round are refused and told like any other, but no offence the first time: who
was frozen or cut off goes on with what was right when it fell silent, and knows better in the next
round. Who still has not learned it then is no sleeper.
"""

from __future__ import annotations

from collections import Counter

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId
from swarmd.protocols.mix_group import LATE
from swarmd.protocols.reducer import CLIPPED
from swarmd.protocols.round_surroundings import Surroundings

STALE = "wrong_round"
REMEMBERED_MAX = 1_024
"""Offences; then the oldest rounds' are forgotten, and could be told a second time."""


class MixConduct:
    """Events go to the list shared with its owner."""

    def __init__(self, around: Surroundings, effects: list[fx.Effect]) -> None:
        self._around = around
        self._effects = effects
        self._told: dict[tuple[int, PeerId, str], None] = {}
        self.late_total = 0
        self.rejected_total = 0
        self.late_in_round = 0
        self.rejected_in_round = 0
        self._stale_in: dict[PeerId, int] = {}
        """Whose messages were of another round, and our round when they last were."""
        self.offences: Counter[PeerId] = Counter()
        self.counts: Counter[tuple[PeerId, str]] = Counter()
        """Peer and code to in how many rounds."""

    def begin_round(self) -> None:
        self.late_in_round = self.rejected_in_round = 0

    def late(self, peer: PeerId, round_number: int) -> None:
        """A mix of `peer` (ourselves, where others have gone on without us) came too late."""
        if self._is_new(round_number, peer, LATE):
            self.late_total += 1
            self.late_in_round += 1
            self._tell("update_late", peer, round_number, LATE)

    def answered(self, peer: PeerId, round_number: int, code: str, *, now_in: int) -> None:
        """A message of that round was answered with this code; "": it was in order."""
        if code == LATE:
            self.late(peer, round_number)
        elif code:
            self._effects.append(fx.Emit("mixing/rejected", {"peer": peer, "code": code}))
            self.refused(peer, now_in, code)

    def refused(self, peer: PeerId, round_number: int, code: str) -> None:
        """It broke a rule, in a message or with what it brought, which was left out; or it was
        clipped: used as far as it cannot steer, which is no offence."""
        if peer == self._around.own or not self._is_new(round_number, peer, code):
            return
        self._tell("update_rejected", peer, round_number, code)
        if code == CLIPPED:
            return
        self.rejected_total += 1
        self.rejected_in_round += 1
        if code == STALE and self._just_woke(peer, round_number):
            return
        self.offences[peer] += 1
        self._around.catch(peer, round_number, code, self.offences[peer])

    def _just_woke(self, peer: PeerId, round_number: int) -> bool:
        before, self._stale_in[peer] = self._stale_in.get(peer), round_number
        return before is None or before < round_number - 1

    def _is_new(self, round_number: int, peer: PeerId, code: str) -> bool:
        key = (round_number, peer, code)
        if key in self._told:
            return False
        if len(self._told) >= REMEMBERED_MAX:
            for old in list(self._told)[: REMEMBERED_MAX // 2]:
                del self._told[old]
        self._told[key] = None
        self.counts[peer, code] += 1
        return True

    def _tell(self, name: str, peer: PeerId, round_number: int, code: str) -> None:
        fields = {"peer": peer, "round": round_number, "code": code}
        self._effects.append(fx.Emit(name, fields))
