"""The samples of a micro-batch, the same ones on every peer.

A sample is `sequence_tokens + 1` ids (inputs and, one further on, targets); sample k begins at id
k * sequence_tokens of the training file. Micro-batches are numbered over the whole run (those of
all earlier rounds, then `index`); micro-batch g has the samples with running numbers

    g * samples ... g * samples + samples - 1

The running number n is the n-th sample read since the start: epoch n // samples_per_epoch, in an
order of its own for every epoch (order.py). So nobody needs to remember where anybody is.

With `data.epochs` the running numbers end at epochs * samples_per_epoch (`data.samples_total`): the
last micro-batch then may have fewer samples, and there is none after it. Without, the data repeat
until the steps are done.

Held-out micro-batches read a few fixed sequences of the held-out file: the same ones in every round
and on every peer. The last of them may be shorter, too.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarmd.data.documents import EXIT_BAD_CONFIG, DataMissing
from swarmd.data.order import Permutation
from swarmd.data.packing import folder_of, pack
from swarmd.data.sources import Source, parse_source
from swarmd.data.token_folder import Packed, TokenPart, open_folder
from swarmd.data.token_writing import Recipe, Tell
from swarmd.data.tokeniser import tokeniser_named, tokeniser_of
from swarmd.errors import Corrupt, UserError
from swarmd.protocols.ids import MicroBatchId
from swarmd.run_config import DataConfig, RunConfig


@dataclass(frozen=True, slots=True)
class CorpusSize:
    """What a run's author must know of the data. Equal on every machine that has them."""

    content_hash: str
    vocab_size: int
    documents: int
    held_out_documents: int
    tokens_total: int
    """Of both parts, separators included."""
    samples_per_epoch: int
    held_out_sequences: int
    """How many there are; a run looks at data.held_out_sequences of them."""


