"""From documents to a folder of tokens: tokenised in batches, split, hashed, all in one pass.

A document is held out when the hash of its name and content falls below a threshold: no list, no
dependence on order, the same documents on every machine. Where the share gives less than a run
looks at (few or short documents) the threshold is raised just as far as needed. That is known only
at the end, so small sources are then read a second time.

Memory is that of one batch, whatever the source's size.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarmd.data.documents import REPLACEMENT, ContentDigest, DataMissing, Document
from swarmd.data.encoding import encoded
from swarmd.data.sources import Source
from swarmd.data.token_folder import (
    LAYOUT_VERSION,
    SHARD_BYTES,
    TOKENISER_FILE,
    Index,
    ShardWriter,
    hashes_hash,
    write_index,
)
from swarmd.data.tokeniser import Tokeniser

BATCH_BYTES = 1 << 20
"""Of text, tokenised together: enough to keep several cores busy, little enough to hold."""
TELL_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Of a pass over a source."""

    documents: int
    text_bytes: int
    tokens: int
    seconds: float
    share: float | None = None
    """Of the source; None if its size is not known."""
    first_mended: str = ""
    """The first document that had to be mended."""

    def __str__(self) -> str:
        megabytes = self.text_bytes / 1e6
        return (
            f"{megabytes:.1f} MB of text in {self.documents} documents, {self.tokens} tokens, "
            f"{megabytes / max(self.seconds, 1e-3):.2f} MB/s{self._outlook}"
        )

    @property
    def _outlook(self) -> str:
        if not self.share or self.share >= 1.0:
            return ""
        left_s = self.seconds * (1 - self.share) / self.share
        left = f"{left_s / 60:.0f} min" if left_s >= 100 else f"{left_s:.0f} s"
        return f"; {self.share:.0%} done, about {left} left"


Tell = Callable[[Progress], None]
"""Called about once a second, and at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How documents become a folder. `held_out_tokens_min` of them at least are held out."""

    held_out_share: float
    held_out_tokens_min: int
    shard_bytes: int = SHARD_BYTES
    jobs: int = 1
    """Processes that tokenise. The tokens are the same whatever their number."""


def write_tokens(
    source: Source, tokeniser: Tokeniser, folder: Path, recipe: Recipe, tell: Tell | None = None
) -> Index:
    """Tokenise a source into an empty folder. Raises DataMissing, OSError of the file system."""
    first = _Pass(source, tokeniser, folder, recipe, int(recipe.held_out_share * 2.0**64))
    index = first.run(tell)
    hashes = first.hashes
    if first.threshold_needed > first.threshold:
        for path in folder.iterdir():
            path.unlink()
        again = _Pass(source, tokeniser, folder, recipe, first.threshold_needed)
        index = again.run(tell)
        hashes = again.hashes
        if index.content_hash != first.content_hash:
            raise DataMissing(
                f"{source.spec} changed while it was read",
                path=source.spec,
                hint="wait until nothing writes to these files, then try again",
            )
    if tokeniser.body:
        (folder / TOKENISER_FILE).write_bytes(tokeniser.body)
    write_index(folder, index, hashes)
    return index


class _Pass:
    """One reading of a source. Documents below `threshold` are held out."""

    def __init__(
        self, source: Source, tokeniser: Tokeniser, folder: Path, recipe: Recipe, threshold: int
    ) -> None:
        self._source = source
        self._tokeniser = tokeniser
        self._recipe = recipe
        self.threshold = threshold
        self._train = ShardWriter(folder, "train", recipe.shard_bytes)
        self._held_out = ShardWriter(folder, "held_out", recipe.shard_bytes)
        self._digest = ContentDigest()
        self._separator = np.array([tokeniser.separator], dtype=tokeniser.dtype).tobytes()
        self._documents = self._held_out_documents = self._mended = 0
        self._text_bytes = 0
        self._first_mended = ""
        self._lowest: list[tuple[int, int]] = []
        """A heap of (-rank, tokens): the lowest ranks that together reach the minimum, no more."""
        self._lowest_tokens = 0

    @property
    def content_hash(self) -> str:
        return self._digest.hexdigest()

    @property
    def hashes(self) -> bytes:
        return bytes(self._train.hashes + self._held_out.hashes)

    @property
    def threshold_needed(self) -> int:
        """So far down the order of hashes must documents be held out."""
        return max(self.threshold, 1 - self._lowest[0][0])

    def run(self, tell: Tell | None) -> Index:
        began_s = told_s = time.monotonic()
        try:
            batches = _batches(self._source.documents())
            for batch, ids in encoded(batches, self._tokeniser, self._recipe.jobs):
                self._take(batch, ids)
                now_s = time.monotonic()
                if tell is not None and now_s - told_s >= TELL_EVERY_S:
                    told_s = now_s
                    tell(self._progress(now_s - began_s))
            self._train.finish()
            self._held_out.finish()
        finally:
            self._train.close()
            self._held_out.close()
        if not self._documents:
            raise DataMissing(
                f"{self._source.spec} has no text in it",
                path=self._source.spec,
                hint="every file that matches is empty",
            )
        if tell is not None:
            tell(self._progress(time.monotonic() - began_s))
        return self._index()

    def _take(self, batch: list[Document], ids_of_batch: list[NDArray[Any]]) -> None:
        for document, ids in zip(batch, ids_of_batch, strict=True):
            digest = document.digest()
            self._digest.add(digest)
            rank = int.from_bytes(digest[:8], "big")
            self._note_rank(rank, len(ids) + 1)
            is_held_out = rank < self.threshold
            part = self._held_out if is_held_out else self._train
            part.write(ids.tobytes() + self._separator)
            self._documents += 1
            self._held_out_documents += is_held_out
            if REPLACEMENT in document.content:
                self._mended += 1
                self._first_mended = self._first_mended or document.name
            self._text_bytes += len(document.content)

    def _note_rank(self, rank: int, tokens: int) -> None:
        tokens_min = self._recipe.held_out_tokens_min
        if self._lowest_tokens >= tokens_min and rank >= -self._lowest[0][0]:
            return
        heapq.heappush(self._lowest, (-rank, tokens))
        self._lowest_tokens += tokens
        while self._lowest_tokens - self._lowest[0][1] >= tokens_min:
            self._lowest_tokens -= heapq.heappop(self._lowest)[1]

    @property
    def _tokens(self) -> tuple[int, int]:
        item = np.dtype(self._tokeniser.dtype).itemsize
        return self._train.size_bytes // item, self._held_out.size_bytes // item

    def _progress(self, seconds: float) -> Progress:
        return Progress(
            self._documents,
            self._text_bytes,
            sum(self._tokens),
            seconds,
            self._source.reading.share,
            self._first_mended,
        )

    def _index(self) -> Index:
        train_tokens, held_out_tokens = self._tokens
        return Index(
            layout=LAYOUT_VERSION,
            source=self._source.spec,
            content_hash=self.content_hash,
            tokeniser=self._tokeniser.name,
            vocab_size=self._tokeniser.vocab_size,
            dtype=np.dtype(self._tokeniser.dtype).str,
            documents=self._documents,
            held_out_documents=self._held_out_documents,
            mended_documents=self._mended,
            empty_texts=self._source.reading.empty_texts,
            train_tokens=train_tokens,
            held_out_tokens=held_out_tokens,
            shard_bytes=self._recipe.shard_bytes,
            hashes_hash=hashes_hash(self.hashes),
        )


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size_bytes = 0
    for document in documents:
        batch.append(document)
        size_bytes += len(document.content)
        if size_bytes >= BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch
