"""The corpus: the same samples on every peer, each once an epoch, held-out text kept out."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from corpus_helpers import data_run, write_texts

from swarmd.data.corpus import Corpus, measure_corpus, open_corpus
from swarmd.data.documents import DataMissing
from swarmd.data.tokeniser import BytesTokeniser
from swarmd.errors import StoreError, UserError
from swarmd.protocols.ids import MicroBatchId
from swarmd.run_config import RunConfig

REPOSITORY = Path(__file__).parents[2]


def micro_batches(run: RunConfig) -> list[MicroBatchId]:
    shape = run.shape
    return [
        MicroBatchId(number, index)
        for number in range(shape.rounds)
        for index in range(shape.micro_batches_of_round(number))
    ]


def all_samples(corpus: Corpus, run: RunConfig) -> np.ndarray:
    return np.concatenate([corpus.samples(one) for one in micro_batches(run)])


def one_epoch_run(source: str, cache: Path, epochs: int = 1) -> RunConfig:
    """A run of exactly `epochs` epochs, as `run create` makes it."""
    run = data_run(source)
    size = measure_corpus(run.data, run.sequence_tokens, cache)
    total = epochs * size.samples_per_epoch
    return data_run(
        source,
        content_hash=size.content_hash,
        epochs=epochs,
        samples_total=total,
        total_steps=-(-total // run.batch_samples),
    )


def packed_folder(cache: Path) -> Path:
    (folder,) = [path for path in (cache / "data").iterdir() if path.is_dir()]
    return folder


def test_samples_are_windows_with_one_more_token_than_a_sequence(tmp_path):
    run = data_run(write_texts(tmp_path / "in"))
    samples = open_corpus(run, tmp_path).samples(MicroBatchId(1, 3))
    assert samples.shape == (2, 17)
    assert samples.dtype == np.uint8
    assert type(samples) is np.ndarray


def test_an_epoch_reads_every_training_token_window_once(tmp_path):
    run = one_epoch_run(write_texts(tmp_path / "in"), tmp_path)
    corpus = open_corpus(run, tmp_path)
    samples = all_samples(corpus, run)
    tokens = np.fromfile(packed_folder(tmp_path) / "train-00000.bin", dtype=np.uint8)
    windows = [tokens[start : start + 17].tobytes() for start in range(0, len(tokens) - 16, 16)]
    assert corpus.samples_per_epoch == len(windows)
    assert sorted(sample.tobytes() for sample in samples) == sorted(windows)


def test_every_epoch_reads_the_same_samples_in_another_order(tmp_path):
    run = one_epoch_run(write_texts(tmp_path / "in"), tmp_path, epochs=3)
    corpus = open_corpus(run, tmp_path)
    samples = [sample.tobytes() for sample in all_samples(corpus, run)]
    size = corpus.samples_per_epoch
    epochs = [samples[start : start + size] for start in range(0, 3 * size, size)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_last_micro_batch_of_the_data_is_short_and_none_follows(tmp_path):
    source = write_texts(tmp_path / "in")
    run = one_epoch_run(source, tmp_path)
    if run.data.samples_total % 2 == 0:  # two samples a micro-batch: make the count odd
        source = f"builtin:python:{run.data.samples_total + 1}"
        run = one_epoch_run(source, tmp_path)
    corpus = open_corpus(run, tmp_path)
    last = micro_batches(run)[-1]
    assert corpus.samples(last).shape == (1, 17)
    assert run.shape.samples_of(last) == 1
    with pytest.raises(ValueError, match="no micro-batch"):
        corpus.samples(MicroBatchId(last.round, last.index + 1))


def test_no_sample_holds_text_of_a_held_out_document(tmp_path):
    run = one_epoch_run(write_texts(tmp_path / "in"), tmp_path)
    corpus = open_corpus(run, tmp_path)
    train = b"".join(BytesTokeniser().decode(sample) for sample in all_samples(corpus, run))
    held_out = (packed_folder(tmp_path) / "held_out-00000.bin").read_bytes()
    held_out_lines = {line for line in held_out.replace(b"\0", b"").splitlines() if line}
    assert held_out_lines
    assert not [line for line in held_out_lines if line in train]
    looked_at = b"".join(
        corpus.samples(MicroBatchId(0, index, held_out=True)).tobytes() for index in range(2)
    )
    assert looked_at
    assert all(window in held_out for window in [looked_at[:17], looked_at[17:34]])


def test_held_out_sequences_are_the_same_in_every_round_and_the_last_may_be_short(tmp_path):
    run = data_run(write_texts(tmp_path / "in"))
    corpus = open_corpus(run, tmp_path)
    assert corpus.held_out_micro_batches == run.shape.held_out_micro_batches == 2
    first = [corpus.samples(MicroBatchId(0, index, True)) for index in range(2)]
    later = [corpus.samples(MicroBatchId(3, index, True)) for index in range(2)]
    assert [len(samples) for samples in first] == [2, 1]
    assert all((one == other).all() for one, other in zip(first, later, strict=True))
    with pytest.raises(ValueError, match="no micro-batch"):
        corpus.samples(MicroBatchId(0, 2, True))


def test_about_five_percent_are_held_out(tmp_path):
    corpus = open_corpus(data_run(write_texts(tmp_path / "in", count=2_000, lines=2)), tmp_path)
    assert corpus.size.documents == 2_000
    assert 60 < corpus.size.held_out_documents < 145  # four standard deviations around 100


def test_few_documents_still_give_what_is_looked_at(tmp_path):
    run = data_run(write_texts(tmp_path / "in", count=3), held_out_share=1e-9)
    size = open_corpus(run, tmp_path).size
    assert size.held_out_documents == 1
    assert size.held_out_sequences >= 3


def test_builtin_n_trains_on_n_samples_spread_over_the_library(tmp_path):
    run = one_epoch_run("builtin:python:100", tmp_path)
    corpus = open_corpus(run, tmp_path)
    assert corpus.samples_per_epoch == 100
    samples = {sample.tobytes() for sample in all_samples(corpus, run)}
    tokens = np.fromfile(packed_folder(tmp_path) / "train-00000.bin", dtype=np.uint8)
    stride = ((len(tokens) - 1) // 16 // 100) * 16
    assert samples == {tokens[n * stride : n * stride + 17].tobytes() for n in range(100)}


@pytest.mark.process
def test_samples_do_not_depend_on_the_hash_seed(tmp_path):
    source = write_texts(tmp_path / "in")
    program = (
        "import sys, hashlib; from pathlib import Path; from corpus_helpers import data_run;"
        "from swarmd.data.corpus import open_corpus; from swarmd.protocols.ids import MicroBatchId;"
        "corpus = open_corpus(data_run(sys.argv[1]), Path(sys.argv[2]));"
        "ids = [MicroBatchId(2, n) for n in range(20)] + [MicroBatchId(2, 0, True)];"
        "body = b''.join(corpus.samples(one).tobytes() for one in ids);"
        "print(corpus.content_hash, hashlib.blake2b(body).hexdigest(), 'torch' in sys.modules)"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program, source, str(tmp_path / f"cache{seed}")],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}",
            },
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "99")
    }
    assert len(printed) == 1
    assert printed.pop().split()[2] == "False"


# ------------------------------------------------------------------------------- data not the run's


def test_other_content_is_refused_with_both_hashes(tmp_path):
    source = write_texts(tmp_path / "in")
    size = measure_corpus(data_run(source).data, 16, tmp_path / "one")
    (tmp_path / "in" / "007.txt").write_text("altered\n")
    with pytest.raises(DataMissing) as caught:
        open_corpus(data_run(source, content_hash=size.content_hash), tmp_path / "other")
    assert caught.value.code == "data_missing"
    assert size.content_hash in str(caught.value)
    assert not [path for path in (tmp_path / "other").rglob("*") if path.suffix == ".bin"]


def test_a_packed_corpus_outlives_its_source(tmp_path):
    source = write_texts(tmp_path / "in")
    size = measure_corpus(data_run(source).data, 16, tmp_path)
    run = data_run(source, content_hash=size.content_hash)
    before = open_corpus(run, tmp_path).samples(MicroBatchId(0, 0))
    shutil.rmtree(tmp_path / "in")
    assert (open_corpus(run, tmp_path).samples(MicroBatchId(0, 0)) == before).all()


def test_my_copy_may_lie_elsewhere(tmp_path):
    there = write_texts(tmp_path / "there")
    size = measure_corpus(data_run(there).data, 16, tmp_path / "author")
    run = data_run("text:/nowhere/*.txt", content_hash=size.content_hash)
    assert open_corpus(run, tmp_path / "me", source=there).content_hash == size.content_hash
    with pytest.raises(DataMissing, match="no file matches"):
        open_corpus(run, tmp_path / "other")


def test_data_too_small_are_refused_with_numbers(tmp_path):
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(DataMissing, match="too small: 1 documents give 0 samples"):
        open_corpus(data_run(f"text:{tmp_path}/a.txt"), tmp_path)
    with pytest.raises(DataMissing, match="wants 10000000000"):
        open_corpus(data_run("builtin:python:10000000000"), tmp_path)


def test_files_without_text_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(DataMissing, match="has no text"):
        open_corpus(data_run(f"text:{tmp_path}/a.txt"), tmp_path)


def test_a_count_of_samples_that_is_not_the_epochs_is_refused(tmp_path):
    run = one_epoch_run(write_texts(tmp_path / "in"), tmp_path)
    wrong = dataclasses.replace(run.data, samples_total=run.data.samples_total - 1)
    with pytest.raises(UserError, match="samples, not"):
        open_corpus(dataclasses.replace(run, data=wrong), tmp_path)


def test_an_unknown_tokeniser_is_refused(tmp_path):
    with pytest.raises(UserError, match="unknown tokeniser"):
        open_corpus(data_run(write_texts(tmp_path / "in"), tokeniser="words"), tmp_path)


# -------------------------------------------------------------------------------------- the cache


@pytest.mark.parametrize(
    "name", ["train-00000.bin", "held_out-00000.bin", "hashes.bin", "index.json"]
)
@pytest.mark.parametrize("damage", ["altered", "cut", "emptied", "removed"])
def test_a_damaged_cache_is_noticed_and_made_again(tmp_path, name, damage):
    source = write_texts(tmp_path / "in")
    size = measure_corpus(data_run(source).data, 16, tmp_path)
    run = data_run(source, content_hash=size.content_hash)
    before = open_corpus(run, tmp_path).samples(MicroBatchId(1, 1)).copy()
    path = packed_folder(tmp_path) / name
    body = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        altered = body[:-9] + bytes([body[-9] ^ 1]) + body[-8:]
        path.write_bytes({"altered": altered, "cut": body[:-1], "emptied": b""}[damage])
    corpus = open_corpus(run, tmp_path)
    corpus.samples(MicroBatchId(0, 0, held_out=True))
    assert (corpus.samples(MicroBatchId(1, 1)) == before).all()
    assert path.read_bytes() == body


def test_tokens_altered_while_a_run_reads_them_are_made_again(tmp_path):
    run = data_run(write_texts(tmp_path / "in"))
    corpus = open_corpus(run, tmp_path)
    before = corpus.samples(MicroBatchId(1, 1)).copy()
    path = packed_folder(tmp_path) / "train-00000.bin"
    body = path.read_bytes()
    path.write_bytes(body[::-1])
    assert (corpus.samples(MicroBatchId(1, 1)) == before).all()
    assert path.read_bytes() == body


def test_a_sound_cache_is_not_written_again(tmp_path):
    source = write_texts(tmp_path / "in")
    run = data_run(source)
    open_corpus(run, tmp_path)
    written = packed_folder(tmp_path).stat()
    open_corpus(run, tmp_path)
    assert packed_folder(tmp_path).stat().st_ino == written.st_ino
    assert packed_folder(tmp_path).stat().st_mtime_ns == written.st_mtime_ns


def test_what_a_killed_packer_left_is_swept_away(tmp_path):
    left = tmp_path / "data" / ".aside-killed"
    left.mkdir(parents=True)
    (left / "train-00000.bin").write_bytes(b"half")
    open_corpus(data_run(write_texts(tmp_path / "in")), tmp_path)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == sorted(
        [packed_folder(tmp_path).name, "lock"]
    )


def test_a_failed_packing_leaves_no_partial_file(tmp_path):
    run = data_run(write_texts(tmp_path / "in"))
    corpus = open_corpus(run, tmp_path)
    index = json.loads((packed_folder(tmp_path) / "index.json").read_text())
    assert index["content_hash"] == corpus.content_hash
    (tmp_path / "in" / "zz.txt.gz").write_bytes(b"\x1f\x8b\x08 cut")
    with pytest.raises(DataMissing):
        open_corpus(data_run(f"text:{tmp_path}/in/*"), tmp_path)
    assert not list((tmp_path / "data").glob(".aside-*"))


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    source = write_texts(tmp_path / "in")
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(StoreError) as caught:
        open_corpus(data_run(source), tmp_path / "cache")
    assert caught.value.path.is_relative_to(tmp_path / "cache")