class Corpus:
    """Samples by micro-batch. Holds files open and no tokens."""

    def __init__(
        self, packed: Packed, source: Source, run: RunConfig, mend: Callable[[Corrupt], Packed]
    ) -> None:
        """mend: opens the data again when tokens turn out not to be what was written; raises
        DataMissing where that cannot be.

        Raises DataMissing if the data are too small for the run's sequences, UserError (bad_config)
        if the run's count of samples is not that of its epochs.
        """
        self._packed = packed
        self._mend = mend
        self._mending = threading.Lock()
        self._run = run
        self._micro_batches_per_round = run.inner_steps * run.micro_batches_per_step
        self.size = _size(packed, source, run.data, run.sequence_tokens)
        if run.data.samples_total != run.data.epochs * self.samples_per_epoch:
            raise UserError(
                f"{run.data.epochs} epochs are {run.data.epochs * self.samples_per_epoch} samples, "
                f"not {run.data.samples_total}",
                code="bad_config",
                exit_code=78,
                hint="data.samples_total is measured when a run is made",
            )
        self._stride = 1
        if source.samples_max:  # N samples of a larger corpus: spread over all of it
            self._stride = _sequences(packed.train, run.sequence_tokens) // source.samples_max
        self._held_out_order = Permutation(
            _sequences(packed.held_out, run.sequence_tokens), seed=0, purpose="held_out"
        )

    @property
    def content_hash(self) -> str:
        return self._packed.content_hash

    @property
    def tokens_total(self) -> int:
        return self.size.tokens_total

    @property
    def samples_per_epoch(self) -> int:
        return self.size.samples_per_epoch

    @property
    def held_out_micro_batches(self) -> int:
        return self._run.shape.held_out_micro_batches

    def samples(self, micro_batch: MicroBatchId) -> NDArray[Any]:
        """Token ids, shape (samples, sequence_tokens + 1), of the tokeniser's unsigned type.

        Raises ValueError for a micro-batch that the run does not have, DataMissing where the tokens
        are not what was written and cannot be made again.
        """
        packed = self._packed
        try:
            return self._samples(micro_batch)
        except Corrupt as error:
            with self._mending:
                if self._packed is packed:  # else another thread has met it, too
                    self._packed = self._mend(error)
            return self._samples(micro_batch)

    def _samples(self, micro_batch: MicroBatchId) -> NDArray[Any]:
        if micro_batch.held_out:
            numbers = self._rows(micro_batch.index, self._run.data.held_out_sequences, micro_batch)
            return self._read(self._packed.held_out, self._held_out_order(numbers))
        first = micro_batch.round * self._micro_batches_per_round
        numbers = self._rows(first + micro_batch.index, self._run.data.samples_total, micro_batch)
        return self._read(self._packed.train, self._places(numbers) * self._stride)

    def _rows(self, number: int, end: int, micro_batch: MicroBatchId) -> NDArray[np.int64]:
        """Running numbers of a micro-batch's samples, cut at `end` (0: endless)."""
        first = number * self._run.micro_batch_samples
        last = first + self._run.micro_batch_samples
        if end:
            last = min(last, end)
        if first >= last or micro_batch.round < 0 or micro_batch.index < 0:
            raise ValueError(f"the run has no micro-batch {micro_batch}")
        return np.arange(first, last, dtype=np.int64)

    def _places(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in the training file the samples with these running numbers stand."""
        epochs, positions = np.divmod(numbers, self.samples_per_epoch)
        places = np.empty_like(positions)
        for epoch in np.unique(epochs):
            order = Permutation(self.samples_per_epoch, seed=self._run.seed, epoch=int(epoch))
            places[epochs == epoch] = order(positions[epochs == epoch])
        return places

    def _read(self, tokens: TokenPart, places: NDArray[np.int64]) -> NDArray[Any]:
        length = self._run.sequence_tokens
        return np.stack([tokens.read(int(place) * length, length + 1) for place in places])


def open_corpus(
    run: RunConfig, cache_dir: Path, *, source: str = "", tell: Tell | None = None
) -> Corpus:
    """The run's data on this machine, packed into the cache if they are not there yet.

    source: where this machine keeps them, if not where the run says. The content must be the same.

    Raises DataMissing (code data_missing) if they are not here, unreadable or not the run's;
    UserError (bad_config) for a source or tokeniser that cannot be used; StoreError for the cache.
    """
    wanted = parse_source(run.data.source)
    found = parse_source(source) if source else wanted

    def opened() -> Packed:
        return _opened(found, run.data, run.sequence_tokens, cache_dir, tell)

    packed = opened()
    if packed.index.vocab_size > run.model.vocab_size:
        raise UserError(
            f"the tokeniser has {packed.index.vocab_size} tokens, the model {run.model.vocab_size}",
            code="bad_config",
            exit_code=EXIT_BAD_CONFIG,
            hint=f"set model.vocab_size to {packed.index.vocab_size}",
        )

    def mended(error: Corrupt) -> Packed:
        if found.folder is not None:
            hint = "get the folder again, or write it anew with `swarmd data tokenize`"
            raise DataMissing(str(error), path=str(error.path), hint=hint) from None
        shutil.rmtree(packed.folder, ignore_errors=True)
        return opened()

    return Corpus(packed, wanted, run, mended)


def measure_corpus(
    data: DataConfig, sequence_tokens: int, cache_dir: Path, *, tell: Tell | None = None
) -> CorpusSize:
    """Pack the data for a new run and say what they are. Raises as `open_corpus` does."""
    source = parse_source(data.source)
    packed = _opened(source, data, sequence_tokens, cache_dir, tell)
    return _size(packed, source, data, sequence_tokens)


def tokeniser_name(source: str, given: str | None, cache_dir: Path) -> str:
    """How a run calls the tokeniser that a person named: `bytes` or the hash of its file, which is
    kept in the cache. None given: that of ready-made tokens, else bytes.

    Raises UserError (bad_config), DataMissing.
    """
    folder = parse_source(source).folder if source else None
    if given is None and folder is not None:
        return _open_tokens(folder).index.tokeniser
    return tokeniser_of(given or "bytes", cache_dir).name


def _opened(
    source: Source, data: DataConfig, sequence_tokens: int, cache_dir: Path, tell: Tell | None
) -> Packed:
    if source.folder is not None:
        return _opened_tokens(source.folder, data)
    recipe = _recipe(data, sequence_tokens)
    tokeniser = tokeniser_named(data.tokeniser, cache_dir)
    return pack(source, tokeniser, cache_dir, recipe, content_hash=data.content_hash, tell=tell)


def packed_folder(data: DataConfig, sequence_tokens: int, cache_dir: Path) -> Path:
    """Where the cache holds a run's data once they are packed, whether they are there or not."""
    recipe = _recipe(data, sequence_tokens)
    return folder_of(data.content_hash, data.tokeniser, recipe, cache_dir)


def _recipe(data: DataConfig, sequence_tokens: int) -> Recipe:
    return Recipe(
        held_out_share=data.held_out_share,
        held_out_tokens_min=data.held_out_sequences * sequence_tokens + 1,
    )


def _opened_tokens(folder: Path, data: DataConfig) -> Packed:
    """A folder that was made beforehand, if it is the run's."""
    packed = _open_tokens(folder)
    if data.tokeniser != packed.index.tokeniser:
        raise UserError(
            f"{folder} was made with the tokeniser {packed.index.tokeniser}, "
            f"the run's is {data.tokeniser}",
            code="bad_config",
            exit_code=EXIT_BAD_CONFIG,
            hint=f'set data.tokeniser = "{packed.index.tokeniser}"',
        )
    if data.content_hash not in ("", packed.content_hash):
        raise DataMissing(
            f"{folder} has other tokens than the run: {packed.content_hash}, "
            f"not {data.content_hash}",
            path=str(folder),
            hint="the folder was written anew since the run was made, or is another one",
        )
    return packed


def _open_tokens(folder: Path) -> Packed:
    """Its root is the content hash."""
    try:
        packed = open_folder(folder)
    except FileNotFoundError:
        raise DataMissing(
            f"there are no tokens in {folder}",
            path=str(folder),
            hint="`swarmd data tokenize SOURCE DIR` writes such a folder",
        ) from None
    except Corrupt as error:
        raise DataMissing(str(error), path=str(error.path)) from None
    return replace(packed, content_hash=packed.index.root)


def _sequences(tokens: TokenPart, sequence_tokens: int) -> int:
    return max(0, (len(tokens) - 1) // sequence_tokens)


def _size(packed: Packed, source: Source, data: DataConfig, sequence_tokens: int) -> CorpusSize:
    train = _sequences(packed.train, sequence_tokens)
    held_out = _sequences(packed.held_out, sequence_tokens)
    if train < max(1, source.samples_max) or held_out < data.held_out_sequences:
        raise DataMissing(
            f"{source.spec} is too small: {packed.index.documents} documents give {train} samples "
            f"of {sequence_tokens} tokens to train on and {held_out} to hold out; the run wants "
            f"{max(1, source.samples_max)} and {data.held_out_sequences}",
            path=source.spec,
            hint="give more text, or lower run.sequence_tokens or data.held_out_sequences",
        )
    return CorpusSize(
        content_hash=packed.content_hash,
        vocab_size=packed.index.vocab_size,
        documents=packed.index.documents,
        held_out_documents=packed.index.held_out_documents,
        tokens_total=len(packed.train) + len(packed.held_out),
        samples_per_epoch=source.samples_max or train,
        held_out_sequences=held_out,
    )
