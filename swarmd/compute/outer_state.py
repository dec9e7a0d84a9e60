"""What a worker keeps from the start of an outer round to its end, beside weights and optimiser.

    x         float32, where the round began; while the outer step is taken, where the next begins
    momentum  float32, only where mu is not 0
    delta     bfloat16, Mix1's result as xmix - x; made when the first part arrives, gone at commit
    owed      float32, only where outer gradients travel sparse: what was not sent yet

all on the host, whatever the device: 2.5 vectors of the parameters' size (with `owed` too, since
mu is 0 then), and none on the device. D = x - y is never a whole vector: every job makes the piece
that it needs. bfloat16 is enough for delta: its error is 1/256 of the disagreement.

x is not changed while graphs or reducers may read it: from the snapshot until the outer step, and
then piece by piece, each piece once. Weights are replaced at commit, never changed in place.

Legend: N coordinates of a piece. The flat vector has the weights in the order of the stage's
shapes, those that Mix2 covers first.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from swarmd.errors import JobFailed
from swarmd.partition import Shapes
from swarmd.protocols.outer_rules import Range

SHALLOW_LAYERS = 2
"""Of the whole model, counted from its input; with embedding and head they are what the paper's
authors let Mix2 cover."""


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    shape: tuple[int, ...]
    first: int
    count: int


class FlatLayout:
    """Where each weight lies in a stage's flat vector. Equal on every replica of the stage."""

    def __init__(self, shapes: Shapes, cover: str) -> None:
        """cover: all or shallow, as OuterConfig.mix2_cover."""
        covered = [name for name in shapes if cover == "all" or _is_shallow(name)]
        others = [name for name in shapes if name not in set(covered)]
        self.places: list[_Place] = []
        first = self.covered = 0
        for name in [*covered, *others]:
            count = math.prod(shapes[name])
            self.places.append(_Place(name, shapes[name], first, count))
            first += count
            if name in covered[-1:]:
                self.covered = first
        self.elements = first

    def read(self, params: Mapping[str, Tensor], where: Range) -> Tensor:
        """A piece of the weights as one vector: a float32 copy on the host."""
        out_N = torch.empty(where.count, dtype=torch.float32)
        end = where.first + where.count
        for place in self.places:
            low, high = max(place.first, where.first), min(place.first + place.count, end)
            if low < high:
                flat = params[place.name].detach().reshape(-1)
                piece = flat[low - place.first : high - place.first]
                out_N[low - where.first : high - where.first].copy_(piece)
        return out_N


