"""`swarmd data tokenize` and `train-tokenizer`, from the command line to a run file."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import zstandard
from command_line import swarmd
from corpus_helpers import data_run, write_texts

from swarmd.checkpoints import LEDGER, CheckpointFolder
from swarmd.data.packing import aside
from swarmd.home import Home
from swarmd.home_files import remember_run
from swarmd.identity import load_or_create, verify
from swarmd.ledger_file import dump_ledger
from swarmd.protocols import wire
from swarmd.protocols.effects import Started
from swarmd.protocols.ids import PeerId
from swarmd.protocols.lease_limits import local
from swarmd.protocols.leases import LeaseBook
from swarmd.run_config import RunConfig

RUN_FILE = """\
[run]
name = "demo"
preset = "tiny"
data = "tokens:{folder}"
sequence_tokens = 16
micro_batch_tokens = 32
batch_tokens = 32

[model]
vocab_size = 300

[data]
held_out_sequences = 3
"""


def test_from_a_source_to_a_tokeniser_to_tokens_to_a_run(home: Home, tmp_path: Path) -> None:
    source = write_texts(tmp_path / "in")
    tokeniser, folder = str(tmp_path / "t.json"), str(tmp_path / "tokens")
    learnt = swarmd("data", "train-tokenizer", source, tokeniser, "--vocab-size", "300", home=home)
    assert learnt.lines[0].startswith("300 tokens, learnt from")
    assert "MB of text read; now 300 tokens are chosen" in learnt.err
    made = swarmd(
        "data", "tokenize", source, folder, "--tokenizer", tokeniser, "--json",
        "--held-out-tokens", "100", home=home,
    )  # fmt: skip
    found = made.object
    assert (found["command"], found["path"]) == ("data tokenize", folder)
    assert found["data"]["documents"] == 40
    assert found["data"]["held_out_tokens"] >= 100
    file = tmp_path / "demo.toml"
    file.write_text(RUN_FILE.format(folder=folder))
    created = swarmd("run", "create", str(file), "--json", home=home).object
    assert created["description"]["data"]["tokeniser"] == found["data"]["tokeniser"]
    assert created["description"]["data"]["content_hash"] == found["data"]["content_hash"]


def test_nothing_is_overwritten(home: Home, tmp_path: Path) -> None:
    source = write_texts(tmp_path / "in")
    for words in (("train-tokenizer", source), ("tokenize", source)):
        (tmp_path / words[0]).mkdir()
        (tmp_path / words[0] / "there").write_text("mine")
        refused = swarmd("data", *words, str(tmp_path / words[0]), home=home)
        assert refused.code == 2
        assert "is there already" in refused.err
        assert (tmp_path / words[0] / "there").read_text() == "mine"


def test_a_failed_tokenize_leaves_nothing(home: Home, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "cut.gz").write_bytes(b"\x1f\x8b\x08 cut")
    place = tmp_path / "out"
    failed = swarmd("data", "tokenize", f"text:{tmp_path}/in/*", str(place / "tokens"), home=home)
    assert failed.code == 78
    assert "cut.gz" in failed.err
    assert list(place.iterdir()) == []


def parquet_body() -> bytes:
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table({"text": ["some text"] * 100}), sink)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def test_what_a_killed_tokenize_left_goes_and_what_another_holds_stays(
    home: Home, tmp_path: Path
) -> None:
    source = write_texts(tmp_path / "in")
    place = tmp_path / "out"
    place.mkdir()
    (place / ".aside-killed").mkdir()
    with aside(place) as held:
        words = ("data", "tokenize", source, str(place / "tokens"), "--held-out-tokens", "49")
        done = swarmd(*words, home=home)
        assert done.code == 0, done.err
        assert sorted(place.iterdir()) == [held, place / "tokens"]


def test_of_two_that_write_to_one_place_the_second_is_refused(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tokens"

    def meanwhile(path: Path, mode: int) -> None:
        folder.mkdir()
        (folder / "there").write_text("mine")

    monkeypatch.setattr("swarmd.cli.data_work.os.chmod", meanwhile)
    words = ("data", "tokenize", write_texts(tmp_path / "in"), str(folder))
    refused = swarmd(*words, "--held-out-tokens", "49", home=home)
    assert refused.code == 2
    assert "is there already" in refused.err
    assert [path.name for path in folder.iterdir()] == ["there"]


TEXT = b"some text that is long enough\n" * 200
BROKEN = {
    "cut.txt.gz": (gzip.compress(TEXT)[:-9], "text:{}", "cut.txt.gz"),
    "cut.txt.zst": (zstandard.compress(os.urandom(9_000))[:-9], "text:{}", "cut.txt.zst"),
    "cut.parquet": (parquet_body()[:-9], "parquet:{}#text", "cut.parquet"),
    "whole.parquet": (parquet_body(), "parquet:{}#body", "no column 'body'"),
    "cut.jsonl": (b'{"text": "fine"}\n{"text": "cu', "jsonl:{}#text", "cut.jsonl, line 2"),
    "whole.jsonl": (b'{"text": "fine"}\n', "jsonl:{}#body", "no text in the field 'body'"),
    "empty.txt": (b"", "text:{}", "has no text in it"),
    "here.txt": (TEXT, "text:{}.not", "no file matches"),
}
"""By the file's name: what is in it, how it is asked for, and what is said of it."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_source_is_refused_by_name(home: Home, tmp_path: Path, name: str) -> None:
    body, form, said = BROKEN[name]
    (tmp_path / name).write_bytes(body)
    folder, file = tmp_path / "tokens", tmp_path / "t.json"
    source = form.format(tmp_path / name)
    for words in (("tokenize", source, str(folder)), ("train-tokenizer", source, str(file))):
        refused = swarmd("data", *words, "--json", home=home)
        assert refused.code == 78
        error = refused.object["error"]
        assert (error["code"], error["exit_code"]) == ("data_missing", 78)
        assert said in error["message"]
        assert name in error["details"]["path"]
    assert not folder.exists()
    assert not file.exists()


