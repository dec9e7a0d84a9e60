"""The inner optimisers: AdamW, NAdamW and Muon, each from weights to new weights.

    optimiser = InnerOptimiser.of(run.inner, stage)
    state = optimiser.start(params)
    params = optimiser.step(params, grads, state, lr=...)

Weights are replaced, never changed in place: a graph in flight keeps the very tensors it was made
with, so its backward is the gradient of a function that was really evaluated (algorithms.md 3.3,
"graph keeps its version"). The moments in `InnerState` belong to no graph and are updated in place.
They are local to a peer and never mixed between replicas.

AdamW is the default. NAdamW is the form in which arXiv 2505.01099 was run (beta1 0.99 there). Muon
(arXiv 2502.16982's scaling) is for hidden matrices, AdamW trains the rest beside it; with the
factored weights W = Z U^T of a subspace run, Muon on Z *is* Muon on W projected to the subspace
(algorithms.md 3.5, tested).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from swarmd.run_config import InnerConfig

NADAM_MOMENTUM_DECAY = 0.004
"""mu_t = beta1 (1 - 0.5 * 0.96^(0.004 t)), as torch's NAdam has it."""

MUON_MOMENTUM = 0.95
"""Of the public implementations; `beta1` stays that of the AdamW beside it."""

MUON_RMS = 0.2
"""About the RMS of an AdamW update (arXiv 2502.16982): one learning rate then fits both."""

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_ROUNDS = 5
"""A quintic tuned for speed, not for convergence: singular values end between 0.68 and 1.14."""


class WeightRules(Protocol):
    """What an optimiser must be told about a stage's weights. `swarmd.model.stage.Stage` knows."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...
    def decays(self, name: str) -> bool: ...
    def orthogonalises(self, name: str) -> bool: ...


@dataclass(slots=True)
class InnerState:
    """What an optimiser remembers between steps, by the name of the weight."""

    updates: int = 0
    """Steps taken with this state; bias corrections follow it, the learning rate does not."""
    momentum_product: float = 1.0
    """NAdamW only: product of mu_1 .. mu_updates."""
    first: dict[str, Tensor] = field(default_factory=dict)
    second: dict[str, Tensor] = field(default_factory=dict)
    """Not kept for Muon's weights."""

    def tensors(self) -> dict[str, Tensor]:
        """Everything, as named tensors; the moments are not copied."""
        named = {
            "updates": torch.tensor(self.updates, dtype=torch.int64),
            "momentum_product": torch.tensor(self.momentum_product, dtype=torch.float64),
        }
        named.update({f"first/{name}": value for name, value in self.first.items()})
        named.update({f"second/{name}": value for name, value in self.second.items()})
        return named


# -------------------------------------------------------------------------------------- optimiser


