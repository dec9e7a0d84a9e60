"""The ledger from our disk, for a swarm in which nobody knows any more what was done.

A swarm that was shut down may come back without a single peer that goes on with a ledger of its
own: where one stage's homes are gone, whoever takes the stage starts from a guardian's snapshot,
and that is a state and nothing else. So what lies beside each checkpoint and each snapshot is taken
up where somebody trains in a later round than the first and no neighbour has told of any ledger. A
living swarm tells a newcomer in its first second.
"""

from __future__ import annotations

from collections.abc import Iterable

from swarmd.protocols import effects as fx
from swarmd.protocols.coverage import Coverage
from swarmd.protocols.errors import ProtocolError
from swarmd.protocols.leases import LeaseBook
from swarmd.protocols.messages.ledger import LedgerTotals, LedgerUpdate
from swarmd.protocols.saved_states import SavedState
from swarmd.protocols.state_donor import Guarded

ASK_S = 3.0
"""So long others have to tell theirs."""


OnDisk = SavedState | Guarded
"""A state with its ledger: up to the beginning of its round everything is known."""


def take_up(leases: LeaseBook, saved: OnDisk, round_number: int) -> list[fx.Effect]:
    """What was done before `round_number`, from that ledger; an event if it is of no use."""
    messages = [m for m in saved.ledger if isinstance(m, LedgerTotals | LedgerUpdate)]
    try:
        leases.restore(messages, round_number)
    except ProtocolError as error:
        fields = {"stage": saved.stage, "round": saved.round, "code": error.code}
        return [fx.Emit("checkpoint_unusable", fields)]
    return []


class SavedLedgers:
    """All of ours. `review` as often as the roster changes, and every second or so."""

    def __init__(self, saved: Iterable[OnDisk], leases: LeaseBook) -> None:
        self._saved = [one for one in saved if one.ledger]
        self._leases = leases
        self._blank_since_s: float | None = None

    def review(self, coverage: Coverage, now_s: float) -> list[fx.Effect]:
        if not self._saved or not self._leases.ledger.is_blank:
            self._saved.clear()
            return []
        swarm_round = max((p.record.round for ps in coverage.active for p in ps), default=0)
        if swarm_round == 0:
            self._blank_since_s = None
            return []
        if self._blank_since_s is None:
            self._blank_since_s = now_s
        if now_s - self._blank_since_s < ASK_S:
            return []
        effects: list[fx.Effect] = []
        for saved in self._best_first(swarm_round):
            effects += take_up(self._leases, saved, min(saved.round, swarm_round))
            if not self._leases.ledger.is_blank:
                break
        self._saved.clear()
        return effects

    def _best_first(self, swarm_round: int) -> list[OnDisk]:
        """Those that reach the swarm's round, the nearest first; then the others likewise."""
        return sorted(
            self._saved,
            key=lambda one: (one.round < swarm_round, abs(one.round - swarm_round), one.stage),
        )
