"""What a RunConfig may hold: the error that names the key, and checks that need words of their own.

A run comes from a person's file or from a stranger; what passes here is what machines, files and
terminals can bear.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from swarmd.peer_id import public_key_of

NAME_CHARS_MAX = 64
MODEL_SIZES_MAX = {
    "vocab_size": 1 << 24,
    "width": 1 << 20,
    "layers": 1 << 12,
    "heads": 1 << 16,
    "kv_heads": 1 << 16,
    "ff_width": 1 << 22,
}
"""Far above any model there is; a slip of the hand is told before anything is allocated."""

INTEGER_MAX = (1 << 53) - 1
"""What every reader of JSON holds exactly; far below what the wire and a generator's seed bear."""


class InvalidRun(ValueError):
    """A RunConfig that contradicts itself. `key` is the dotted name in a run file."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(f"{key}: {text}")
        self.key = key
        self.text = text


def require(condition: bool, key: str, text: str) -> None:
    if not condition:
        raise InvalidRun(key, text)


def check_integer(value: int, key: str) -> None:
    """Any integer, whatever it means."""
    require(abs(value) <= INTEGER_MAX, key, f"is beyond {INTEGER_MAX}, the largest that is taken")


def check_model_size(name: str, size: int) -> None:
    most = MODEL_SIZES_MAX[name]
    require(size >= 1, f"model.{name}", "must be at least 1")
    require(size <= most, f"model.{name}", f"is {size}; more than {most} is a mistake")


def check_hash(text: str, key: str) -> None:
    """A BLAKE2b-256, or nothing where none is given."""
    is_hash = re.fullmatch("[0-9a-f]{64}", text) is not None
    require(not text or is_hash, key, "is empty, or 64 digits of lower-case hex")


def check_name(name: str) -> None:
    """It is printed on other people's terminals."""
    require(0 < len(name) <= NAME_CHARS_MAX, "run.name", f"has {len(name)} characters, not 1 to 64")
    hidden = next((letter for letter in name if unicodedata.category(letter)[0] == "C"), None)
    require(
        hidden is None, "run.name", f"has the character {hidden!r}, which nobody would see as such"
    )


def check_operators(operators: Sequence[str]) -> None:
    for operator in operators:
        try:
            public_key_of(operator)
        except ValueError as error:
            raise InvalidRun(
                "run.operators", f"{operator!r} {error}; operators are named by their peer id"
            ) from None
