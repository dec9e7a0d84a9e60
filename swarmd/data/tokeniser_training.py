"""A tokeniser of one's own: byte-pair encoding learnt from a source, as a `tokenizer.json`.

Over bytes, so that every text can be said and none has an unknown token; words are cut as GPT-2
does. Only documents that no run with the usual share would hold out are learnt from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from swarmd.data.documents import DataMissing
from swarmd.data.sources import Source
from swarmd.data.text_files import needs_package
from swarmd.data.tokeniser import END_TOKENS

HELD_OUT_SHARE = 0.05
TELL_EVERY_S = 1.0
VOCAB_MIN = 257
"""The bytes, and the token that ends a text."""
VOCAB_MAX = 1 << 20
"""Four times the largest in use. The library makes room for all tokens at once, and ends the
process where there is none."""


@dataclass(frozen=True, slots=True)
class Trained:
    body: bytes
    vocab_size: int
    documents: int
    text_bytes: int


def train_tokeniser(
    source: Source, vocab_size: int, text_bytes_max: int, say: Callable[[str], None] | None = None
) -> Trained:
    """Learn from the first `text_bytes_max` bytes of the source. say: told how far that is, once a
    second. Raises DataMissing."""
    assert VOCAB_MIN <= vocab_size <= VOCAB_MAX
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise needs_package("training a tokeniser", "tokenizers", source.spec) from None
    tokeniser = Tokenizer(models.BPE())
    tokeniser.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokeniser.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_TOKENS[0]],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    taken = [0, 0]
    texts = _texts(source, text_bytes_max, taken)
    if say is not None:
        texts = _telling(texts, taken, text_bytes_max, vocab_size, say)
    tokeniser.train_from_iterator(texts, trainer)
    if not taken[0]:
        raise DataMissing(f"{source.spec} has no text in it", path=source.spec)
    body = json.dumps(json.loads(tokeniser.to_str()), ensure_ascii=False, indent=1).encode()
    return Trained(body, tokeniser.get_vocab_size(), *taken)


def _texts(source: Source, text_bytes_max: int, taken: list[int]) -> Iterator[str]:
    """taken: documents and bytes so far."""
    threshold = int(HELD_OUT_SHARE * 2.0**64)
    for document in source.documents():
        if int.from_bytes(document.digest()[:8], "big") < threshold:
            continue
        if taken[1] + len(document.content) > text_bytes_max:
            return
        taken[0] += 1
        taken[1] += len(document.content)
        yield document.content.decode()


def _telling(
    texts: Iterator[str],
    taken: list[int],
    text_bytes_max: int,
    vocab_size: int,
    say: Callable[[str], None],
) -> Iterator[str]:
    told_s = time.monotonic()
    for text in texts:
        yield text
        now_s = time.monotonic()
        if now_s - told_s >= TELL_EVERY_S:
            told_s = now_s
            say(f"{taken[1] / 1e6:.1f} MB of text read, {text_bytes_max / 1e6:.0f} at most")
    say(f"{taken[1] / 1e6:.1f} MB of text read; now {vocab_size} tokens are chosen")
