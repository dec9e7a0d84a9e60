"""A Llama whose layers are cut into stages, each with a token table of its own.

`swarmd export` puts this file beside the weights of a run with anchored boundaries; `transformers`
loads it with `trust_remote_code=True`. Everything is an ordinary Llama, but at the first layer of
each stage after the first, the stream takes that stage's table in place of the one before:
X + (A_s - A_{s-1})[ids].
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import LlamaForCausalLM


class SwarmdForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """`config.swarmd_first_layers`: of each stage."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._firsts = list(config.swarmd_first_layers)
        self.swarmd = nn.Module()
        self.swarmd.anchor = nn.ModuleDict(
            {
                str(first): nn.Embedding(config.vocab_size, config.hidden_size)
                for first in self._firsts
            }
        )
        self._ids: Tensor | None = None
        for before, first in zip(self._firsts, self._firsts[1:], strict=False):
            layer = self.model.layers[first]
            layer.register_forward_pre_hook(self._change(before, first), with_kwargs=True)
        self.post_init()

    def forward(self, input_ids: Tensor | None = None, *args: Any, **named: Any) -> Any:
        if input_ids is None:
            raise ValueError("this model needs input_ids: its stages look tokens up themselves")
        self._ids = input_ids
        return super().forward(input_ids, *args, **named)

    def _change(self, before: int, first: int) -> Any:
        def hook(layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            tables = self.swarmd.anchor
            change = tables[str(first)](self._ids) - tables[str(before)](self._ids)
            if args:
                return (args[0] + change, *args[1:]), named
            return args, {**named, "hidden_states": named["hidden_states"] + change}

        return hook
