"""Order and packing as numbers that must be equal everywhere: `python tests/data_vectors.py` prints
them. Needs numpy and msgpack only, so any interpreter will do; test_data_vectors.py has the values.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

from corpus_helpers import data_run, write_texts

from swarmd.data.corpus import open_corpus
from swarmd.protocols.ids import MicroBatchId

MICRO_BATCHES = (
    MicroBatchId(0, 0),
    MicroBatchId(3, 7),
    MicroBatchId(1 << 20, 3),
    MicroBatchId(0, 0, held_out=True),
)


def vectors() -> dict[str, str]:
    """What a small corpus with every kind of trouble in it gives."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = write_texts(folder / "in")
        odd = "ä\u20ac\U0001f600\n".encode() * 20_000 + b"\xff\x00end"
        (folder / "in" / "zz.txt").write_bytes(odd)
        corpus = open_corpus(data_run(source, seed=11), folder / "cache")
        found = {
            "content": corpus.content_hash,
            "tokens": str(corpus.tokens_total),
            "samples": str(corpus.samples_per_epoch),
            "held_out": str(corpus.size.held_out_sequences),
        }
        for one in MICRO_BATCHES:
            samples = corpus.samples(one).tobytes()
            found[str(one)] = hashlib.sha256(samples).hexdigest()[:16]
        return found


if __name__ == "__main__":
    print(json.dumps(vectors()))
