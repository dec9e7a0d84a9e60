"""A tokeniser of one's own: byte-pair encoding learnt from a source, as a `tokenizer.json`.

Over bytes, so that every text can be said and none has an unknown token; words are cut as GPT-2
does. Only documents that no run with the usual share would hold out are learnt from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from swarmd.data.documents import DataMissing
from swarmd.data.sources import Source
from swarmd.data.text_files import needs_package
from swarmd.data.tokeniser import END_TOKENS

HELD_OUT_SHARE = 0.05
VOCAB_MIN = 257
"""The bytes, and the token that ends a text."""


@dataclass(frozen=True, slots=True)
class Trained:
    body: bytes
    vocab_size: int
    documents: int
    text_bytes: int


def train_tokeniser(source: Source, vocab_size: int, text_bytes_max: int) -> Trained:
    """Learn from the first `text_bytes_max` bytes of the source. Raises DataMissing."""
    assert vocab_size >= VOCAB_MIN
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
    tokeniser.train_from_iterator(_texts(source, text_bytes_max, taken), trainer)
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