def test_what_is_no_text_and_what_is_empty_is_counted_and_named(home: Home, tmp_path: Path) -> None:
    source = write_texts(tmp_path / "in")
    (tmp_path / "in" / "bad.txt").write_bytes(b"bad \xff text " * 100)
    (tmp_path / "in" / "empty.txt").write_bytes(b"")
    words = ("data", "tokenize", source, str(tmp_path / "tokens"), "--held-out-tokens", "100")
    made = swarmd(*words, "--json", home=home).object["data"]
    assert (made["mended_documents"], made["first_mended"], made["empty_texts"]) == (
        1,
        "bad.txt",
        1,
    )


def test_a_path_without_its_kind_is_answered_with_what_to_write(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path / "in")
    for source in (f"{tmp_path}/in", f"text:{tmp_path}/in"):
        refused = swarmd("data", "tokenize", source, str(tmp_path / "tokens"), home=home)
        assert refused.code == 78
        assert f"{tmp_path}/in/**/*" in refused.err


def test_a_tokeniser_smaller_than_was_asked_for_says_so(home: Home, tmp_path: Path) -> None:
    source = write_texts(tmp_path / "in")
    found = swarmd("data", "train-tokenizer", source, str(tmp_path / "t.json"), home=home)
    assert found.code == 0
    assert "32 768 were asked for" in found.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("train-tokenizer", "text:in.txt", "t.json", "--vocab-size", "999999999"), "--vocab-size"),
        (("train-tokenizer", "text:in.txt", "t.json", "--vocab-size", "10"), "--vocab-size"),
        (("train-tokenizer", "text:in.txt", "t.json", "--text", "0"), "--text 0"),
        (("tokenize", "tokens:nowhere", "tokens"), "tokens:nowhere names tokens, and only texts"),
        (("tokenize", "text:in.txt", "tokens", "--held-out-tokens", "-5"), "--held-out-tokens"),
        (("tokenize", "text:in.txt", "tokens", "--held-out-share", "nan"), "--held-out-share"),
    ],
)
def test_a_number_out_of_bounds_is_refused_by_its_own_flag(
    home: Home, words: tuple[str, ...], named: str
) -> None:
    refused = swarmd("data", *words, home=home)
    assert refused.code == 2
    assert f"error: {named}" in refused.err


