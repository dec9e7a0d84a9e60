"""Who may accuse, and how often: rumours are signed, and a false accuser runs out of credit.

Anybody on the open network may say that anybody is dead. Two things keep that cheap for the swarm.
Nobody can accuse in another's name, so confirmations are real voices. And each accuser has a
credit, as large as the swarm at first, that an accusation costs, a death gives back, and time
refills slowly: after it has called everybody dead once, a liar is heard a few times a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from swarmd.protocols import wire
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.gossip import Rumour
from swarmd.protocols.roster import Verify
from swarmd.protocols.suspicion import Life

CREDIT_MIN = 16.0
"""For small swarms, where links come and go for honest reasons too."""
CREDIT_PER_S = 0.1


@dataclass(slots=True)
class _Credit:
    spent: float
    at_s: float


class Accusers:
    """Makes, checks and counts rumours. sign, verify: as for records."""

    def __init__(
        self, own: PeerId, run_id: str, sign: Callable[[bytes], bytes], verify: Verify
    ) -> None:
        self._own = own
        self._run_id = run_id.encode()
        self._sign = sign
        self._verify = verify
        self._credits: dict[PeerId, _Credit] = {}

    def rumour(self, peer: PeerId, life: Life, verdict: str) -> Rumour:
        """Our own accusation, signed."""
        bare = Rumour(
            peer=peer,
            incarnation=life[0],
            refutation=life[1],
            verdict=verdict,
            accuser=self._own,
        )
        return replace(bare, signature=self._sign(_signed_part(self._run_id, bare)))

    def is_genuine(self, rumour: Rumour) -> bool:
        """Did the accuser say so?"""
        signed = _signed_part(self._run_id, rumour)
        return self._verify(PeerId(rumour.accuser), signed, rumour.signature)

    def spend(self, accuser: PeerId, peer_count: int, now_s: float) -> bool:
        """May it accuse once more? If so, it has."""
        credit = self._credits.get(accuser)
        if credit is None:
            credit = self._credits[accuser] = _Credit(0.0, now_s)
        credit.spent = max(0.0, credit.spent - (now_s - credit.at_s) * CREDIT_PER_S)
        credit.at_s = now_s
        if credit.spent + 1.0 > max(CREDIT_MIN, 2.0 * peer_count):
            return False
        credit.spent += 1.0
        return True

    def was_right(self, accuser: PeerId) -> None:
        """Whom it accused is dead."""
        credit = self._credits.get(accuser)
        if credit is not None:
            credit.spent = max(0.0, credit.spent - 1.0)

    def forget(self, peer: PeerId) -> None:
        self._credits.pop(peer, None)


@lru_cache(maxsize=1_024)
def _signed_part(run_id: bytes, rumour: Rumour) -> bytes:
    """Kept, since the same rumour comes from several neighbours."""
    return run_id + wire.encode(replace(rumour, signature=b""))
