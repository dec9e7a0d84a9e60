"""A gigabyte of text to tokens, and how soon a peer that comes back reads on.

    python tests/data_at_scale.py [--megabytes 1000] [--tokenizer FILE] [--folder DIR] [--seed 1]

Makes so much text in a temporary folder (in DIR, if given), has `swarmd data tokenize` tokenise it,
and tells the processor seconds of that process, its start among them, and its largest resident
size. Then five processes, one after the other, open the tokens as a peer does that resumes, each at
a random micro-batch, and tell the seconds until they have its samples. Without FILE bytes are
tokens.

The text is made-up words as frequent as words are: new ones never end, ten megabytes have some
110,000. After the first 64 MB what was made is repeated, each file with a first line of its own: a
tokeniser that remembers words should be given no more. `--words FILE` writes 8 MB of such text and
ends; `swarmd data train-tokenizer` can learn from that.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import numpy as np
from corpus_helpers import data_run

from swarmd.data.corpus import open_corpus
from swarmd.data.token_folder import open_folder
from swarmd.protocols.ids import MicroBatchId

WORDS = 2_000_000
RARE_FROM = 8_000
"""Up to this rank a word is as frequent as Zipf's law has it, and rarer from there on."""
DISTINCT_BYTES = 64_000_000
FILE_BYTES = 2_000_000
SEQUENCE_TOKENS = 2_048
POSITIONS = 5


# --------------------------------------------------------------------------------------- the text


def words(rng: np.random.Generator) -> list[str]:
    """Of one to three syllables, all different, the short ones first."""
    syllables = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "r", "s")]
    rng.shuffle(syllables)
    made = chain.from_iterable(product(syllables, repeat=count) for count in (1, 2, 3))
    return ["".join(parts) for parts in islice(made, WORDS)]


def texts(seed: int) -> Iterator[bytes]:
    """Files, all different, of lines of some 12 words."""
    rng = np.random.default_rng(seed)
    known = np.array(words(rng), dtype=object)
    rank = np.arange(WORDS)
    often = np.cumsum(1.0 / (rank + 2.7) / (1.0 + rank / RARE_FROM) ** 0.8)
    often /= often[-1]
    while True:
        drawn = known[np.searchsorted(often, rng.random(FILE_BYTES // 4))].tolist()
        lines = [" ".join(drawn[at : at + 12]) + "." for at in range(0, len(drawn), 12)]
        yield "\n".join(lines).encode()[:FILE_BYTES]


def write_texts(folder: Path, size_bytes: int, seed: int) -> None:
    distinct: list[bytes] = []
    fresh = texts(seed)
    for number in range(-(-size_bytes // FILE_BYTES)):
        if len(distinct) * FILE_BYTES < DISTINCT_BYTES:
            distinct.append(next(fresh))
        body = f"file {number}\n".encode() + distinct[number % len(distinct)]
        (folder / f"{number:05d}.txt").write_bytes(body)


# ----------------------------------------------------------------------------------- what is asked


def tokenise(texts_folder: Path, tokens: Path, tokeniser: str, home: Path) -> dict[str, Any]:
    """The command that people give. The system counts what its process used."""
    command = [sys.executable, "-m", "swarmd", "--home", str(home), "data", "tokenize"]
    command += [f"text:{texts_folder}/*.txt", str(tokens), "--tokenizer", tokeniser, "--json"]
    began_s = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, said
    told = json.loads(said.splitlines()[-1])["data"]
    megabytes, cpu_s = told["text_bytes"] / 1e6, used.ru_utime + used.ru_stime
    return {
        "megabytes": round(megabytes),
        "tokens": told["train_tokens"] + told["held_out_tokens"],
        "cpu_s": round(cpu_s, 1),
        "mb_per_cpu_s": round(megabytes / cpu_s, 2),
        "wall_s": round(time.monotonic() - began_s, 1),
        "rss_mb_max": round(used.ru_maxrss / 1e3),  # the kernel counts in KiB
        "load": round(os.getloadavg()[0], 1),
    }


def resume(tokens: Path, number: int) -> dict[str, float]:
    """In this process, which has read nothing yet: from the folder to a micro-batch's samples."""
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    index = open_folder(tokens).index
    run = data_run(
        f"tokens:{tokens}",
        model=replace(data_run("builtin:python").model, vocab_size=index.vocab_size),
        tokeniser=index.tokeniser,
        sequence_tokens=SEQUENCE_TOKENS,
        micro_batch_tokens=8 * SEQUENCE_TOKENS,
        batch_tokens=256 * SEQUENCE_TOKENS,
    )
    with tempfile.TemporaryDirectory() as cache:
        samples = open_corpus(run, Path(cache)).samples(MicroBatchId(0, number))
        assert samples.shape == (8, SEQUENCE_TOKENS + 1)
        return {
            "wall_s": round(time.monotonic() - began_s, 3),
            "cpu_s": round(time.process_time() - began_cpu_s, 3),
        }


def resumed(tokens: Path, seed: int) -> list[dict[str, float]]:
    rng = random.Random(seed)
    end = len(open_folder(tokens).train) // (8 * SEQUENCE_TOKENS)
    found = []
    for number in sorted(rng.sample(range(end), POSITIONS)):
        command = [sys.executable, __file__, "--resume", str(tokens), str(number)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append({"micro_batch": number, **json.loads(said)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1_000)
    parser.add_argument("--tokenizer", default="bytes")
    parser.add_argument("--folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--words", type=Path)
    parser.add_argument("--resume", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.resume:
        print(json.dumps(resume(Path(asked.resume[0]), int(asked.resume[1]))))
        return
    if asked.words:
        fresh = texts(asked.seed)
        asked.words.write_bytes(b"\n".join(next(fresh) for _ in range(4)))
        return
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        (folder / "texts").mkdir()
        make = multiprocessing.get_context("spawn").Process(
            target=write_texts, args=(folder / "texts", asked.megabytes * 10**6, asked.seed)
        )
        make.start()  # not here: the system would count its memory for those that we start later
        make.join()
        assert make.exitcode == 0
        tokens = folder / "tokens"
        print(tokenise(folder / "texts", tokens, asked.tokenizer, folder / "home"), flush=True)
        for one in resumed(tokens, asked.seed):
            print(one, flush=True)


if __name__ == "__main__":
    main()
