"""How long a device waits for its samples, with and without reading ahead.

    python tests/read_ahead_bench.py TOKENS [milliseconds that a micro-batch computes]

TOKENS: a folder that `swarmd data tokenize` wrote with the tokeniser `bytes`. A head of three
reads sixty micro-batches of 8 samples of 512 tokens, and multiplies matrices after each.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from corpus_helpers import data_run

from swarmd.data.corpus import open_corpus
from swarmd.data.read_ahead import ReadAhead
from swarmd.protocols.ids import MicroBatchId

MICRO_BATCHES, HEADS = 60, 3


def waited_ms(folder: str, compute_s: float, is_ahead: bool) -> float:
    """A micro-batch, in the mean."""
    run = data_run(
        f"tokens:{folder}", sequence_tokens=512, micro_batch_tokens=4_096, batch_tokens=32_768
    )
    per_round = run.inner_steps * run.micro_batches_per_step
    matrix = np.random.default_rng(1).random((500, 500), dtype=np.float32)
    with tempfile.TemporaryDirectory() as cache:
        corpus = open_corpus(run, Path(cache))
        samples = ReadAhead(corpus, per_round).samples if is_ahead else corpus.samples
        waited_s = 0.0
        for number in range(MICRO_BATCHES):
            began_s = time.perf_counter()
            samples(MicroBatchId(*divmod(HEADS * number + 1, per_round)))
            ended_s = time.perf_counter()
            waited_s += ended_s - began_s
            while time.perf_counter() < ended_s + compute_s:
                matrix @ matrix
    return 1e3 * waited_s / MICRO_BATCHES


if __name__ == "__main__":
    compute_s = float(sys.argv[2] if len(sys.argv) > 2 else 50) / 1e3
    for name, is_ahead in (("read when wanted", False), ("read ahead", True)):
        print(f"{name}: {waited_ms(sys.argv[1], compute_s, is_ahead):.2f} ms a micro-batch")
