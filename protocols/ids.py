"""The names of things: peers, runs, stages, rounds, micro-batches. All have a total order.

Sorting before choosing is what makes a machine replay the same way everywhere, so ids compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

PeerId = NewType("PeerId", str)
"""A libp2p peer id in base58, as `12D3KooW...`. It names an ed25519 key."""

RunId = NewType("RunId", str)
"""64 hexadecimal digits: BLAKE2b-256 of the canonical RunConfig."""


@dataclass(frozen=True, slots=True, order=True)
class MicroBatchId:
    """One micro-batch of one outer round.

    `index` counts 0 .. M_b-1 over the whole swarm. `held_out` micro-batches are forward-only: never
    trained on, never leased, never counted; they have an index space of their own.
    """

    round: int
    index: int
    held_out: bool = False

    def __str__(self) -> str:
        return f"{'h' if self.held_out else 'm'}{self.round}.{self.index}"


def short_id(peer: str) -> str:
    """The form in which people see an id everywhere: its last four characters."""
    return "·" + peer[-4:]
