"""What a stage holds of a micro-batch between its forward and its backward.

A graph keeps the weights it was made with (the dict itself: weights are replaced at a step, never
changed), so its gradient is that of a function which was really evaluated. When the last graph of a
version has ended, that version's memory is free again.

The inputs are always kept, the graph itself only where memory allows: without it the forward is
computed again, from the same inputs and the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from swarmd.protocols.ids import MicroBatchId

GRAPHS_MAX = 64
"""Most graphs a worker holds. The pipeline's credits keep it far below; beyond, the oldest goes:
somebody forgot to cancel it, and a leak must not end in refusing all work."""

COUNTED_MAX = 1 << 16
"""Most micro-batches remembered as counted: many rounds' worth, at about 100 bytes each."""


class GraphKey(NamedTuple):
    micro_batch: MicroBatchId
    attempt: int


@dataclass(slots=True)
class HeldGraph:
    """Legend: B samples, T tokens, K coefficients per token."""

    params: dict[str, Tensor]
    ids_BT1: Tensor
    received_BTK: Tensor | None
    """A leaf that requires a gradient; None at the first stage."""
    sent_BTK: Tensor | None
    """The output with its graph; None: to be made again from the rest."""

    @property
    def samples(self) -> int:
        return self.ids_BT1.shape[0]


class HeldGraphs:
    """Graphs by micro-batch and attempt, at most `GRAPHS_MAX`."""

    def __init__(self) -> None:
        self._graphs: dict[GraphKey, HeldGraph] = {}
        self.evicted = 0
        """How many were dropped for room since the start."""

    def __len__(self) -> int:
        return len(self._graphs)

    def get(self, key: GraphKey) -> HeldGraph | None:
        return self._graphs.get(key)

    def hold(self, key: GraphKey, graph: HeldGraph) -> None:
        self._graphs.pop(key, None)
        if len(self._graphs) >= GRAPHS_MAX:
            del self._graphs[next(iter(self._graphs))]
            self.evicted += 1
        self._graphs[key] = graph

    def forget(self, key: GraphKey) -> bool:
        """Whether there was one."""
        return self._graphs.pop(key, None) is not None

    def clear(self) -> None:
        self._graphs.clear()


class CountedMicroBatches:
    """Which micro-batches already entered the gradient sums: each does so once, whatever attempt.

    The double-count rule of algorithms.md 4.2, kept where the sums are.
    """

    def __init__(self) -> None:
        self._ids: dict[MicroBatchId, None] = {}

    def __contains__(self, micro_batch: MicroBatchId) -> bool:
        return micro_batch in self._ids

    def add(self, micro_batch: MicroBatchId) -> None:
        assert micro_batch not in self._ids, f"{micro_batch} counted twice"
        if len(self._ids) >= COUNTED_MAX:
            del self._ids[next(iter(self._ids))]
        self._ids[micro_batch] = None