def test_a_source_of_which_nothing_is_left_to_train_on_is_refused(
    home: Home, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("all of it is held out")
    folder = tmp_path / "tokens"
    refused = swarmd("data", "tokenize", f"text:{tmp_path}/in.txt", str(folder), home=home)
    assert refused.code == 78
    assert "none is left to train on" in refused.err
    assert "--held-out-tokens" in refused.err
    assert not folder.exists()


def test_the_ledger_of_a_run_is_proved_from_its_last_checkpoint(home: Home, tmp_path: Path) -> None:
    home.create()
    head, run, book = done_by_one(home)
    missing = swarmd("data", "audit", "--run", run.run_id[:12], home=home)
    assert missing.code == 2
    remember_run(home, run, (), used_at="2026-01-01T00:00:00Z")
    nothing = swarmd("data", "audit", "--run", run.run_id[:12], home=home)
    assert nothing.code == 1
    assert "has saved nothing" in nothing.err
    folder, state = CheckpointFolder(home.checkpoints, run.run_id), tmp_path / "state"
    bodies = [wire.encode(message) for message in book.save()]
    for number, ledger in ((0, bodies[:1]), (1, bodies)):
        state.write_bytes(b"weights")
        folder.keep(state, stage=0, round_number=number, step=number, ledger=ledger)
    proved = swarmd("data", "audit", "--run", run.run_id[:12], "--json", home=home)
    assert proved.code == 0
    assert (proved.object["samples_completed"], proved.object["clean"]) == (40, True)
    shown = swarmd("contributions", "--run", run.name, "--json", home=home).object
    assert [(peer["id"], peer["tokens"]) for peer in shown["peers"]] == [(head, 40 * 16)]
    newest = folder.find()[0][0].folder / LEDGER
    newest.write_bytes(newest.read_bytes()[:-1])  # spoilt: the one before is taken
    earlier = swarmd("data", "audit", "--run", run.run_id[:12], "--json", home=home)
    assert earlier.object["samples_completed"] == 0
    both = swarmd("data", "audit", "--run", run.name, "--ledger", str(newest), home=home)
    assert both.code == 2


@pytest.mark.parametrize("words", [("data", "audit"), ("contributions",)])
def test_without_a_daemon_the_way_to_the_checkpoint_is_said(
    home: Home, words: tuple[str, ...]
) -> None:
    home.create()
    refused = swarmd(*words, home=home)
    assert refused.code == 3
    assert "--run RUN" in refused.err


def done_by_one(home: Home) -> tuple[PeerId, RunConfig, LeaseBook]:
    """A lone head has done twenty micro-batches."""
    identity, run = load_or_create(home), data_run("builtin:python")
    head = PeerId(identity.peer_id)
    book = LeaseBook(head, 1, run.shape, local(), sign=identity.sign, verify=verify)
    book.set_heads([head], 0.0)
    book.handle(Started(), 0.0)
    for _ in range(20):
        micro_batch, _ = book.next_lease(0.0)
        assert micro_batch is not None
        book.done(micro_batch, 2.0, 2, 0.0)
    return head, run, book


def test_a_ledger_on_paper_is_proved_without_a_daemon(home: Home, tmp_path: Path) -> None:
    home.create()
    head, run, book = done_by_one(home)
    file = tmp_path / "ledger"
    file.write_bytes(dump_ledger(run.canonical(), book.save()))
    proved = swarmd("data", "audit", "--ledger", str(file), "--json", home=home)
    assert proved.code == 0
    assert (proved.object["samples_completed"], proved.object["clean"]) == (40, True)
    shown = swarmd("contributions", "--ledger", str(file), "--json", home=home).object
    assert [(peer["id"], peer["tokens"]) for peer in shown["peers"]] == [(head, 40 * 16)]
    file.write_bytes(file.read_bytes().replace(head.encode()[:9], b"12D3KooWx"))
    refused = swarmd("data", "audit", "--ledger", str(file), home=home)
    assert refused.code == 1
    assert "does not hold" in refused.err


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_training_of_a_tokeniser(tmp_path: Path, number: signal.Signals) -> None:
    """While the library chooses tokens, which takes it many seconds here. A shell says 130, 143."""
    letters = random.Random(1)
    (tmp_path / "in").mkdir()
    for part in range(40):
        words = ("".join(letters.choices("abcdefghijklmnop", k=10)) for _ in range(30_000))
        (tmp_path / "in" / f"{part}.txt").write_text(" ".join(words))
    words = ["data", "train-tokenizer", f"text:{tmp_path}/in/*.txt", str(tmp_path / "t.json")]
    with subprocess.Popen(
        [sys.executable, "-m", "swarmd", "--home", str(tmp_path / "home"), *words],
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        try:
            while "tokens are chosen" not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(number)
            assert process.wait(60) == -number, "and not 130 or 143, when the library is through"
            said = process.stderr.read()
        finally:
            process.kill()
    assert "Traceback" not in said
    assert not (tmp_path / "t.json").exists()
