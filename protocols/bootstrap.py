"""How a peer that has only a run link gets the run's description.

It dials the entry addresses, asks every peer that answers, and takes the first body whose hash is
the run id; whoever sent another one is told apart by it. No answer: the reason names each address
with its cause, and the next try comes later, doubling up to a bound; each change of it is told as
`state_changed`. Nothing here joins the swarm: that begins once the description is known (peer.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId, RunId
from swarmd.protocols.messages import control
from swarmd.protocols.reasons import Reason

RETRY, REPORT = "bootstrap/retry", "bootstrap/report"

ENTRY_HINT = (
    "see that a peer of the link runs and that its port is open; any peer of the run prints a "
    "link with the addresses that work now: `swarmd run link`"
)
"""For whoever finds nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapLimits:
    """Values of docs/cli.md section 14."""

    report_s: float = 5.0
    """From start to a named reason when nobody answers."""
    retry_s_first: float = 1.0
    retry_s_max: float = 60.0
    answer_s: float = 5.0
    """A linked peer that has not described the run by then is asked again elsewhere."""


@dataclass(slots=True)
class Entry:
    """One entry peer, its addresses, and what became of the last try."""

    addresses: tuple[str, ...]
    causes: dict[str, str] = field(default_factory=dict)
    is_linked: bool = False


class Bootstrap:
    """Ends with Emit("run_described", {"body": bytes}). Links made stay up.

    hash_of: BLAKE2b-256 of bytes, in hex. Floor 0 has no cryptography of its own.
    """

    def __init__(
        self,
        run_id: RunId,
        entries: dict[PeerId, tuple[str, ...]],
        *,
        hash_of: Callable[[bytes], str],
        limits: BootstrapLimits,
        rng: random.Random,
    ) -> None:
        self._run_id = run_id
        self._entries = {peer: Entry(addresses) for peer, addresses in sorted(entries.items())}
        self._hash_of = hash_of
        self._limits = limits
        self._rng = rng
        self._started_s = 0.0
        self._retry_s = limits.retry_s_first
        self._retry_at_s: float | None = None
        self._described = False
        self._told = ""
        self.rejected: dict[PeerId, str] = {}

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        if self._described:
            return []
        effects = self._follow(event, now_s)
        return effects if self._described else [*effects, *self._tell(now_s)]

    def _follow(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        match event:
            case fx.Started():
                self._started_s = now_s
                report = fx.SetTimer(REPORT, self._limits.report_s)
                return [*self._dial_all(now_s), report]
            case fx.LinkUp(peer):
                if peer in self._entries:
                    self._entries[peer].is_linked = True
                return [fx.Send(peer, control.RunRequest(run_id=self._run_id))]
            case fx.Arrived(peer, control.RunDescription() as description):
                return self._take(peer, description)
            case fx.Arrived(peer, control.Refusal() as refusal):
                return self._refused(peer, refusal.code)
            case fx.LinkDown(peer, _):
                if peer in self._entries:
                    self._entries[peer].is_linked = False
                return []
            case fx.DialFailed(peer, causes):
                if peer in self._entries:
                    self._entries[peer].causes.update(causes)
                return []
            case fx.TimerFired(name) if name == RETRY:
                return self._dial_all(now_s)
        return []

    def reason(self, now_s: float) -> Reason:
        """What to show meanwhile."""
        causes = self._causes()
        total = sum(len(entry.addresses) for entry in self._entries.values())
        if not self._entries:
            return Reason(
                code="connecting", text="asks the peers that are found nearby for the run"
            )
        heard_from_all = all(entry.causes for entry in self._entries.values())
        if now_s - self._started_s < self._limits.report_s and not heard_from_all:
            return Reason(
                code="connecting",
                text=f"asks at {total} entry address{'' if total == 1 else 'es'} for the run",
                eta_at_s=self._started_s + self._limits.report_s,
                eta_basis="deadline",
            )
        reachable = total - len(causes)
        listed = ", ".join(f"{address} {cause}" for address, cause in causes.items())
        return Reason(
            code="bootstrap_unreachable",
            text=f"{reachable} of {total} entry addresses reachable: {listed}",
            retry_at_s=self._retry_at_s,
            hint=ENTRY_HINT,
            details={"addresses": [{"addr": address, "cause": c} for address, c in causes.items()]},
        )

    # ---------------------------------------------------------------------------------- steps

    def _tell(self, now_s: float) -> list[fx.Effect]:
        """Once each time that something else is true; not at every try."""
        reason = self.reason(now_s)
        if reason.text == self._told:
            return []
        self._told = reason.text
        return [fx.Emit("state_changed", {"state": reason.state, "code": reason.code})]

    def _dial_all(self, now_s: float) -> list[fx.Effect]:
        wanted: list[fx.Effect] = [
            fx.Send(peer, control.RunRequest(run_id=self._run_id))
            if entry.is_linked
            else fx.Dial(peer, entry.addresses)
            for peer, entry in self._entries.items()
        ]
        delay_s = self._retry_s * self._rng.uniform(0.75, 1.25)
        self._retry_s = min(2 * self._retry_s, self._limits.retry_s_max)
        self._retry_at_s = now_s + delay_s
        return [*wanted, fx.SetTimer(RETRY, delay_s)]

    def _take(self, peer: PeerId, description: control.RunDescription) -> list[fx.Effect]:
        if self._hash_of(description.body) != self._run_id:
            return self._refused(peer, "hash_mismatch")
        self._described = True
        return [
            fx.ClearTimer(RETRY),
            fx.ClearTimer(REPORT),
            fx.Emit("run_described", {"body": description.body, "peer": peer}),
        ]

    def _refused(self, peer: PeerId, code: str) -> list[fx.Effect]:
        self.rejected[peer] = code
        entry = self._entries.get(peer)
        if entry is not None:
            entry.causes.update(dict.fromkeys(entry.addresses, code))
        return [fx.Emit("run_description_rejected", {"peer": peer, "code": code})]

    def _causes(self) -> dict[str, str]:
        """Address to cause, of those that did not answer; silent ones count as timeout."""
        causes = {}
        for entry in self._entries.values():
            if entry.is_linked and not entry.causes:
                continue
            for address in entry.addresses:
                causes[address] = entry.causes.get(address, "timeout")
        return causes
