"""Who mixes with whom in a round. No coordinator: equal rosters give equal groups on every peer.

The replicas of a stage are put in an order that depends on the run, the stage, the round and which
of the two mixes it is, and cut into groups whose sizes differ by one at most (algorithms.md 2.5).
The order is that of keyed hashes rather than a generator's shuffle: it is the same in every Python,
and a peer that comes or goes moves the others as little as can be.

A replica that comes says in its record from which round on it takes part, a round ahead, so that
all count it in at the same round, however news travels; one that goes is counted out when it is
known to be gone. Peers may still see it differently for a moment. A group is therefore named by a
digest of its members, so that those who see the same group mix, and the others are told at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swarmd.protocols.ids import PeerId, RunId
from swarmd.protocols.messages.mixing import GROUP_DIGEST_BYTES, MEMBERS_MAX

MIX1_GLOBAL_MAX = 16
"""Up to so many replicas Mix1 is over all of them ..."""
MIX1_GROUP = 8
"""... and beyond, in groups of so many: the cost of a round stays what it was."""

MIX1, MIX2 = 1, 2


@dataclass(frozen=True, slots=True)
class Draw:
    """What the order of replicas depends on."""

    run_id: RunId
    stage: int
    round: int
    mix: int

    def place(self, peer: PeerId) -> bytes:
        """Where in line a replica stands."""
        text = f"{self.run_id}/{self.stage}/{self.round}/{self.mix}/{peer}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest()


def split_into_groups(
    replicas: Iterable[PeerId], group_size: int, draw: Draw
) -> list[tuple[PeerId, ...]]:
    """A partition into groups of group_size .. 2 group_size - 1, members in ascending order.

    group_size: 0 for all in one group, 1 for nobody with anybody. Fewer than group_size replicas
    are one group; more than MEMBERS_MAX are never in one.
    """
    line = sorted(set(replicas), key=lambda peer: (draw.place(peer), peer))
    if not line:
        return []
    count = max(1, len(line) // group_size) if group_size else 1
    count = max(count, -(-len(line) // MEMBERS_MAX))
    small, larger = divmod(len(line), count)
    groups, start = [], 0
    for number in range(count):
        end = start + small + (number < larger)
        groups.append(tuple(sorted(line[start:end])))
        start = end
    return groups


def group_of(
    own: PeerId, replicas: Iterable[PeerId], group_size: int, draw: Draw
) -> tuple[PeerId, ...]:
    """The group that `own` is in; alone, if it is not among the replicas."""
    for group in split_into_groups(replicas, group_size, draw):
        if own in group:
            return group
    return (own,)


def mix1_group_size(configured: int, replicas: int) -> int:
    """`outer.mix1_group`, where 0 means: all, as long as they are not too many."""
    if configured or replicas <= MIX1_GLOBAL_MAX:
        return configured
    return MIX1_GROUP


def group_digest(members: Sequence[PeerId]) -> bytes:
    """Names a group, whatever else is in the roster."""
    text = "\n".join(members)
    return hashlib.blake2b(text.encode(), digest_size=GROUP_DIGEST_BYTES).digest()


def taking_part(present: Mapping[PeerId, int], round_number: int) -> tuple[PeerId, ...]:
    """Of the replicas that are there now, those that a round counts on.

    present: replica to the first round it takes part in, by its own signed word.
    """
    return tuple(sorted(peer for peer, first in present.items() if first <= round_number))
