"""Which micro-batch a head takes next. Pure: what it must know comes in, a choice and why go out.

Micro-batch i of a round is meant for head i mod n (of the n live heads in order of their ids). So
all heads go through the round's steps together, which is what the clock needs (step_clock.py), and
while they agree on who is there no two of them ever want the same one: nothing is negotiated.

What another head is meant to do may be taken from it when it will not need it soon:

  * its lease has run out, or it has been quiet for much longer than usual;
  * or, at its own pace, it will not get there before an announcement of ours has reached it.

Helping comes first when our own next micro-batch is more than `window` ahead of what others have
left, so that a fast head shares the present steps with a slow one and does not run away from it. It
then helps only with what comes before its own next: with a later step it would jump over its own.

Several may want to help at once. For each micro-batch they stand in a line, another one each time;
the first may take it at once, each further one a `turn_s` later, and by then it has heard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from swarmd.protocols.ids import PeerId
from swarmd.protocols.intervals import IndexSet

LOOK_MAX = 512
"""Free micro-batches of others looked at: those of the next steps are enough."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`reason`: granted, returned, stolen; or, without an index, all_leased, waiting_for_heads."""

    index: int | None
    reason: str
    retry_in_s: float | None = None
    """When waiting may have an end without any news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundView:
    """One round as this head sees it now."""

    end: int
    """M_b."""
    heads: tuple[PeerId, ...]
    """Sorted, ourselves among them."""
    own: PeerId
    free: IndexSet
    """Neither ended nor under a lease that counts."""
    returned: IndexSet
    """Of these, what we have given back ourselves."""
    stale: IndexSet
    """Of these, what stands under another head's lease that has run out."""
    window: int
    turn_s: float
    """What an announcement needs to reach the others, with a margin."""


Lateness = Callable[[PeerId, int], float | None]
"""(head, ahead): in how long it takes the micro-batch with `ahead` of its own before it; infinity
if it is quiet, None if unknown."""
Waited = Callable[[int], float]
"""For how long a micro-batch could have been taken from its head; 0 when asked first."""


def share_of(head: PeerId, heads: tuple[PeerId, ...], end: int) -> IndexSet:
    """What is meant for a head."""
    rank, count = heads.index(head), len(heads)
    return IndexSet.progression(rank, count, (end - rank + count - 1) // count)


def choose(view: RoundView, takes_in_s: Lateness, waited_s: Waited) -> Choice:
    if not view.free:
        return Choice(None, "all_leased")
    returned = (view.free & view.returned).first()
    if returned is not None:
        return Choice(returned, "returned")
    mine = view.free & share_of(view.own, view.heads, view.end)
    others = view.free - mine
    next_own, next_other = mine.first(), others.first()
    if next_own is not None and (next_other is None or next_own <= next_other + view.window):
        return Choice(next_own, "granted")
    to_help = others if next_own is None else others & IndexSet.full(next_own)
    help_other = _help(view, to_help, takes_in_s, waited_s)
    if help_other.index is None and next_own is not None:
        return Choice(next_own, "granted")
    return help_other


def _help(view: RoundView, free: IndexSet, takes_in_s: Lateness, waited_s: Waited) -> Choice:
    """The first micro-batch of another head that it is our turn to take."""
    ahead: Counter[PeerId] = Counter()
    retry_in_s = view.turn_s
    for looked, index in enumerate(free):
        if looked == LOOK_MAX:
            break
        head = view.heads[index % len(view.heads)]
        in_s = takes_in_s(head, ahead[head])
        ahead[head] += 1
        if index not in view.stale and (in_s is None or in_s < view.turn_s):
            continue
        wait_s = place_in_line(view.own, view.heads, index) * view.turn_s - waited_s(index)
        if wait_s <= 0:
            return Choice(index, "stolen")
        retry_in_s = min(retry_in_s, wait_s)
    return Choice(None, "waiting_for_heads", retry_in_s)


def place_in_line(own: PeerId, heads: tuple[PeerId, ...], index: int) -> int:
    """0 for who may help first with another head's micro-batch. Its own head is not in the line."""
    count = len(heads)
    behind_owner = (heads.index(own) - index % count - 1) % count
    return (behind_owner - index // count) % (count - 1)
