"""One pipeline stage of the Llama, as pure functions over a dict of weights.

Why functional: weights are replaced at an inner step and never mutated, so a graph in flight keeps
the version it was made with by holding the old dict (algorithms.md 3.3). A `Stage` holds only what
never changes: shapes, T_fixed, U, its layers' range. Nothing in it is trainable.

    C = stage.forward(params, ids)                       first stage
    C = stage.forward(params, ids, received)             middle; received is a leaf that wants grad
    h = stage.forward(params, ids, received)             last: the normalised hidden state
    loss = stage.loss_sum(params, h, targets)            head and cross-entropy in one

The residual stream lives in a `state`. A constrained stage's state is the coefficients C: its
factored writers add to C, and X = base + C U^T is made where a branch reads it. The last stage, and
every stage with dense boundaries, has the stream X itself as state and dense writers. That one
difference is `_normed`.

Shapes: B samples, T tokens, D width d, K what crosses a boundary a token (k, or d if dense), V.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from swarmd.model.block import BlockSpec, RotaryTables, attention, check_block, swiglu
from swarmd.model.boundary import BASIS_VERSION, build_boundary
from swarmd.model.fused import normalised_sum
from swarmd.model.loss import head_loss
from swarmd.model.parameters import decays, orthogonalises, start_values
from swarmd.partition import is_constrained, is_writer, stage_shapes
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.run_config import RunConfig

Parameters = dict[str, Tensor]


def build_stage(
    run: RunConfig,
    stage: int,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    block: BlockSpec | None = None,
) -> Stage:
    """The stage of a run on a device. `dtype` is that of the weights: float32, or float64 in tests.

    Raises InvalidRun, naming the layer, if `block` would take a constrained stage's stream out of
    the subspace.
    """
    return Stage(run, stage, torch.device(device), dtype, block or BlockSpec())


class Stage:
    """What never changes about a stage. Attributes:

    run, index, first_layer, last_layer (inclusive), is_first, is_last, device, dtype;
    is_constrained: whether its state is the coefficients;
    input_width, output_width: elements a token received and sent (0 at the ends of the pipeline);
    basis_version: names U; every boundary message carries it;
    shapes: name of each parameter to its shape, in a fixed order.
    """

    def __init__(
        self,
        run: RunConfig,
        index: int,
        device: torch.device,
        dtype: torch.dtype,
        block: BlockSpec,
    ) -> None:
        self.run, self.index, self.device, self.dtype = run, index, device, dtype
        self.first_layer, self.last_layer = run.layer_ranges[index]
        self.is_first, self.is_last = index == 0, index == run.stages - 1
        self.is_constrained = is_constrained(run.boundary, is_last=self.is_last)
        self.basis_version = BASIS_VERSION
        self.shapes = stage_shapes(run, index)
        writers = [name for name in self.shapes if is_writer(name)]
        check_block(block, writers, constrained=self.is_constrained)
        self.boundary = build_boundary(
            run.model, run.boundary, run.seed, device=device, dtype=dtype
        )
        self.input_width = 0 if self.is_first else self.boundary.width
        self.output_width = 0 if self.is_last else self.boundary.width
        self._ut_KD = self.boundary.ut_KD if self.is_constrained else None
        self._rope = RotaryTables(run.model, device=device, dtype=dtype)
        self._attention_writer = "attention.o_z" if self.is_constrained else "attention.o"
        self._mlp_writer = "mlp.down_z" if self.is_constrained else "mlp.down"

    # ---------------------------------------------------------------------------------- parameters

    def init_parameters(self) -> Parameters:
        """Leaf tensors that require grad, equal bits on every peer and platform. Keyed by global
        layer names, so a layer has the same weights whatever the cut into stages."""
        return start_values(
            self.run, self.shapes, self.first_layer, device=self.device, dtype=self.dtype
        )

    def decays(self, name: str) -> bool:
        """Whether weight decay applies: to matrices, not to gains and not to rows of tables."""
        return decays(name)

    def orthogonalises(self, name: str) -> bool:
        """Whether Muon may take it: the layers' matrices; not tables, the head, or gains."""
        return orthogonalises(name)

    # ------------------------------------------------------------------------------------- forward

    def check_input(self, ids_BT: Tensor, received_BTK: Tensor | None) -> None:
        """What a peer sent, before it is moved to a device. Raises RemoteProtocolError:
        wrong_dtype, wrong_shape, malformed (an id outside the vocabulary), not_finite."""
        if ids_BT.dtype not in (torch.int64, torch.int32):
            raise RemoteProtocolError("wrong_dtype", f"token ids are integers, not {ids_BT.dtype}")
        if ids_BT.dim() != 2 or ids_BT.numel() == 0:
            raise RemoteProtocolError("wrong_shape", f"ids {tuple(ids_BT.shape)}")
        if ids_BT.min() < 0 or ids_BT.max() >= self.run.model.vocab_size:
            raise RemoteProtocolError("malformed", "a token id outside the vocabulary")
        expected = None if self.is_first else (*ids_BT.shape, self.input_width)
        shape = None if received_BTK is None else tuple(received_BTK.shape)
        if shape != expected:
            raise RemoteProtocolError("wrong_shape", f"activations {shape}, not {expected}")
        if received_BTK is not None and not bool(received_BTK.isfinite().all()):
            raise RemoteProtocolError("not_finite", "activations")

    def forward(
        self,
        params: Mapping[str, Tensor],
        ids_BT: Tensor,
        received_BTK: Tensor | None = None,
        *,
        recompute: bool = False,
    ) -> Tensor:
        """The stage's layers. Returns what the next stage receives (B, T, output_width) in the
        weights' dtype; at the last stage the normalised hidden state (B, T, d), which `loss_sum`
        and `logits` read. `recompute` keeps one state a layer and computes the rest again in the
        backward, with the weights of this forward."""
        assert not ids_BT.dtype.is_floating_point, "token ids are integers"
        assert (received_BTK is None) == self.is_first
        base_BTD = self.boundary.base(params, ids_BT)
        if received_BTK is None:
            state = self.boundary.start(params, ids_BT)
        else:
            state = received_BTK
        if not self.is_constrained:
            # Once a stage, so at full precision even where the layers are not.
            state = self.boundary.read(state, base_BTD)
        rope = self._rope(ids_BT.shape[1])
        with self._autocast():
            for layer in range(self.first_layer, self.last_layer + 1):
                if recompute and torch.is_grad_enabled():
                    state = checkpoint(
                        self._layer,
                        params,
                        layer,
                        state,
                        base_BTD,
                        rope,
                        use_reentrant=False,
                        preserve_rng_state=False,
                    )
                else:
                    state = self._layer(params, layer, state, base_BTD, rope)
        if self.is_last:
            return self._normed(state, base_BTD, params["norm.final"])
        return state

    def _layer(
        self,
        params: Mapping[str, Tensor],
        layer: int,
        state: Tensor,
        base_BTD: Tensor | None,
        rope: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Attention and MLP, each: read the stream, normalise, branch, write to the state."""
        model = self.run.model

        def weight(name: str) -> Tensor:
            return params[f"layers.{layer}.{name}"]

        x_BTD = self._normed(state, base_BTD, weight("attention.norm"))
        y_BTD = attention(
            x_BTD, weight("attention.q"), weight("attention.k"), weight("attention.v"), rope, model
        )
        state = state + y_BTD @ weight(self._attention_writer)
        x_BTD = self._normed(state, base_BTD, weight("mlp.norm"))
        y_BTF = swiglu(x_BTD, weight("mlp.gate"), weight("mlp.up"))
        return state + y_BTF @ weight(self._mlp_writer)

    def _normed(self, state: Tensor, base_BTD: Tensor | None, gain_D: Tensor) -> Tensor:
        """The stream as a branch sees it: normalised, and before that rebuilt if the state is
        coefficients."""
        eps = self.run.model.norm_eps
        if self._ut_KD is None:
            return normalised_sum(state, None, None, gain_D, eps)
        assert base_BTD is not None
        return normalised_sum(base_BTD, state, self._ut_KD, gain_D, eps)

    def _autocast(self) -> AbstractContextManager[object]:
        """bfloat16 products on CUDA, where they are several times as fast; the state, the norms
        and every sum of the stream stay in the weights' dtype."""
        wanted = self.device.type == "cuda" and self.dtype == torch.float32
        return torch.autocast(self.device.type, torch.bfloat16, enabled=wanted)

    # ---------------------------------------------------------------------------------------- loss

    def loss_sum(
        self, params: Mapping[str, Tensor], hidden_BTD: Tensor, targets_BT: Tensor
    ) -> Tensor:
        """Last stage: sum over samples of the mean cross-entropy per token, nats, a scalar. Never
        holds all logits at once; their gradient is made on the way."""
        tokens = targets_BT.shape[1]
        with self._autocast():
            loss = head_loss(hidden_BTD.flatten(0, 1), params["head.weight"], targets_BT.flatten())
        return loss / tokens

    def logits(self, params: Mapping[str, Tensor], hidden_BTD: Tensor) -> Tensor:
        """Last stage: (B, T, V), in the weights' dtype. Pass `hidden[:, -1:]` to generate."""
        with self._autocast():
            logits_BTV = hidden_BTD @ params["head.weight"].T
        return logits_BTV.to(self.dtype)
