"""Byte-pair encoding at the speed of a table: what lies between two spaces is encoded once.

A vocabulary's rule first cuts a text into words and merges bytes within each. The rules of GPT-2
and its successors always cut before a space that follows anything but white space, and before a
line's end that follows an ASCII letter or digit; nothing before such a cut changes what comes after
it. So a text can be cut there, each piece looked up (piece_table.py), and the ids joined, and they
are those of the whole text. Texts are mostly words that were seen before: of a corpus nearly all
pieces are found, and only the others go through the `tokenizers` library.

Cuts are found in the bytes of all texts at once. What the last byte of a character may be in UTF-8
tells whether it may be white space; where it may, there is no cut, and the piece is longer.

Whether a tokenizer.json has such a rule is read from the file (`ascii_rule`); one that normalises,
adds a space in front, or knows words with spaces in them is used as it is.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from string import ascii_letters, digits
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from swarmd.data.piece_table import PADDING, PieceTable, Places

WHITE = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""All characters that are white space."""
SPACE, LINE_END = ord(" "), ord("\n")
AFTER_WORD = np.ones(256, dtype=np.bool_)
"""By the byte before: a space begins a piece."""
AFTER_WORD[[character.encode()[-1] for character in WHITE]] = False
AFTER_LETTER = np.zeros(256, dtype=np.bool_)
"""By the byte before: a line's end begins a piece."""
AFTER_LETTER[np.frombuffer((ascii_letters + digits).encode(), dtype=np.uint8)] = True
REMEMBERED_MAX, BYTES_MAX = 1_000_000, 32_000_000
"""Remembered; some 200 MB. When there are more, all are forgotten: the common ones soon return."""

SHOWN = {code: chr(256 + number) for number, code in enumerate([*range(33), 127])}
"""How byte-level vocabularies write the ASCII characters that cannot be seen."""

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
RULES = (GPT2, _CL100K % "{1,3}", _CL100K % "")
"""Of GPT-2, of Llama 3 and GPT-4, of Qwen 2."""

Encode = Callable[[list[str]], list[list[int]]]


def ascii_rule(body: bytes) -> re.Pattern[str] | None:
    """How the tokenizer.json cuts ASCII into words; None if it does what is not foreseen here."""
    plain = json.loads(body)
    model = plain.get("model") or {}
    is_plain_bpe = model.get("type") == "BPE" and not model.get("dropout")
    has_words = any(not token.get("special") for token in plain.get("added_tokens") or ())
    if not is_plain_bpe or plain.get("normalizer") or has_words:
        return None
    rule = _rule(plain.get("pre_tokenizer") or {})
    return None if rule is None else re.compile(_for_ascii(rule), re.ASCII)


def _for_ascii(rule: str) -> str:
    """`re` knows no classes of characters by name."""
    within = rule.replace(r"\p{L}\p{N}", "A-Za-z0-9")
    return within.replace(r"\p{L}", "[A-Za-z]").replace(r"\p{N}", "[0-9]")


def _rule(plain: dict[str, Any]) -> str | None:
    if plain.get("type") == "ByteLevel":
        adds_space = plain.get("add_prefix_space", True)
        return GPT2 if not adds_space and plain.get("use_regex", True) is True else None
    steps = plain.get("pretokenizers") or []
    if plain.get("type") != "Sequence" or len(steps) != 2:
        return None
    split, to_bytes = steps
    rule = (split.get("pattern") or {}).get("Regex")
    is_cut_alone = (
        split.get("type") == "Split"
        and split.get("behavior") == "Isolated"
        and not split.get("invert")
        and to_bytes.get("type") == "ByteLevel"
        and to_bytes.get("add_prefix_space", True) is False
        and to_bytes.get("use_regex", True) is False
    )
    return rule if is_cut_alone and rule in RULES else None


class WordCache:
    """Ids of pieces, and of the words that new pieces are made of."""

    def __init__(self, encode: Encode, dtype: DTypeLike, rule: re.Pattern[str]) -> None:
        self._encode = encode
        self._typecode = np.dtype(dtype).char
        self._rule = rule
        self._pieces = PieceTable(dtype)
        self._words: dict[str, bytes] = {}
        self._bytes = 0

    @property
    def size(self) -> int:
        return len(self._pieces) + len(self._words)

    def encode(self, texts: Sequence[bytes]) -> list[NDArray[Any]]:
        """One array a text, as if each had been encoded whole."""
        data = b"".join((*texts, PADDING))
        text_ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        starts = _cuts(data, text_ends)
        places = Places(data, starts, np.diff(starts, append=text_ends[-1:]))
        first, count = self._pieces.find(places)
        if (count < 0).any():
            self._learn(set(places.pieces(np.flatnonzero(count < 0))))
            first, count = self._pieces.find(places)
        ids = self._pieces.join(first, count)
        ids_before = np.concatenate([[0], np.cumsum(count)])
        ends = ids_before[np.searchsorted(starts, text_ends)].tolist()
        if self.size > REMEMBERED_MAX or self._bytes > BYTES_MAX:
            self._pieces.clear()
            self._words.clear()
            self._bytes = 0
        return [ids[start:end] for start, end in pairwise([0, *ends])]

    def _learn(self, unknown: set[bytes]) -> None:
        pieces = sorted(unknown)
        words = [self._words_of(piece.decode()) for piece in pieces]
        self._learn_words(set().union(*words))
        look_up = self._words.__getitem__
        self._pieces.put(pieces, [b"".join(map(look_up, some)) for some in words])
        self._bytes += sum(map(len, pieces))

    def _words_of(self, text: str) -> list[str]:
        return self._rule.findall(text) if text.isascii() else [text]

    def _learn_words(self, words: set[str]) -> None:
        unknown = sorted(word for word in words if word not in self._words)
        if not unknown:
            return
        for word, ids in zip(unknown, self._encode(unknown), strict=True):
            self._words[word] = array(self._typecode, ids).tobytes()
            self._bytes += len(word)


def _cuts(data: bytes, text_ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where pieces begin: at each text's start, and where the rules cut. data: with padding."""
    found = np.frombuffer(data, dtype=np.uint8)
    before = found[:-1]
    here = found[1:]
    places = np.flatnonzero((here == SPACE) | (here == LINE_END))
    last = before[places]
    is_cut = np.where(here[places] == SPACE, AFTER_WORD[last], AFTER_LETTER[last])
    begins = np.zeros(len(found), dtype=np.bool_)
    begins[places[is_cut] + 1] = True
    begins[0] = True
    begins[text_ends] = True
    begins[text_ends[-1:].sum() :] = False
    return np.flatnonzero(begins)