class OuterState:
    """One stage's. Not thread-safe: it belongs to the worker's lane."""

    def __init__(self, layout: FlatLayout) -> None:
        self.layout = layout
        self.start: Tensor | None = None
        """x."""
        self.momentum: Tensor | None = None
        self.delta: Tensor | None = None
        self.owed: Tensor | None = None
        self.round = -1
        """The one that begins with x."""
        self._weights_of_start: weakref.ref[Tensor] | None = None
        self._stepped = 0

    def snapshot(self, params: Mapping[str, Tensor], round_number: int) -> float:
        """x becomes what the weights are, and delta 0. Returns norm(x).

        After a commit that nothing followed, x is that already.
        """
        first = params[self.layout.places[0].name]
        is_known = self._weights_of_start is not None and self._weights_of_start() is first
        if self.start is None or not is_known:
            self.start = self.layout.read(params, Range(0, self.layout.elements))
            self._weights_of_start = weakref.ref(first)
        self.delta = None
        self._stepped = 0
        self.round = round_number
        return float(torch.linalg.vector_norm(self.start))

    def start_of(self, where: Range) -> Tensor:
        """A view of x."""
        return piece_of(self._started(), where)

    def start_of_round(self, at_least: int) -> Tensor | None:
        """x as it was when `round` began, neither to be changed nor kept; None if that is an older
        one. Raises JobFailed(not_ready) while the outer step is being taken from it."""
        if self._stepped:
            raise JobFailed("not_ready", "an outer step is being taken")
        return self.start if self.round >= at_least else None

    def gradient_of(self, params: Mapping[str, Tensor], where: Range) -> Tensor:
        """D of a piece."""
        y_N = self.layout.read(params, where)
        return torch.sub(self.start_of(where), y_N, out=y_N)

    def delta_of(self, where: Range) -> Tensor | None:
        """A view of xmix - x; None: Mix1 has given nothing at all."""
        return None if self.delta is None else piece_of(self.delta, where)

    def set_delta(self, where: Range, delta_N: Tensor) -> None:
        if self.delta is None:
            self.delta = torch.zeros(self.layout.elements, dtype=torch.bfloat16)
        piece_of(self.delta, where).copy_(delta_N)

    def momentum_of(self, where: Range, mu: float) -> Tensor | None:
        """A view of the momentum, zeros before the first step; None where there is none."""
        if mu == 0:
            return None
        if self.momentum is None:
            self.momentum = torch.zeros(self.layout.elements)
        return piece_of(self.momentum, where)

    def owed_of(self, where: Range) -> Tensor:
        """A view of what was not sent yet."""
        if self.owed is None:
            self.owed = torch.zeros(self.layout.elements)
        return piece_of(self.owed, where)

    def step(self, where: Range, theta_N: Tensor) -> None:
        """A piece of x becomes the next start's."""
        self.start_of(where).copy_(theta_N)
        self._stepped += where.count

    def commit(self, params: Mapping[str, Tensor], round_number: int) -> dict[str, Tensor]:
        """Fresh weights, in the order of `params`, for the round after `round_number`. One at a
        time, so the old ones can go.

        Raises JobFailed(compute_failed) unless every piece was stepped once.
        """
        if self._stepped != self.layout.elements:
            text = f"{self._stepped} of {self.layout.elements} coordinates were stepped"
            raise JobFailed("compute_failed", text)
        fresh = dict(params)
        for place in self.layout.places:
            old = fresh[place.name]
            new = piece_of(self._started(), Range(place.first, place.count)).view(place.shape)
            # A copy also where nothing has to move: x goes on as a vector of its own.
            fresh[place.name] = new.to(old.device, old.dtype, copy=True).requires_grad_()
        self._weights_of_start = weakref.ref(fresh[self.layout.places[0].name])
        self.delta = None
        self._stepped = 0
        self.round = round_number + 1
        return fresh

    # ------------------------------------------------------------------------------------- on disk

    def tensors(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What goes on after a restart, between two rounds. x is what the weights are, unless those
        are rounded."""
        parts = {"outer/momentum": self.momentum, "outer/owed": self.owed}
        if any(weight.dtype != torch.float32 for weight in params.values()):
            parts["outer/start"] = self.start
        return {name: value for name, value in parts.items() if value is not None}

    @classmethod
    def restored(
        cls, layout: FlatLayout, params: Mapping[str, Tensor], parts: Mapping[str, Tensor]
    ) -> OuterState:
        """The inverse of `tensors`. Raises ValueError for what cannot be this stage's."""
        for name, value in parts.items():
            if value.shape != (layout.elements,) or value.dtype != torch.float32:
                raise ValueError(f"{name}: another shape or type")
            if not bool(torch.isfinite(value).all()):
                raise ValueError(f"{name}: not finite")
        state = cls(layout)
        state.momentum, state.owed = parts.get("outer/momentum"), parts.get("outer/owed")
        state.start = parts.get("outer/start")
        if state.start is not None:
            state._weights_of_start = weakref.ref(params[layout.places[0].name])
        return state

    @property
    def bytes_held(self) -> int:
        held = (self.start, self.momentum, self.delta, self.owed)
        return sum(x.numel() * x.element_size() for x in held if x is not None)

    def _started(self) -> Tensor:
        if self.start is None:
            raise JobFailed("compute_failed", "no outer round has begun")
        return self.start


def piece_of(vector: Tensor, where: Range) -> Tensor:
    """A view."""
    return vector[where.first : where.first + where.count]


def _is_shallow(name: str) -> bool:
    if name.startswith("layers."):
        return int(name.split(".")[1]) < SHALLOW_LAYERS
    return name.startswith(("embedding.", "head."))