@dataclass(frozen=True, slots=True)
class InnerOptimiser:
    """The rules of one stage's inner steps. Holds no state: that is the caller's `InnerState`."""

    config: InnerConfig
    decayed: frozenset[str]
    orthogonalised: frozenset[str]
    """Muon's weights; empty for the other kinds."""

    @classmethod
    def of(cls, config: InnerConfig, rules: WeightRules) -> InnerOptimiser:
        names = list(rules.shapes)
        muons = [name for name in names if config.kind == "muon" and rules.orthogonalises(name)]
        decayed = [name for name in names if rules.decays(name)]
        return cls(config, frozenset(decayed), frozenset(muons))

    def start(self, params: Mapping[str, Tensor]) -> InnerState:
        """Zero moments."""
        state = InnerState()
        for name, weight in params.items():
            state.first[name] = torch.zeros_like(weight, requires_grad=False)
            if name not in self.orthogonalised:
                state.second[name] = torch.zeros_like(weight, requires_grad=False)
        return state

    def restore(self, params: Mapping[str, Tensor], named: Mapping[str, Tensor]) -> InnerState:
        """The inverse of `InnerState.tensors`, copied to where `params` are.

        They may be a peer's: raises ValueError when something is missing, has another shape, is
        not finite, or is no moment at all (a negative square would poison the weights later).
        """
        state = self.start(params)
        wanted = {f"first/{name}": moment for name, moment in state.first.items()}
        wanted.update({f"second/{name}": moment for name, moment in state.second.items()})
        for name, moment in wanted.items():
            given = named.get(name)
            if given is None or given.shape != moment.shape:
                raise ValueError(f"{name}: missing, or of another shape")
            if not bool(torch.isfinite(given).all()):
                raise ValueError(f"{name}: not finite")
            if name.startswith("second/") and bool((given < 0).any()):
                raise ValueError(f"{name}: a mean of squares below 0")
            moment.copy_(given)
        state.updates = int(_scalar(named, "updates", high=float(1 << 53)))
        state.momentum_product = _scalar(named, "momentum_product", high=1.0)
        return state

    @torch.no_grad()
    def step(
        self,
        params: Mapping[str, Tensor],
        grads: Mapping[str, Tensor],
        state: InnerState,
        *,
        lr: float,
    ) -> dict[str, Tensor]:
        """One step: fresh leaves that require a gradient. `params` and `grads` stay as they are.

        `grads` are finite and clipped: the caller looked. `state` is updated in place.
        """
        state.updates += 1
        names = [name for name in params if name not in self.orthogonalised]
        fresh = dict(zip(names, self._adam(names, params, grads, state, lr), strict=True))
        for name in params:
            if name in self.orthogonalised:
                fresh[name] = self._muon(name, params[name], grads[name], state, lr)
        return {name: fresh[name].requires_grad_() for name in params}

    def _adam(
        self,
        names: list[str],
        params: Mapping[str, Tensor],
        grads: Mapping[str, Tensor],
        state: InnerState,
        lr: float,
    ) -> list[Tensor]:
        """AdamW, or NAdamW: they differ in how much of the new gradient enters at once."""
        if not names:
            return []
        if self.config.kind != "nadamw" and all(params[name].is_cpu for name in names):
            return self._adamw_in_one_pass(names, params, grads, state, lr)
        config = self.config
        now = [grads[name] for name in names]
        first = [state.first[name] for name in names]
        second = [state.second[name] for name in names]
        torch._foreach_lerp_(first, now, 1.0 - config.beta1)
        torch._foreach_mul_(second, config.beta2)
        torch._foreach_addcmul_(second, now, now, value=1.0 - config.beta2)
        denominators = torch._foreach_sqrt(second)
        torch._foreach_div_(denominators, math.sqrt(1.0 - config.beta2**state.updates))
        torch._foreach_add_(denominators, config.eps)
        keep = [self._keep(name, lr) for name in names]
        fresh = torch._foreach_mul([params[name] for name in names], keep)
        if config.kind == "nadamw":
            mu = _nadam_momentum(config.beta1, state.updates)
            mu_next = _nadam_momentum(config.beta1, state.updates + 1)
            state.momentum_product *= mu
            of_gradient = (1.0 - mu) / (1.0 - state.momentum_product)
            of_moment = mu_next / (1.0 - state.momentum_product * mu_next)
            torch._foreach_addcdiv_(fresh, now, denominators, value=-lr * of_gradient)
        else:
            of_moment = 1.0 / (1.0 - config.beta1**state.updates)
        torch._foreach_addcdiv_(fresh, first, denominators, value=-lr * of_moment)
        return list(fresh)

    def _adamw_in_one_pass(
        self,
        names: list[str],
        params: Mapping[str, Tensor],
        grads: Mapping[str, Tensor],
        state: InnerState,
        lr: float,
    ) -> list[Tensor]:
        """The same, each weight and its moments read once: on a processor the memory is what takes
        time."""
        config = self.config
        fresh = {name: params[name].clone() for name in names}
        updates = torch.tensor(float(state.updates))
        for decay in (True, False):
            some = [name for name in names if (name in self.decayed) is decay]
            if not some:
                continue
            torch._fused_adamw_(
                [fresh[name] for name in some],
                [grads[name] for name in some],
                [state.first[name] for name in some],
                [state.second[name] for name in some],
                [],
                [updates] * len(some),
                lr=lr,
                beta1=config.beta1,
                beta2=config.beta2,
                weight_decay=config.decay if decay else 0.0,
                eps=config.eps,
                amsgrad=False,
                maximize=False,
            )
        return list(fresh.values())

    def _muon(
        self, name: str, weight: Tensor, grad: Tensor, state: InnerState, lr: float
    ) -> Tensor:
        momentum = state.first[name].lerp_(grad, 1.0 - MUON_MOMENTUM)
        look_ahead = grad.lerp(momentum, MUON_MOMENTUM)
        scale = lr * MUON_RMS * math.sqrt(max(weight.shape))
        return torch.sub(weight * self._keep(name, lr), orthogonalise(look_ahead), alpha=scale)

    def _keep(self, name: str, lr: float) -> float:
        """Decoupled decay, as the factor on the weight."""
        return 1.0 - lr * self.config.decay if name in self.decayed else 1.0


def _scalar(named: Mapping[str, Tensor], name: str, *, high: float) -> float:
    given = named.get(name)
    if given is None or given.numel() != 1 or not 0 <= float(given) <= high:
        raise ValueError(f"{name}: missing, or not in 0..{high}")
    return float(given)


def _nadam_momentum(beta1: float, update: int) -> float:
    return beta1 * (1.0 - 0.5 * math.pow(0.96, update * NADAM_MOMENTUM_DECAY))


# -------------------------------------------------------------------------------------- gradients


def gradient_norm(grads: Mapping[str, Tensor]) -> float:
    """Euclidean norm over all; inf or NaN if and only if an entry is."""
    if not grads:
        return 0.0
    values = list(grads.values())
    norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(values))))
    if math.isfinite(norm):
        return norm
    # Squares of finite float32 may overflow: look once more before calling it not finite.
    return math.hypot(*(float(value.cpu().double().norm()) for value in values))


def clip_factor(norm: float, *, clip: float, stages: int) -> float:
    """What to multiply one stage's gradient by.

    Each stage is clipped by itself at clip / sqrt(stages): stages at their thresholds have `clip`
    together, and nobody has to know the others' norms (algorithms.md 3.2).
    """
    threshold = clip / math.sqrt(stages)
    return 1.0 if norm <= threshold else threshold / norm


# ------------------------------------------------------------------------------------------- Muon


def orthogonalise(matrix_MN: Tensor) -> Tensor:
    """About the polar factor: same singular vectors, singular values near 1, by Newton-Schulz
    rounds as arXiv 2502.16982 uses them. A zero matrix stays zero.

    An odd polynomial of the matrix, hence exact in this sense: f(G U) U^T = f(G U U^T) for
    orthonormal U.
    """
    x_MN = matrix_MN / matrix_MN.norm().clamp_min(1e-30)
    if x_MN.is_cuda:
        x_MN = x_MN.bfloat16()
    is_tall = x_MN.shape[0] > x_MN.shape[1]
    if is_tall:
        x_MN = x_MN.T
    a, b, c = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_ROUNDS):
        gram = x_MN @ x_MN.T
        x_MN = a * x_MN + torch.addmm(gram, gram, gram, beta=b, alpha=c) @ x_MN
    orthogonal_MN: Tensor = (x_MN.T if is_tall else x_MN).to(matrix_MN.dtype)
    return orthogonal_MN
