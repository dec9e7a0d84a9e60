"""Our own record: what we say of ourselves, when it is told, and what happens when others tell it.

Urgent changes (stage, phase, addresses ...) are signed and told at once. Progress and rounds are
told at most every so often, the more rarely the larger the swarm, so that their bytes stay flat.

Somebody who accuses us is answered with a higher refutation. A record of ours that we did not make
is either a former life of this key (our disk forgot), or another living holder of it. Soon after
our start we take it for the former and step over it. If it steps over us in turn, it lives: a
former life does not answer. The elder keeps the key, the newcomer is told to end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from swarmd.protocols import wire
from swarmd.protocols.errors import LocalProtocolError
from swarmd.protocols.membership_limits import MembershipLimits
from swarmd.protocols.messages.gossip import PHASES, PeerRecord, SignedRecord
from swarmd.protocols.records import SHAPELESS_FIELDS, Haste, stamp_of
from swarmd.protocols.suspicion import Life

Sign = Callable[[bytes], bytes]

_NOT_BY_HAND = frozenset({"peer", "incarnation", "version", "run_id", "refutation"})
_FIELDS = frozenset(item.name for item in fields(PeerRecord))


class OwnRecord:
    """`record` and `signed` are what the others may know by now."""

    def __init__(self, record: PeerRecord, sign: Sign, limits: MembershipLimits) -> None:
        self._sign = sign
        self._limits = limits
        self._pending: dict[str, Any] = {}
        self._pending_due_s = 0.0
        self._started_s = 0.0
        self._first_incarnation = record.incarnation
        self._stepped_at_s: float | None = None
        self.record = record
        self.signed = self._signed(record)

    def start(self, now_s: float) -> None:
        self._started_s = now_s

    # ----------------------------------------------------------------------------------- changes

    def change(self, changes: dict[str, Any], now_s: float) -> Haste:
        """Note changes, and say how soon they want to be told. AT_ONCE: call `publish`."""
        unknown = (changes.keys() - _FIELDS) | (changes.keys() & _NOT_BY_HAND)
        if unknown:
            raise LocalProtocolError("malformed", f"no such fields to change: {sorted(unknown)}")
        if changes.get("phase", PHASES[0]) not in PHASES:
            raise LocalProtocolError("malformed", f"no such phase: {changes['phase']}")
        real = {
            name: value for name, value in changes.items() if getattr(self.record, name) != value
        }
        for name in changes:
            self._pending.pop(name, None)
        self._pending.update(real)
        if not real.keys() <= SHAPELESS_FIELDS:
            return Haste.AT_ONCE
        return self.haste

    @property
    def haste(self) -> Haste:
        """Of what waits to be told."""
        return Haste.SOON if "round" in self._pending else Haste.WHENEVER

    def is_due(self, now_s: float) -> bool:
        """Something has waited long enough."""
        return bool(self._pending) and now_s >= self._pending_due_s

    def publish(self, now_s: float, peer_count: int, spread: float) -> SignedRecord:
        """Sign what has gathered as a new version.

        spread: 0.75 .. 1.25, so that peers that started together do not tell together.
        """
        pause_s = max(self._limits.progress_s_min, peer_count / self._limits.progress_per_s)
        self._pending_due_s = now_s + spread * pause_s
        changes, self._pending = self._pending, {}
        self._put(replace(self.record, version=self.record.version + 1, **changes))
        return self.signed

    def refute(self, life: Life) -> None:
        """Contradict an accusation of that life. Publish afterwards."""
        refutation = max(self.record.refutation, life[1]) + 1
        self.record = replace(self.record, refutation=refutation)

    # ------------------------------------------------------------------------------ who else is me

    def meet(self, other: PeerRecord, now_s: float) -> tuple[bool, str]:
        """A newer record of ours that we did not sign came in.

        Returns (step over it?, role). Role: "former_life", "elder" (we were here first; somebody
        else holds our key), "newcomer" (the other was), "" (too soon to say anything again).
        """
        if stamp_of(other) < stamp_of(self.record):
            return False, ""
        is_young = now_s - self._started_s <= self._limits.identity_window_s
        if is_young and self._stepped_at_s is not None:
            return False, "newcomer"
        if not is_young and self._stepped_at_s is not None:
            if now_s - self._stepped_at_s < self._limits.probe_interval_s:
                return False, ""
        self._stepped_at_s = now_s
        return True, "former_life" if is_young else "elder"

    def step_over(self, other: PeerRecord) -> None:
        """Take a higher incarnation than that record's. Publish afterwards."""
        incarnation = max(self.record.incarnation, other.incarnation) + 1
        self.record = replace(self.record, incarnation=incarnation, refutation=0)

    def _put(self, record: PeerRecord) -> None:
        self.record = record
        self.signed = self._signed(record)

    def _signed(self, record: PeerRecord) -> SignedRecord:
        body = wire.encode(record)
        return SignedRecord(body=body, signature=self._sign(body))
