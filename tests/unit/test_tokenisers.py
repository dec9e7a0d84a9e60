"""Tokenisers from a file, and tokens made beforehand: named by hash, never quietly others."""

import dataclasses
import json
import multiprocessing
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from corpus_helpers import data_run, write_texts

from swarmd.data import token_writing
from swarmd.data.corpus import open_corpus
from swarmd.data.documents import DataMissing
from swarmd.data.encoding import encoded
from swarmd.data.packing import put_in_place
from swarmd.data.sources import parse_source
from swarmd.data.token_folder import BLOCK_BYTES, open_folder
from swarmd.data.token_writing import Progress, Recipe, write_tokens
from swarmd.data.tokeniser import (
    END_TOKENS,
    BytesTokeniser,
    JsonTokeniser,
    Tokeniser,
    tokeniser_named,
    tokeniser_of,
)
from swarmd.data.tokeniser_training import train_tokeniser
from swarmd.errors import Corrupt, UserError
from swarmd.protocols.ids import MicroBatchId
from swarmd.run_config import ModelConfig, RunConfig
from swarmd.run_file import make_run
from swarmd.tokeniser_files import keep

RECIPE = Recipe(held_out_share=0.05, held_out_tokens_min=49)


@pytest.fixture
def source(tmp_path) -> str:
    return write_texts(tmp_path / "in")


@pytest.fixture
def tokeniser(source) -> JsonTokeniser:
    return JsonTokeniser(train_tokeniser(parse_source(source), 300, 1 << 20).body, "trained")


def made(source: str, tokeniser: Tokeniser, folder: Path, recipe: Recipe = RECIPE) -> Path:
    folder.mkdir(parents=True)
    write_tokens(parse_source(source), tokeniser, folder, recipe)
    return folder


def json_run(source: str, tokeniser: Tokeniser, **changes: str) -> RunConfig:
    model = ModelConfig(vocab_size=300, width=16, layers=2, heads=2, kv_heads=1, ff_width=32)
    return data_run(source, tokeniser=tokeniser.name, model=model, **changes)


# -------------------------------------------------------------------------------------- tokenisers


def test_what_a_trained_tokeniser_encodes_it_decodes(tokeniser):
    texts = ["text 001 line 002 here\n", "never seen: ä€😀\t\n\n  x", "\ufffd"]
    encoded = tokeniser.encode([text.encode() for text in texts])
    assert [tokeniser.decode(ids).decode() for ids in encoded] == texts
    assert tokeniser.vocab_size == 300
    assert all(ids.dtype == np.uint16 for ids in encoded)
    assert len(encoded[0]) < len(texts[0]) / 2


def test_training_gives_the_same_file_again(source, tokeniser):
    assert train_tokeniser(parse_source(source), 300, 1 << 20).body == tokeniser.body


def test_training_reads_no_more_text_than_it_may(source):
    trained = train_tokeniser(parse_source(source), 300, 1_000)
    assert 0 < trained.text_bytes <= 1_000
    assert trained.documents * 276 == trained.text_bytes


def test_a_text_that_spells_the_end_of_a_text_does_not_end_it(tokeniser):
    (ids,) = tokeniser.encode([END_TOKENS[0].encode()])
    assert tokeniser.separator not in ids
    assert tokeniser.decode(ids).decode() == END_TOKENS[0]


def test_documents_are_separated_by_the_vocabularys_own_token(source, tokeniser, tmp_path):
    keep(tokeniser.body, tmp_path)
    run = json_run(source, tokeniser)
    packed = open_corpus(run, tmp_path)._packed
    ids = packed.train.read(0, len(packed.train))
    separators = packed.index.documents - packed.index.held_out_documents
    assert int((ids == tokeniser.separator).sum()) == separators
    assert tokeniser.decode(ids[:100]).startswith(b"text 0")


