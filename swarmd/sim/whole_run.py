"""What a simulated run of whole peers must keep and reach, and what it measures.

Kept at every event: a peer's round only rises within a life; slots are never misused (slots.py
raises). Reached in the end: whoever still lives goes through to the run's last step, its ledger has
neither gap nor repeat, and it holds no slot any more. Who comes back when the others have finished
and gone has nobody to join, and is let off.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

from swarmd.protocols import effects as fx
from swarmd.protocols.peer import PeerMachine
from swarmd.sim.checkers import Moment
from swarmd.sim.cluster import Cluster
from swarmd.sim.sim_peer import SimPeer

REPLICA_MICRO_BATCHES_PER_S = 2.2
"""Of one peer with the usual costs (fake_compute.CostModel times SLOWER)."""
SLOWER = 3.75
"""Jobs take so much longer than usual: fewer of them fill a round of the same length."""


class RoundsOnlyRise:
    """A peer never goes back to an earlier round in one life of its process."""

    rule = "round_fell"
    looks_at = "all"

    def __init__(self, cluster: Cluster) -> None:
        self._rounds: dict[tuple[int, int], int] = {}

    def check(self, moment: Moment) -> str | None:
        key = (moment.peer.number, moment.peer.epoch)
        now = moment.membership.record.round
        before = self._rounds.get(key, 0)
        self._rounds[key] = now
        return f"went from round {before} back to {now}" if now < before else None


class EndsAreClean:
    """Who ends with `run_complete` has a clean and complete ledger, and no slot in its hands."""

    rule = "unclean_end"
    looks_at = "emits"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def check(self, moment: Moment) -> str | None:
        for emit in moment.emits:
            if emit.name == "peer_ended" and emit.fields["code"] == "run_complete":
                return self._why_unclean(moment.peer)
        return None

    def _why_unclean(self, peer: SimPeer) -> str | None:
        found = machine_of(peer).leases.audit(self._cluster.clock_of(peer))
        if found.repeats:
            return f"counted twice: {found.repeats}"
        if found.gaps:
            return f"never counted: {found.gaps}"
        if not found.complete:
            return f"{found.samples_completed} of {found.samples_total} samples counted"
        return None


WHOLE_CHECKERS = (RoundsOnlyRise, EndsAreClean)


class RunWatch:
    """Watches the run come to its end."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.seconds: Counter[str] = Counter()
        """Peer seconds by reason, of those that ended by themselves."""
        self.complete_at_s: float | None = None
        cluster.on_emit.append(self._listen)

    def _listen(self, peer: SimPeer, emit: fx.Emit) -> None:
        if emit.name == "peer_ended" and emit.fields["code"] == "run_complete":
            if self.complete_at_s is None:
                self.complete_at_s = self._cluster.world.now_s
            now_s = self._cluster.clock_of(peer)
            self.seconds.update(machine_of(peer).reasons.by_reason(now_s))

    def unfinished(self) -> list[str]:
        """Who still has to come to the end, and what it does instead. Empty: all is done."""
        if self.complete_at_s is None:
            return [_what(peer) for peer in self._cluster.running()] or ["nobody is left"]
        return [
            _what(peer)
            for peer in self._cluster.running()
            if peer.twist is None and not self._is_alone(peer)
        ]

    def _is_alone(self, peer: SimPeer) -> bool:
        return machine_of(peer).membership.roster.present_count == 1

    def tokens_per_s(self) -> float | None:
        """Of the whole swarm, over the whole time."""
        if self.complete_at_s is None:
            return None
        shape = self._cluster.shape
        micro_batches = sum(map(shape.micro_batches_of_round, range(shape.rounds)))
        return micro_batches * shape.micro_batch_tokens / self.complete_at_s

    def shares(self) -> dict[str, float]:
        """Of the time, by reason."""
        total = sum(self.seconds.values())
        return {code: round(self.seconds[code] / total, 4) for code in sorted(self.seconds)}


def machine_of(peer: SimPeer) -> PeerMachine:
    return cast(PeerMachine, peer.machine)


def _what(peer: SimPeer) -> str:
    machine = machine_of(peer)
    record, reason = machine.membership.record, machine.reasons.current
    return (
        f"{peer.name} ({record.phase}, stage {record.stage}, round {record.round}) "
        f"is {reason.state}: {reason.code}"
    )
