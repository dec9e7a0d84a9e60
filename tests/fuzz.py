"""Feeds readers with what nobody would send, for as long as wanted. Not part of the test suite.

    python tests/fuzz.py INPUTS [SEED]            mutations of good inputs, no tool needed
    python tests/fuzz.py --atheris -runs=INPUTS   coverage-guided; `atheris` must be installed

Ends with an error and the input, in hex, if a reader lets out what it must not; such inputs are
kept in tests/unit/test_fuzz.py. A run is written down in docs/lab.md.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).parent)]


def run_mutations(inputs: int, seed: int) -> None:
    from what_peers_send import examples, feed, mutated

    rng, begun_s = random.Random(seed), time.monotonic()
    good: list[bytes] = []
    for number in range(inputs):
        if number % 1000 == 0:
            good = list(examples(rng))
        data = mutated(rng.choice(good), rng)
        try:
            feed(data)
        except BaseException:
            print(f"seed {seed}, input {number}: {data.hex()}")
            raise
    print(f"{inputs} inputs, seed {seed}, {time.monotonic() - begun_s:.0f} s: nothing found")


def run_atheris(arguments: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["swarmd"]):
        import what_peers_send

    corpus = Path(tempfile.mkdtemp(prefix="swarmd-fuzz-"))
    for seed in range(5):
        for number, data in enumerate(what_peers_send.examples(random.Random(seed))):
            (corpus / f"{seed}-{number}").write_bytes(data)
    atheris.Setup([sys.argv[0], *arguments, str(corpus)], what_peers_send.feed)
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1] == "--atheris":
        run_atheris(sys.argv[2:])
    else:
        run_mutations(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 7)
