"""Parts that overtook their sender's offer: they came on another plane, and are no less good.

What they weigh stands in the offer, so they are held until that has come, as many of a member as it
may have under way anyway. To refuse them would cost their bytes a second time and, as long as it is
taken for a lack of slots, a crawl for the rest of the exchange.
"""

from __future__ import annotations

from swarmd.protocols import effects as fx
from swarmd.protocols.mix_group import Member


class EarlyParts:
    """Slots of parts held here are ours. Effects go to the list shared with the owner."""

    def __init__(self, of_each_max: int, effects: list[fx.Effect]) -> None:
        self._of_each_max = of_each_max
        self._effects = effects
        self._held: dict[int, list[fx.Arrived]] = {}

    def hold(self, member: Member, event: fx.Arrived) -> bool:
        """False: it has too many already."""
        held = self._held.setdefault(member.number, [])
        if len(held) >= self._of_each_max:
            return False
        held.append(event)
        return True

    def take(self, member: Member) -> list[fx.Arrived]:
        """All of a member's, in the order in which they came; their slots are the caller's."""
        return self._held.pop(member.number, [])

    def drop(self, member: Member) -> None:
        """A member is out."""
        for event in self.take(member):
            assert event.payload is not None, "a part without a payload is not held"
            self._effects.append(fx.Release(event.payload))
