"""Byte-pair encoding at the speed of a dictionary: what lies between two spaces is encoded once.

A vocabulary's rule first cuts a text into words and merges bytes within each. The rules of GPT-2
and its successors always cut before a space that follows anything but white space, and before a
line's end that follows an ASCII letter or digit; nothing before such a cut changes what comes after
it. So a text can be cut there by Python's `split`, each piece looked up, and the ids joined, and
they are those of the whole text. Texts are mostly words that were seen before: of a corpus nearly
all pieces are found, and only the others go through the `tokenizers` library.

Whether a tokenizer.json has such a rule is read from the file (`can_cut`); one that normalises,
adds a space in front, or knows words with spaces in them is used as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

KEPT, HERE, WHOLE = "\ue000", "\ue001", "\ue002"
"""Private characters: a space that is no cut; a cut without a space; a text that is not cut, since
it has one of these itself."""
AFTER_WHITE = re.compile(r"(?<=\s) +")
LINE_END = re.compile(r"(?<=[A-Za-z0-9])\n")
REMEMBERED_MAX, CHARS_MAX = 500_000, 16_000_000
"""Remembered; some 100 MB. When there are more, all are forgotten: the common ones soon return."""

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
    """Ids of pieces and words, as bytes of the tokeniser's type."""

    def __init__(self, encode: Encode, dtype: DTypeLike, rule: re.Pattern[str]) -> None:
        self._encode = encode
        self._dtype = np.dtype(dtype)
        self._rule = rule
        self._pieces: dict[str, bytes] = {}
        self._words: dict[str, bytes] = {}
        self._chars = 0

    @property
    def size(self) -> int:
        return len(self._pieces) + len(self._words)

    def encode(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """One array a text, as if each had been encoded whole."""
        cut = [_cut(text) for text in texts]
        self._learn_pieces(set().union(*cut))
        look_up = self._pieces.__getitem__
        joined = [b"".join(map(look_up, pieces)) for pieces in cut]
        if self.size > REMEMBERED_MAX or self._chars > CHARS_MAX:
            self._pieces.clear()
            self._words.clear()
            self._chars = 0
        return [np.frombuffer(body, dtype=self._dtype) for body in joined]

    def _learn_pieces(self, pieces: set[str]) -> None:
        known = self._pieces
        unknown = {piece: self._words_of(_text(piece)) for piece in pieces if piece not in known}
        self._learn_words(set().union(*unknown.values()))
        look_up = self._words.__getitem__
        for piece, words in unknown.items():
            known[piece] = b"".join(map(look_up, words))
            self._chars += len(piece)

    def _words_of(self, text: str) -> list[str]:
        return self._rule.findall(text) if text.isascii() else [text]

    def _learn_words(self, words: set[str]) -> None:
        unknown = sorted(word for word in words if word not in self._words)
        if not unknown:
            return
        for word, ids in zip(unknown, self._encode(unknown), strict=True):
            self._words[word] = np.array(ids, dtype=self._dtype).tobytes()
            self._chars += len(word)


def _cut(text: str) -> list[str]:
    """Pieces, each without the space that it begins with."""
    if KEPT in text or HERE in text or WHOLE in text:
        return [WHOLE + text]
    text = AFTER_WHITE.sub(lambda found: KEPT * len(found[0]), text)
    return (HERE + LINE_END.sub(f" {HERE}\n", text)).split(" ")


def _text(piece: str) -> str:
    """What a piece stands for."""
    if piece.startswith(WHOLE):
        return piece[1:]
    start, rest = ("", piece[1:]) if piece.startswith(HERE) else (" ", piece)
    return start + rest.replace(KEPT, " ")
