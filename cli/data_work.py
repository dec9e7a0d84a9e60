"""`swarmd data tokenize` and `train-tokenizer`: the work behind the words.

Apart from the commands because it loads what `--help` must not.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swarmd.data.documents import DataMissing
from swarmd.data.packing import aside, put_in_place, reporting_store_errors
from swarmd.data.sources import parse_source
from swarmd.data.token_folder import Index
from swarmd.data.token_writing import Progress, Recipe, write_tokens
from swarmd.data.tokeniser import tokeniser_of
from swarmd.data.tokeniser_training import VOCAB_MAX, VOCAB_MIN, Trained, train_tokeniser
from swarmd.errors import UserError


def tokenize(
    source: str,
    folder: Path,
    tokeniser: str,
    cache: Path,
    recipe: Recipe,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Write a folder of tokens. Returns what `swarmd.done` says of it."""
    _refuse_what_is_there(folder)
    found = parse_source(source)
    if found.folder is not None:
        raise UserError(
            f"{source} names tokens, and only texts can be tokenised",
            code="usage",
            exit_code=2,
            hint='a run takes such a folder as it is: data = "tokens:DIR"',
        )
    chosen = tokeniser_of(tokeniser, cache)
    folder = folder.absolute()
    last: list[Progress] = []

    def tell(now: Progress) -> None:
        last[:] = [now]
        say(str(now))

    with reporting_store_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with aside(folder.parent) as made:
            index = write_tokens(found, chosen, made, recipe, tell)
            if not index.train_tokens:
                raise _nothing_left(source, index, recipe)
            os.chmod(made, 0o755)
            _refuse_what_is_there(folder)
            put_in_place(made, folder)
    return {
        "source": f"tokens:{folder}",
        "content_hash": index.root,
        "tokeniser": index.tokeniser,
        "vocab_size": index.vocab_size,
        "documents": index.documents,
        "held_out_documents": index.held_out_documents,
        "mended_documents": index.mended_documents,
        "first_mended": last[0].first_mended or None,
        "empty_texts": index.empty_texts,
        "train_tokens": index.train_tokens,
        "held_out_tokens": index.held_out_tokens,
        "text_bytes": last[0].text_bytes,
        "seconds": round(last[0].seconds, 3),
    }


def train(
    source: str, file: Path, vocab_size: int, text_bytes_max: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Write a tokenizer.json. Returns what `swarmd.done` says of it."""
    if file.exists():
        raise _exists(file)
    if not VOCAB_MIN <= vocab_size <= VOCAB_MAX:
        raise UserError(
            f"--vocab-size is in {VOCAB_MIN}..{VOCAB_MAX}: the bytes, the end of a text, and more",
            code="usage",
            exit_code=2,
        )
    with _ended_by_signals():
        trained: Trained = train_tokeniser(parse_source(source), vocab_size, text_bytes_max, say)
    with reporting_store_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        unfinished.write_bytes(trained.body)
        unfinished.replace(file)
    return {
        "vocab_size": trained.vocab_size,
        "documents": trained.documents,
        "text_bytes": trained.text_bytes,
    }


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """By the system, at once: the library works for a minute without a look at Python, whose
    handlers would have to wait for it. Nothing is on the disk yet that would have to go."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _nothing_left(source: str, index: Index, recipe: Recipe) -> DataMissing:
    return DataMissing(
        f"{source} is too small: its {index.documents} documents are {index.held_out_tokens} "
        "tokens, all of them held out, and none is left to train on",
        path=source,
        hint=f"give more text, or hold out fewer than {recipe.held_out_tokens_min} tokens "
        "(--held-out-tokens)",
    )


def _refuse_what_is_there(folder: Path) -> None:
    """Before the work, and once more after it: somebody else may have been faster."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise _exists(folder)


def _exists(path: Path) -> UserError:
    return UserError(
        f"{path} is there already",
        code="usage",
        exit_code=2,
        hint="choose another place, or remove it first; nothing is overwritten",
    )