def test_a_tokeniser_is_found_by_the_hash_of_its_file_alone(tokeniser, tmp_path):
    with pytest.raises(DataMissing, match=tokeniser.name[:16]):
        tokeniser_named(tokeniser.name, tmp_path)
    kept = keep(tokeniser.body, tmp_path)
    assert tokeniser_named(tokeniser.name, tmp_path).encode([b"abc"])[0].size
    kept.write_bytes(tokeniser.body.replace(b"here", b"hree"))
    with pytest.raises(DataMissing):
        tokeniser_named(tokeniser.name, tmp_path)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no tokenizer.json"),
        (b"\xff", "no tokenizer.json"),
        (b'{"model": 3}', "no tokenizer.json"),
    ],
)
def test_a_file_that_is_no_tokeniser_is_a_user_error(tmp_path, body, said):
    (tmp_path / "t.json").write_bytes(body)
    with pytest.raises(UserError, match=said) as caught:
        tokeniser_of(str(tmp_path / "t.json"), tmp_path)
    assert caught.value.code == "bad_config"


def test_a_tokeniser_that_is_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="is a pipe") as caught:
        tokeniser_of(str(tmp_path / "pipe"), tmp_path)
    assert caught.value.exit_code == 78


def test_a_vocabulary_without_an_end_is_a_user_error(tokeniser, tmp_path):
    plain = json.loads(tokeniser.body)
    plain["added_tokens"] = []
    plain["model"]["vocab"] = {
        token: number
        for token, number in plain["model"]["vocab"].items()
        if token not in END_TOKENS
    }
    (tmp_path / "t.json").write_text(json.dumps(plain))
    with pytest.raises(UserError, match="no token that ends a text"):
        tokeniser_of(str(tmp_path / "t.json"), tmp_path)


def test_ids_with_gaps_need_the_room_of_the_largest(tokeniser, tmp_path):
    plain = json.loads(tokeniser.body)
    vocab = plain["model"]["vocab"]
    vocab[max(vocab, key=vocab.get)] = 100_000
    (tmp_path / "t.json").write_text(json.dumps(plain))
    found = tokeniser_of(str(tmp_path / "t.json"), tmp_path)
    assert found.vocab_size == 100_001
    assert np.dtype(found.dtype).itemsize == 4


