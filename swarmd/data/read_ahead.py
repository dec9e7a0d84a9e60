"""The samples of the next micro-batches, read while the device computes.

A head takes every n-th micro-batch of a round, so what it takes next is mostly known: as far beyond
the last one as that was beyond the one before. Those are read in a thread. A sample of a large
corpus lies in a block that nobody has looked at, which costs a read of a megabyte and its hash;
both leave the interpreter to others. What was guessed wrongly is dropped, what was not guessed is
read at once, and in both cases the samples are the same.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from swarmd.protocols.ids import MicroBatchId

AHEAD = 2
"""Micro-batches read before they are wanted."""
STRIDE_MAX = 4_096
"""More heads than that there are none; a larger step is a tale of other things."""


class Samples(Protocol):
    """A corpus, as far as it matters here."""

    @property
    def content_hash(self) -> str: ...

    def samples(self, micro_batch: MicroBatchId) -> NDArray[Any]: ...


@dataclass(slots=True)
class ReadFigures:
    """Of training micro-batches."""

    reads: int = 0
    ready: int = 0
    """Read, or being read, before they were wanted."""
    waited_s: float = 0.0
    """The reader's time until it had its samples."""


class ReadAhead:
    """In the place of its corpus. One reader; the thread ends with the process."""

    def __init__(self, corpus: Samples, micro_batches_per_round: int) -> None:
        self._corpus = corpus
        self._per_round = micro_batches_per_round
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="samples")
        self._coming: dict[MicroBatchId, Future[NDArray[Any]]] = {}
        self._last: int | None = None
        self.figures = ReadFigures()

    @property
    def content_hash(self) -> str:
        return self._corpus.content_hash

    def samples(self, micro_batch: MicroBatchId) -> NDArray[Any]:
        """Raises what the corpus raises."""
        if micro_batch.held_out:
            return self._corpus.samples(micro_batch)
        began_s = time.perf_counter()
        found = self._taken(micro_batch)
        self.figures.reads += 1
        self.figures.waited_s += time.perf_counter() - began_s
        self._look_ahead(micro_batch)
        return found

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _taken(self, micro_batch: MicroBatchId) -> NDArray[Any]:
        coming = self._coming.pop(micro_batch, None)
        if coming is None or coming.cancelled():
            return self._corpus.samples(micro_batch)
        self.figures.ready += 1
        return coming.result()

    def _look_ahead(self, micro_batch: MicroBatchId) -> None:
        """Those that will be wanted next, if it goes on like this."""
        number = micro_batch.round * self._per_round + micro_batch.index
        stride = 1 if self._last is None else number - self._last
        self._last = number
        if not 1 <= stride <= STRIDE_MAX:
            return  # one out of turn: what was guessed before still stands
        guessed = [
            MicroBatchId(*divmod(number + step * stride, self._per_round))
            for step in range(1, AHEAD + 1)
        ]
        for missed in [known for known in self._coming if known not in guessed]:
            # Whatever it ran into is met again by whoever wants it.
            self._coming.pop(missed).cancel()
        for wanted in guessed:
            if wanted not in self._coming:
                self._coming[wanted] = self._thread.submit(self._corpus.samples, wanted)
