"""All stages of a run in one process, to look at: logits, held-out loss, text. Never trained here.

From the state files of its stages, or from a folder that `swarmd export` wrote. An exported model
is computed as what it is, a dense Llama; where the run was anchored, the table of each stage takes
the place of the one before at its first layer, as in its modelling file.

Legend: B samples, T tokens, V vocabulary, D width.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from swarmd.errors import UserError
from swarmd.model.export import dense_parameters
from swarmd.model.stage import Parameters, Stage, build_stage
from swarmd.run_config import BoundaryConfig, RunConfig


def unusable(path: Path, why: str) -> UserError:
    hint = "nothing is taken of what is not whole: give another copy"
    return UserError(f"{path} {why}", code="checkpoint_unusable", exit_code=1, hint=hint)


def read_parameters(stage: Stage, path: Path) -> Parameters:
    """The weights in a state file. Raises UserError (checkpoint_unusable), saying why."""
    params: Parameters = {}
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("run_id") != stage.run.run_id or about.get("stage") != str(stage.index):
                raise unusable(path, f"is no state of stage {stage.index} of this run")
            for name, shape in stage.shapes.items():
                value = file.get_tensor(f"param/{name}")
                if tuple(value.shape) != shape or not bool(torch.isfinite(value).all()):
                    raise unusable(path, f"has no sound {name}")
                params[name] = value.to(stage.device, stage.dtype)
    except (OSError, SafetensorError) as error:
        raise unusable(path, f"cannot be read: {error}") from None
    return params


class WholeModel:
    """stages and their weights, in order. anchors: of exported models only, see the header."""

    def __init__(
        self,
        stages: list[Stage],
        params: list[Parameters],
        anchors: list[Tensor] | None = None,
    ) -> None:
        self.run = stages[0].run
        self._stages, self._params = stages, params
        self._anchors = anchors

    @classmethod
    def of_states(cls, run: RunConfig, files: Mapping[int, Path]) -> WholeModel:
        """files: one of each stage. Raises UserError."""
        stages = [build_stage(run, index) for index in range(run.stages)]
        return cls(stages, [read_parameters(stage, files[stage.index]) for stage in stages])

    @classmethod
    def of_export(cls, run: RunConfig, folder: Path) -> WholeModel:
        """Raises UserError."""
        tensors = read_export(folder)
        dense = dataclasses.replace(run, boundary=BoundaryConfig(kind="dense", wire="fp32"))
        stages = [build_stage(dense, index) for index in range(run.stages)]
        params = [dense_from(folder, tensors, stage) for stage in stages]
        anchors = None
        if run.boundary.kind == "anchored":
            names = [f"swarmd.anchor.{first}.weight" for first, _ in run.layer_ranges]
            wanted = (run.model.vocab_size, run.model.width)
            for name in names:
                if name not in tensors or tuple(tensors[name].shape) != wanted:
                    raise unusable(folder, f"lacks {name} of shape {wanted}")
            anchors = [tensors[name] for name in names]
        return cls(stages, params, anchors)

    @torch.no_grad()
    def hidden(self, ids_BT: Tensor) -> Tensor:
        """(B, T, D), normalised, as the head reads it."""
        state: Tensor | None = None
        for number, (stage, params) in enumerate(zip(self._stages, self._params, strict=True)):
            if state is not None and self._anchors is not None:
                change_VD = self._anchors[number] - self._anchors[number - 1]
                state = state + F.embedding(ids_BT, change_VD)
            state = stage.forward(params, ids_BT, state)
        assert state is not None
        return state

    @torch.no_grad()
    def logits(self, ids_BT: Tensor, *, only_last: bool = False) -> Tensor:
        """(B, T, V); only_last: (B, 1, V)."""
        hidden_BTD = self.hidden(ids_BT)
        hidden_BTD = hidden_BTD[:, -1:] if only_last else hidden_BTD
        return self._stages[-1].logits(self._params[-1], hidden_BTD)

    @torch.no_grad()
    def loss_sum(self, ids_BT1: Tensor) -> float:
        """Sum over samples of the mean loss per token, nats."""
        hidden_BTD = self.hidden(ids_BT1[:, :-1])
        return self._stages[-1].loss_sum(self._params[-1], hidden_BTD, ids_BT1[:, 1:]).item()

    def continued(
        self, ids: list[int], count: int, *, temperature: float, seed: int
    ) -> Iterator[int]:
        """Tokens that follow, one at a time. temperature 0: the likeliest. No more than the run's
        sequence length is looked back at."""
        generator = torch.Generator().manual_seed(seed)
        seen = list(ids)
        for _ in range(count):
            window_1T = torch.tensor([seen[-self.run.sequence_tokens :]])
            logits_V = self.logits(window_1T, only_last=True)[0, 0]
            if temperature > 0:
                chances_V = torch.softmax(logits_V.double() / temperature, dim=-1)
                chosen = int(torch.multinomial(chances_V, 1, generator=generator))
            else:
                chosen = int(logits_V.argmax())
            seen.append(chosen)
            yield chosen


def dense_from(folder: Path, tensors: Mapping[str, Tensor], stage: Stage) -> Parameters:
    """What a dense stage needs of a folder's tensors.

    Raises UserError for a weight that is missing, misshapen or not finite.
    """
    try:
        params = dense_parameters(stage, tensors)
    except KeyError as error:
        raise unusable(folder, f"lacks {error.args[0]}") from None
    for name, value in params.items():
        if not bool(torch.isfinite(value).all()):
            raise unusable(folder, f"has values in {name} that are not finite")
    return params


def read_export(folder: Path) -> dict[str, Tensor]:
    """All tensors of an exported folder. Raises UserError."""
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    tensors: dict[str, Tensor] = {}
    try:
        if index.exists():
            names = set(json.loads(index.read_text())["weight_map"].values())
        for name in sorted(names):
            if name != Path(name).name:
                raise unusable(index, f"names a file elsewhere: {name}")
            with safe_open(folder / name, framework="pt") as file:
                tensors |= {key: file.get_tensor(key) for key in file.keys()}
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise unusable(folder, f"cannot be read: {error}") from None
    return tensors
