"""Texts to tokens, by this process or by several at once.

Byte-pair encoding takes a core some seconds for ten megabytes, and a corpus has thousands of those.
Batches go out to processes, not to threads, since looking words up is work for the interpreter.
They come back in the order in which they went, so the tokens are the same whatever the number. No
more than two batches a process are under way: memory does not grow with the source.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from numpy.typing import NDArray

from swarmd.data.documents import Document
from swarmd.data.tokeniser import JsonTokeniser, Tokeniser
from swarmd.errors import UserError

JOBS_MAX = 256
BATCHES_EACH = 2
"""Under way, for each process: one that it works on and one that waits."""
PARENT_EVERY_S = 1.0

Encoded = tuple[list[Document], list[NDArray[Any]]]


def encoded(
    batches: Iterable[list[Document]], tokeniser: Tokeniser, jobs: int
) -> Iterator[Encoded]:
    """Each batch with its ids. jobs: processes; with 1, or where bytes are tokens, ours alone."""
    if jobs == 1 or not tokeniser.body:
        for batch in batches:
            yield batch, tokeniser.encode([document.content for document in batch])
        return
    pool = ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(tokeniser.body, os.getpid()),
    )
    try:
        yield from _in_order(batches, pool, BATCHES_EACH * jobs)
    except BrokenProcessPool:
        raise UserError(
            "a process that tokenised has ended by itself",
            code="worker_died",
            exit_code=1,
            hint="the machine may be out of memory; fewer --jobs need less",
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_order(
    batches: Iterable[list[Document]], pool: ProcessPoolExecutor, under_way_max: int
) -> Iterator[Encoded]:
    under_way: deque[tuple[list[Document], Future[list[NDArray[Any]]]]] = deque()
    for batch in batches:
        texts = [document.content for document in batch]
        under_way.append((batch, pool.submit(_encode, texts)))
        if len(under_way) == under_way_max:
            oldest, future = under_way.popleft()
            yield oldest, future.result()
    for oldest, future in under_way:
        yield oldest, future.result()


# -------------------------------------------------------------------------- in such a process

_tokeniser: Tokeniser


def _begin(body: bytes, parent: int) -> None:
    global _tokeniser
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who began us ends us
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _tokeniser = JsonTokeniser(body, "the tokeniser")
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """One that was killed can tell nobody to end."""
    while os.getppid() == parent:
        time.sleep(PARENT_EVERY_S)
    os._exit(1)


def _encode(texts: list[bytes]) -> list[NDArray[Any]]:
    return _tokeniser.encode(texts)
