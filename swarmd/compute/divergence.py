"""How differently replicas predict, seen by a last stage: at its own start, and at the mean.

In a pipeline no stage sees the whole model, but the last one sees what comes out. It keeps the
first held-out tokens that it meets, with what the stages before sent for them, and compares what
its layers make of them with x and with xmix (algorithms.md 2.8). Everything before it is the same
for both, so this is the share of its own stage; of a run of one stage it is all of it.

The weights of both are made one tensor at a time, as the layers ask for them: no vector of the
parameters' size is added to what the outer round holds.

Legend: B samples, T tokens, K coefficients a token, V vocabulary, N coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from swarmd.compute.outer_state import OuterState
from swarmd.optim.disagreement import js_distance
from swarmd.protocols.outer_rules import Range

if TYPE_CHECKING:
    from swarmd.compute.stage_worker import StageWorker

TOKENS_MAX = 1_024


@dataclass(frozen=True, slots=True)
class FixedBatch:
    """Looked at every time, and never trained on."""

    ids_BT: Tensor
    received_BTK: Tensor | None

    @classmethod
    def of(cls, ids_BT1: Tensor, received_BTK: Tensor | None) -> FixedBatch:
        """As many whole samples as there are tokens for, at least one."""
        samples = max(1, TOKENS_MAX // (ids_BT1.shape[1] - 1))
        received = None if received_BTK is None else received_BTK[:samples].clone()
        return cls(ids_BT1[:samples, :-1].clone(), received)


class _StartWeights(Mapping[str, Tensor]):
    """x, or xmix, as the stage's layers want it."""

    def __init__(self, state: OuterState, like: Mapping[str, Tensor], *, mixed: bool) -> None:
        self._state = state
        self._like = like
        self._mixed = mixed
        self._places = {place.name: place for place in state.layout.places}

    def __getitem__(self, name: str) -> Tensor:
        place, like = self._places[name], self._like[name]
        where = Range(place.first, place.count)
        x_N = self._state.start_of(where)
        delta_N = self._state.delta_of(where) if self._mixed else None
        if delta_N is not None:
            x_N = x_N + delta_N
        return x_N.view(place.shape).to(like.device, like.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def divergence_of(worker: StageWorker, state: OuterState) -> float | None:
    """None before a held-out batch has come by, or where Mix1 gave nothing."""
    if worker.fixed_batch is None or state.delta is None or not worker.stage.is_last:
        return None
    own_RV = _logits(worker, _StartWeights(state, worker.params, mixed=False))
    mean_RV = _logits(worker, _StartWeights(state, worker.params, mixed=True))
    return js_distance(own_RV, mean_RV)


def _logits(worker: StageWorker, weights: Mapping[str, Tensor]) -> Tensor:
    batch = worker.fixed_batch
    assert batch is not None, "the caller looked"
    with torch.no_grad():
        hidden_BTD = worker.stage.forward(weights, batch.ids_BT, batch.received_BTK)
        return worker.stage.logits(weights, hidden_BTD).flatten(0, 1)
