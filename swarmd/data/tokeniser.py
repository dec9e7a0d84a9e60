"""Text to token ids: the bytes themselves, or any `tokenizer.json`.

A tokeniser's name is part of the run, so two peers never read the same text as different ids: it is
`bytes`, or the BLAKE2b-256 of the file's bytes. Files lie in the cache under their hash; a file of
the run's hash is right wherever it came from.

The `tokenizers` library is loaded only for such a file. It reads special tokens in a text as plain
text here, so no document can end itself: the one that ends a text stands between documents only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from swarmd.data import INSTALL_HINT
from swarmd.data.documents import EXIT_BAD_CONFIG, DataMissing
from swarmd.data.word_cache import SHOWN, WordCache, ascii_rule
from swarmd.errors import UserError
from swarmd.tokeniser_files import NAME, cached_file, find, keep, name_of

SEPARATOR = 0
"""Of the bytes tokeniser. Sources give no text that contains it."""
END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]", "[EOS]")
"""How vocabularies call the token that ends a text; the first that is there separates documents."""
FILE_BYTES_MAX = 64 << 20


class Tokeniser(Protocol):
    """`encode` gives ids in 0..vocab_size-1, of the smallest unsigned type that holds them."""

    @property
    def name(self) -> str:
        """As in DataConfig.tokeniser."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def separator(self) -> int:
        """Stands after every document."""
        ...

    @property
    def dtype(self) -> DTypeLike: ...

    @property
    def body(self) -> bytes:
        """The file; empty where the name says all."""
        ...

    def encode(self, texts: Sequence[bytes]) -> list[NDArray[Any]]:
        """One array a text."""
        ...

    def decode(self, ids: NDArray[Any]) -> bytes:
        """The text again; separators become line ends."""
        ...


class BytesTokeniser:
    """A byte is a token. Nothing to download, nothing to learn, no unknown token."""

    name = "bytes"
    vocab_size = 256
    separator = SEPARATOR
    dtype = np.uint8
    body = b""

    def encode(self, texts: Sequence[bytes]) -> list[NDArray[np.uint8]]:
        return [np.frombuffer(text, dtype=np.uint8) for text in texts]

    def decode(self, ids: NDArray[Any]) -> bytes:
        return np.asarray(ids).astype(np.uint8).tobytes().replace(b"\0", b"\n")


class JsonTokeniser:
    """What a `tokenizer.json` describes."""

    def __init__(self, body: bytes, where: str) -> None:
        """where: for messages. Raises UserError (bad_config) for what is no usable tokeniser,
        DataMissing if the library is not installed."""
        self.name = name_of(body)
        self.body = body
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise DataMissing(
                f"the tokeniser {where} needs the package tokenizers, which is not installed",
                path=where,
                hint=INSTALL_HINT,
            ) from None
        try:
            self._inner = Tokenizer.from_str(body.decode())
        except Exception as error:  # the library raises Exception itself
            raise _bad_tokeniser(f"{where} is no tokenizer.json: {error}", "") from None
        self._inner.encode_special_tokens = True
        self._inner.no_padding()
        self._inner.no_truncation()
        # Ids may have gaps: what counts for a model and a type is the largest.
        self.vocab_size: int = 1 + max(self._inner.get_vocab().values(), default=-1)
        self.dtype: DTypeLike = _smallest(self.vocab_size)
        ends = [self._inner.token_to_id(token) for token in END_TOKENS]
        known = [number for number in ends if number is not None]
        if not known:
            raise _bad_tokeniser(
                f"{where} has no token that ends a text",
                f"one of {', '.join(END_TOKENS)} must be in its vocabulary",
            )
        self.separator: int = known[0]
        rule = ascii_rule(body)
        self._model = self._inner.model
        self._words = WordCache(self._ids_of_words, self.dtype, rule) if rule else None

    def encode(self, texts: Sequence[bytes]) -> list[NDArray[Any]]:
        if self._words is not None:
            return self._words.encode(texts)
        decoded = [text.decode() for text in texts]
        return [np.array(ids, dtype=self.dtype) for ids in self._ids(decoded)]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        found = self._inner.encode_batch_fast(texts, add_special_tokens=False)
        return [item.ids for item in found]

    def _ids_of_words(self, words: list[str]) -> list[list[int]]:
        """ASCII words are what the rule gives, and need only be merged: a third of the time."""
        others = [word for word in words if not word.isascii()]
        known = dict(zip(others, self._ids(others), strict=True)) if others else {}
        merge = self._model.tokenize
        return [
            known[word] if word in known else [token.id for token in merge(word.translate(SHOWN))]
            for word in words
        ]

    def decode(self, ids: NDArray[Any]) -> bytes:
        parts: list[list[int]] = [[]]
        for number in np.asarray(ids).tolist():
            if number == self.separator:
                parts.append([])
            else:
                parts[-1].append(number)
        texts = (self._inner.decode(part, skip_special_tokens=False) for part in parts)
        return "\n".join(texts).encode()


def tokeniser_named(name: str, cache_dir: Path) -> Tokeniser:
    """The run's tokeniser, its file from the cache.

    Raises UserError (bad_config) for a name that means nothing, DataMissing for a file that is
    nowhere.
    """
    if name == BytesTokeniser.name:
        return BytesTokeniser()
    if not NAME.fullmatch(name):
        raise _bad_tokeniser(
            f"unknown tokeniser {name!r}",
            'it is "bytes", or the path of a tokenizer.json (in a run: the file\'s hash)',
        )
    path = cached_file(name, cache_dir)
    body = find(name, cache_dir)
    if body is not None:
        return JsonTokeniser(body, str(path))
    raise DataMissing(
        f"the run's tokeniser {name[:16]} is not on this machine",
        path=name,
        hint="peers that have it give it to whoever joins; `swarmd data tokenize` with a copy of "
        "that file puts it into the cache",
    )


def tokeniser_of(text: str, cache_dir: Path) -> Tokeniser:
    """What a person names: `bytes`, a hash, or the path of a `tokenizer.json`, which is then kept
    in the cache. Raises UserError and DataMissing."""
    if text == BytesTokeniser.name or NAME.fullmatch(text):
        return tokeniser_named(text, cache_dir)
    path = Path(text).expanduser()
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise _bad_tokeniser(f"{path} is a pipe, a socket or a device", "give it as a file")
        if path.stat().st_size > FILE_BYTES_MAX:
            raise _bad_tokeniser(f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB", "")
        body = path.read_bytes()
    except OSError as error:
        raise _bad_tokeniser(
            f"cannot read the tokeniser {path}: {error.strerror}",
            'it is "bytes", or the path of a tokenizer.json',
        ) from None
    tokeniser = JsonTokeniser(body, str(path))
    keep(body, cache_dir)
    return tokeniser


def _smallest(vocab_size: int) -> DTypeLike:
    if vocab_size <= 1 << 8:
        return np.uint8
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def _bad_tokeniser(text: str, hint: str) -> UserError:
    return UserError(text, code="bad_config", exit_code=EXIT_BAD_CONFIG, hint=hint)
