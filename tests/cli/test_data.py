"""`swarmd data tokenize` and `train-tokenizer`, from the command line to a run file."""

from __future__ import annotations

from pathlib import Path

from command_line import swarmd
from corpus_helpers import data_run, write_texts

from swarmd.home import Home
from swarmd.identity import load_or_create, verify
from swarmd.ledger_file import dump_ledger
from swarmd.protocols.effects import Started
from swarmd.protocols.ids import PeerId
from swarmd.protocols.lease_limits import local
from swarmd.protocols.leases import LeaseBook

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


def test_a_ledger_on_paper_is_proved_without_a_daemon(home: Home, tmp_path: Path) -> None:
    home.create()
    identity, run = load_or_create(home), data_run("builtin:python")
    head = PeerId(identity.peer_id)
    book = LeaseBook(head, 1, run.shape, local(), sign=identity.sign, verify=verify)
    book.set_heads([head], 0.0)
    book.handle(Started(), 0.0)
    for _ in range(20):
        micro_batch, _ = book.next_lease(0.0)
        assert micro_batch is not None
        book.done(micro_batch, 2.0, 2, 0.0)
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