def test_a_run_file_names_a_path_and_the_run_its_hash(source, tokeniser, tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(tokeniser.body)
    sections = {
        "run": {"name": "x", "preset": "tiny", "stages": 2, "data": source, "sequence_tokens": 16,
                "micro_batch_tokens": 32, "batch_tokens": 32},
        "model": {"vocab_size": 300},
        "data": {"tokeniser": str(path), "held_out_sequences": 3},
    }  # fmt: skip
    run = make_run(sections, cache_dir=tmp_path / "cache")
    assert run.data.tokeniser == tokeniser.name
    path.unlink()  # the cache has it now
    assert open_corpus(run, tmp_path / "cache").size.vocab_size == 300
    sections["model"]["vocab_size"] = 299
    sections["data"]["tokeniser"] = tokeniser.name
    with pytest.raises(ValueError, match="the tokeniser has 300 tokens"):
        make_run(sections, cache_dir=tmp_path / "cache")


# ------------------------------------------------------------------------- tokens made beforehand


def all_of(run: RunConfig, cache: Path) -> bytes:
    corpus = open_corpus(run, cache)
    numbers = [MicroBatchId(number, index) for number in range(4) for index in range(20)]
    return b"".join(corpus.samples(one).tobytes() for one in numbers)


def test_tokens_made_beforehand_give_the_samples_of_their_texts(source, tokeniser, tmp_path):
    for kind in (tokeniser, BytesTokeniser()):
        keep(kind.body, tmp_path)
        folder = made(source, kind, tmp_path / kind.name)
        texts = json_run(source, kind)
        ready = json_run(f"tokens:{folder}", kind)
        assert all_of(ready, tmp_path / "unused") == all_of(texts, tmp_path)
    assert not (tmp_path / "unused").exists()


def test_shards_of_any_size_hold_the_same_tokens(tmp_path):
    source = write_texts(tmp_path / "in", count=300, lines=400)
    one = made(source, BytesTokeniser(), tmp_path / "one")
    recipe = dataclasses.replace(RECIPE, shard_bytes=BLOCK_BYTES)
    many = made(source, BytesTokeniser(), tmp_path / "many", recipe)
    assert len(list(many.glob("train-*.bin"))) == 3
    whole, cut = open_folder(one).train, open_folder(many).train
    assert len(whole) == len(cut) > 2 * BLOCK_BYTES
    assert (whole.read(0, len(whole)) == cut.read(0, len(cut))).all()
    across = BLOCK_BYTES - 3
    assert (whole.read(across, 7) == cut.read(across, 7)).all()


def test_the_name_of_tokens_does_not_depend_on_where_the_texts_lay(source, tmp_path):
    other = write_texts(tmp_path / "elsewhere")
    one = open_folder(made(source, BytesTokeniser(), tmp_path / "one")).index
    two = open_folder(made(other, BytesTokeniser(), tmp_path / "two")).index
    assert one.root == two.root
    changed = write_texts(tmp_path / "changed", count=41)
    assert open_folder(made(changed, BytesTokeniser(), tmp_path / "3")).index.root != one.root


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_shard_that_changed_since_it_was_written_is_named(source, tmp_path, when):
    folder = made(source, BytesTokeniser(), tmp_path / "tokens")
    run = data_run(f"tokens:{folder}")
    shard = folder / "train-00000.bin"
    corpus = open_corpus(run, tmp_path)
    if when == "while":
        corpus.samples(MicroBatchId(0, 0))
    body = bytearray(shard.read_bytes())
    body[100] ^= 1
    shard.write_bytes(body)
    with pytest.raises(DataMissing) as caught:
        corpus.samples(MicroBatchId(0, 0))
    assert caught.value.path == str(shard)
    shard.write_bytes(body[:-1])
    with pytest.raises(DataMissing, match="bytes, not") as caught:
        corpus.samples(MicroBatchId(0, 0))
    with pytest.raises(DataMissing, match="bytes, not"):
        open_corpus(run, tmp_path)


@pytest.mark.parametrize("name", ["train-00000.bin", "hashes.bin", "index.json"])
def test_a_folder_that_lacks_a_file_is_named(source, tmp_path, name):
    folder = made(source, BytesTokeniser(), tmp_path / "tokens")
    (folder / name).unlink()
    with pytest.raises(DataMissing, match="tokens"):
        open_corpus(data_run(f"tokens:{folder}"), tmp_path)


def test_a_folder_written_anew_since_the_run_began_is_refused(source, tokeniser, tmp_path):
    folder = made(source, BytesTokeniser(), tmp_path / "tokens")
    run = data_run(f"tokens:{folder}", content_hash=open_folder(folder).index.root)
    open_corpus(run, tmp_path)
    shutil.rmtree(folder)
    made(write_texts(tmp_path / "other", count=41), BytesTokeniser(), folder)
    with pytest.raises(DataMissing, match="other tokens than the run"):
        open_corpus(run, tmp_path)
    shutil.rmtree(folder)
    made(source, tokeniser, folder)
    with pytest.raises(UserError, match="was made with the tokeniser"):
        open_corpus(run, tmp_path)


def test_a_run_over_ready_made_tokens_takes_their_tokeniser(source, tokeniser, tmp_path):
    folder = made(source, tokeniser, tmp_path / "tokens")
    sections = {
        "run": {"name": "x", "preset": "tiny", "stages": 2, "data": f"tokens:{folder}"}
        | {"sequence_tokens": 16, "micro_batch_tokens": 32, "batch_tokens": 32},
        "model": {"vocab_size": 300},
        "data": {"held_out_sequences": 3},
    }
    run = make_run(sections, cache_dir=tmp_path / "cache")
    assert run.data.tokeniser == tokeniser.name
    assert run.data.content_hash == open_folder(folder).index.root


@pytest.mark.process
def test_two_processes_write_what_one_writes(source, tokeniser, tmp_path, monkeypatch):
    """In batches so small that most are under way at once."""
    monkeypatch.setattr(token_writing, "BATCH_BYTES", 500)
    alone = made(source, tokeniser, tmp_path / "alone")
    recipe = dataclasses.replace(RECIPE, jobs=2)
    together = made(source, tokeniser, tmp_path / "together", recipe)
    for file in alone.iterdir():
        assert (together / file.name).read_bytes() == file.read_bytes()
    assert multiprocessing.active_children() == []


@pytest.mark.process
def test_a_process_that_dies_ends_the_work_and_says_so(source, tokeniser):
    documents = list(parse_source(source).documents())
    batches = ([document] for document in documents * 50)
    taken = encoded(batches, tokeniser, 2)
    next(taken)
    for child in multiprocessing.active_children():
        child.kill()
    with pytest.raises(UserError, match="has ended by itself") as caught:
        list(taken)
    assert "--jobs" in caught.value.hint
    assert multiprocessing.active_children() == []


def test_opening_reads_no_tokens(source, tmp_path):
    folder = made(source, BytesTokeniser(), tmp_path / "tokens")
    shard = folder / "train-00000.bin"
    body = shard.read_bytes()
    shard.write_bytes(bytes(len(body)))  # nobody notices until it is read
    packed = open_folder(folder)
    with pytest.raises(Corrupt, match="not what was written"):
        packed.train.read(0, 1)


@pytest.mark.parametrize("kind", ["bytes", "json"])
def test_who_resumes_in_the_middle_reads_what_lies_there_and_nothing_else(kind, source, tmp_path):
    """So it takes no longer the further on it is: every other block is spoilt, and none is read."""
    rng = random.Random(5)
    words = [rng.randbytes(rng.randint(1, 4)).hex() for _ in range(500)]
    for number in range(100):
        text = " ".join(rng.choices(words, k=5_000))
        (tmp_path / "in" / f"long{number}.txt").write_text(text)
    body = train_tokeniser(parse_source(source), 300, 1 << 16).body
    tokeniser = BytesTokeniser() if kind == "bytes" else JsonTokeniser(body, "trained")
    folder = made(source, tokeniser, tmp_path / "tokens")
    before = open_folder(folder).train
    middle, count = len(before) // 2, 513
    expected = before.read(middle, count).tolist()
    item = before.read(0, 1).dtype.itemsize
    first, last = middle * item // BLOCK_BYTES, (middle + count) * item // BLOCK_BYTES
    shard = folder / "train-00000.bin"
    whole = shard.read_bytes()
    kept = slice(first * BLOCK_BYTES, (last + 1) * BLOCK_BYTES)
    shard.write_bytes(bytes(kept.start) + whole[kept] + bytes(max(0, len(whole) - kept.stop)))
    assert shard.stat().st_size > 2 * BLOCK_BYTES
    resumed = open_folder(folder).train
    assert resumed.read(middle, count).tolist() == expected
    with pytest.raises(Corrupt):
        resumed.read(0, 1)


def test_progress_is_told_and_mended_and_empty_texts_are_counted(tmp_path):
    source = write_texts(tmp_path / "in")
    (tmp_path / "in" / "bad.txt").write_bytes(b"bad \xff text " * 100)
    (tmp_path / "in" / "empty.txt").write_bytes(b"")
    told: list[Progress] = []
    (tmp_path / "made").mkdir()
    index = write_tokens(
        parse_source(source), BytesTokeniser(), tmp_path / "made", RECIPE, told.append
    )
    assert (index.documents, index.mended_documents, index.empty_texts) == (41, 1, 1)
    assert told[-1].documents == 41
    assert (told[-1].first_mended, told[-1].share) == ("bad.txt", 1.0)
    assert told[-1].tokens == index.train_tokens + index.held_out_tokens
    put_in_place(tmp_path / "made", tmp_path / "tokens")
    assert open_folder(tmp_path / "tokens").index == index
