"""One pipeline stage of the Llama, as pure functions over a dict of weights.

Why functional: weights are replaced at an inner step and never mutated, so a graph in flight keeps
the version it was made with by holding the old dict (algorithms.md 3.3). A `Stage` holds only what
never changes: shapes, T_fixed, U, its layers' range. Nothing in it is trainable.

    C = stage.forward(params, ids)                       first stage
    C = stage.forward(params, ids, received)             middle; received is a leaf that wants grad
    h = stage.forward(params, ids, received)             last: the normalised hidden state
    loss = stage.loss_sum(params, h, targets)            head and cross-entropy in one

Shapes: B samples, T tokens, D width d, K what crosses a boundary a token (k, or d if dense), V.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swarmd.run_config import RunConfig

Parameters = dict[str, Tensor]


def build_stage(
    run: RunConfig,
    stage: int,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Stage:
    """The stage of a run on a device. `dtype` is that of the weights: float32, or float64 in tests.

    Raises InvalidRun, naming the layer, if a constrained stage would leave the subspace.
    """
    raise NotImplementedError


class Stage:
    """What never changes about a stage. Attributes:

    run, index, first_layer, last_layer (inclusive), is_first, is_last, device, dtype;
    input_width, output_width: elements a token received and sent (0 at the ends of the pipeline);
    basis_version: names U; every boundary message carries it;
    shapes: name of each parameter to its shape, in a fixed order.
    """

    run: RunConfig
    index: int
    first_layer: int
    last_layer: int
    is_first: bool
    is_last: bool
    device: torch.device
    dtype: torch.dtype
    input_width: int
    output_width: int
    basis_version: int
    shapes: dict[str, tuple[int, ...]]

    def init_parameters(self) -> Parameters:
        """Leaf tensors that require grad, equal bits on every peer and platform. Keyed by global
        layer names, so a layer has the same weights whatever the cut into stages."""
        raise NotImplementedError

    def decays(self, name: str) -> bool:
        """Whether weight decay applies: to matrices, not to gains and not to rows of tables."""
        raise NotImplementedError

    def orthogonalises(self, name: str) -> bool:
        """Whether Muon may take it: hidden matrices; not tables, the head, or gains."""
        raise NotImplementedError

    def check_input(self, ids_BT: Tensor, received_BTK: Tensor | None) -> None:
        """What a peer sent, before it is moved to a device. Raises RemoteProtocolError:
        wrong_shape, wrong_dtype, not_finite, malformed (an id outside the vocabulary)."""
        raise NotImplementedError

    def forward(
        self,
        params: Parameters,
        ids_BT: Tensor,
        received_BTK: Tensor | None = None,
        *,
        recompute: bool = False,
    ) -> Tensor:
        """The stage's layers. Returns what the next stage receives (B, T, output_width) in the
        weights' dtype; at the last stage the normalised hidden state (B, T, d), which `loss_sum`
        and `logits` read. `recompute` keeps one state a layer and computes the rest again in the
        backward, with the weights of this forward."""
        raise NotImplementedError

    def loss_sum(self, params: Parameters, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Last stage: sum over samples of the mean cross-entropy per token, nats, a scalar. Never
        holds all logits at once; their gradient is made on the way."""
        raise NotImplementedError

    def logits(self, params: Parameters, hidden_BTD: Tensor) -> Tensor:
        """Last stage: (B, T, V) in float32 or wider. Pass `hidden[:, -1:]` to generate."""
        raise NotImplementedError
