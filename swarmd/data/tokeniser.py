"""Text to token ids. One tokeniser so far: the bytes themselves.

A tokeniser's name is part of the run, so two peers never read the same text as different ids.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from swarmd.errors import UserError

SEPARATOR = 0
"""Stands between two documents. Sources give no text that contains it."""


class Tokeniser(Protocol):
    """`encode` gives ids in 0..vocab_size-1, of the smallest unsigned type that holds them."""

    @property
    def name(self) -> str:
        """As in DataConfig.tokeniser."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def dtype(self) -> DTypeLike: ...

    def encode(self, text: bytes) -> NDArray[Any]: ...

    def decode(self, ids: NDArray[Any]) -> bytes:
        """The text again; separators become line ends."""
        ...


class BytesTokeniser:
    """A byte is a token. Nothing to download, nothing to learn, no unknown token."""

    name = "bytes"
    vocab_size = 256
    dtype = np.uint8

    def encode(self, text: bytes) -> NDArray[np.uint8]:
        return np.frombuffer(text, dtype=np.uint8)

    def decode(self, ids: NDArray[Any]) -> bytes:
        return np.asarray(ids).astype(np.uint8).tobytes().replace(b"\0", b"\n")


def tokeniser_named(name: str) -> Tokeniser:
    """Raises UserError (bad_config) for a name that this version does not know."""
    if name == BytesTokeniser.name:
        return BytesTokeniser()
    raise UserError(
        f"unknown tokeniser {name!r}",
        code="bad_config",
        exit_code=78,
        hint='this version knows "bytes" only',
    )
