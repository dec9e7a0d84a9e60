"""Who mans which stage, as one peer's roster says. Pure, and the same on all that agree on it.

A peer mans a stage while it is present (alive or suspect) and active there. Peers that are still
fetching state are counted apart: they show others that somebody is coming.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from swarmd.protocols.ids import PeerId
from swarmd.protocols.roster import PeerView, RosterView

SYNCING_PHASES = ("joining", "syncing")


@dataclass(frozen=True, slots=True)
class Coverage:
    """By stage. Peers in the order of their ids."""

    active: tuple[tuple[PeerView, ...], ...]
    coming: tuple[tuple[PeerView, ...], ...]
    active_count: int
    observers: tuple[PeerId, ...]
    """Present, and hold no stage."""
    furthest_step: int = 0
    """The last inner step that anybody present has taken; 0: nobody has trained yet."""
    is_saved: bool = False
    """Somebody present has state of this run on disk."""
    draining: tuple[tuple[PeerView, ...], ...] = ()
    """They hold the stage still, and are about to leave it."""
    guards: tuple[tuple[tuple[int, PeerId], ...], ...] = ()
    """(round, peer) of snapshots that others keep; the newest last."""

    @property
    def stages(self) -> int:
        return len(self.active)

    @property
    def missing(self) -> tuple[int, ...]:
        """Stages that nobody mans."""
        return tuple(stage for stage, peers in enumerate(self.active) if not peers)

    def has_state(self, stage: int) -> bool:
        """Somebody present can give the state of a stage, or begin again with its own."""
        is_held = bool(self.active[stage] or self.draining[stage] or self.guards[stage])
        return is_held or any(view.record.saved_rounds for view in self.coming[stage])

    @property
    def heads(self) -> tuple[PeerId, ...]:
        """The first stage's peers: they lease micro-batches."""
        return tuple(view.peer for view in self.active[0])

    def map_version(self) -> str:
        """Equal wherever the stage map is equal."""
        digest = hashlib.blake2b(digest_size=8)
        for stage, peers in enumerate(self.active):
            digest.update(f"{stage}:{','.join(view.peer for view in peers)};".encode())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class SwarmView:
    """What a peer sees at one moment, for whatever is decided about its stage and the states.

    linked: whom we may talk to. has_begun: somebody has trained.
    """

    roster: RosterView
    coverage: Coverage
    linked: frozenset[PeerId]
    has_begun: bool


def coverage_of(view: RosterView, stages: int) -> Coverage:
    """Raises nothing: a record that names a stage outside the run is an observer's."""
    active: list[list[PeerView]] = [[] for _ in range(stages)]
    coming: list[list[PeerView]] = [[] for _ in range(stages)]
    draining: list[list[PeerView]] = [[] for _ in range(stages)]
    guards: list[list[tuple[int, PeerId]]] = [[] for _ in range(stages)]
    observers = []
    for peer in view.present():
        stage = peer.record.stage
        for guarded in peer.record.guarded:
            if guarded.stage < stages:
                guards[guarded.stage].append((guarded.round, peer.peer))
        if stage is None or stage >= stages:
            observers.append(peer.peer)
        elif peer.record.phase == "active":
            active[stage].append(peer)
        elif peer.record.phase in SYNCING_PHASES:
            coming[stage].append(peer)
        elif peer.record.phase == "draining":
            draining[stage].append(peer)
    return Coverage(
        active=tuple(tuple(peers) for peers in active),
        coming=tuple(tuple(peers) for peers in coming),
        draining=tuple(tuple(peers) for peers in draining),
        guards=tuple(tuple(sorted(held)) for held in guards),
        active_count=sum(len(peers) for peers in active),
        observers=tuple(observers),
        furthest_step=max((peer.record.step for peer in view.present()), default=0),
        is_saved=any(peer.record.saved_rounds for peer in view.present()),
    )
