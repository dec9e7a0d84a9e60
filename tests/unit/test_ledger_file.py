"""A ledger on paper: real keys, real signatures, proved again by somebody who saw nothing of it."""

import os
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest
from corpus_helpers import data_run

from swarmd import ledger_file
from swarmd.checkpoints import CheckpointFolder
from swarmd.errors import UserError
from swarmd.home import Home, find_home
from swarmd.home_files import remember_run
from swarmd.identity import Identity, load_or_create, verify
from swarmd.ledger_file import dump_ledger, read_ledger, saved_ledger
from swarmd.ledger_shown import contribution_shown, contributors
from swarmd.protocols import wire
from swarmd.protocols.audit import audit
from swarmd.protocols.effects import Started
from swarmd.protocols.ids import MicroBatchId, PeerId
from swarmd.protocols.lease_limits import local
from swarmd.protocols.leases import LeaseBook
from swarmd.protocols.receipts import CALLED

RUN = data_run("builtin:python")
OTHER = PeerId("12D3KooWother")


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    home = find_home(str(tmp_path / "home"))
    home.create()
    return load_or_create(home)


@pytest.fixture
def book(identity: Identity) -> LeaseBook:
    """A head that has done the first round and a half."""
    made = LeaseBook(
        PeerId(identity.peer_id), 1, RUN.shape, local(), sign=identity.sign, verify=verify
    )
    made.set_heads([made.own], 0.0)
    made.handle(Started(), 0.0)
    for _ in range(30):
        micro_batch, _ = made.next_lease(0.0)
        assert isinstance(micro_batch, MicroBatchId)
        made.saw(micro_batch, OTHER, 1, CALLED)
        made.done(micro_batch, 2.0, 2, 0.0)
    return made


def test_what_is_written_proves_the_same_to_whoever_reads_it(book: LeaseBook, tmp_path: Path):
    path = tmp_path / "ledger"
    path.write_bytes(dump_ledger(RUN.canonical(), book.save()))
    found = read_ledger(path)
    assert found.run == RUN
    assert audit(found.ledger, found.open_leases) == book.audit(0.0)
    names = {OTHER: "other"}
    assert contributors(found.ledger, names) == contributors(book.ledger, names)
    assert contributors(found.ledger, names)[-1].tokens_witnessed == 20 * 2 * 16


@pytest.mark.parametrize(("here", "shown"), [(3, 30), (33, 33)])
def test_who_comes_back_shows_what_it_did_before(book: LeaseBook, here: int, shown: int):
    """As the others show it; what it has done since may not be in the ledger yet."""
    found = contribution_shown(book.ledger, book.own, here)
    assert (found.micro_batches, found.tokens) == (shown, shown * 2 * 16)
    (told,) = contributors(book.ledger, {})
    assert told.micro_batches == 30
    by_receipts = contribution_shown(book.ledger, OTHER, 0)
    assert by_receipts.micro_batches == 20


@pytest.mark.parametrize("place", range(40, 3_000, 211))
def test_a_byte_changed_anywhere_proves_nothing_else(book: LeaseBook, tmp_path: Path, place: int):
    path = tmp_path / "ledger"
    body = bytearray(dump_ledger(RUN.canonical(), book.save()))
    body[place % len(body)] ^= 1
    path.write_bytes(body)
    try:
        found = read_ledger(path)
    except UserError:
        return
    assert found.run != RUN or found.ledger.witnessed_total() == book.ledger.witnessed_total()


@pytest.mark.parametrize("body", [b"", b"\xc1", msgpack.packb({"format": "x"}), msgpack.packb(3)])
def test_what_is_no_ledger_is_named(tmp_path: Path, body: bytes):
    path = tmp_path / "ledger"
    path.write_bytes(body)
    with pytest.raises(UserError, match="ledger") as caught:
        read_ledger(path)
    assert caught.value.exit_code == 1
    with pytest.raises(UserError, match="No such file"):
        read_ledger(tmp_path / "nothing")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_not_a_file_is_not_read(tmp_path: Path, make: Callable[[Path], None]):
    make(tmp_path / "ledger")
    with pytest.raises(UserError, match="is not a file"):
        read_ledger(tmp_path / "ledger")


def test_a_name_that_no_file_can_have_is_told_as_that(tmp_path: Path):
    with pytest.raises(UserError, match="cannot be read: File name too long"):
        read_ledger(tmp_path / ("x" * 300))


def test_more_than_a_ledger_can_be_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ledger_file, "LEDGER_BYTES_MAX", 1_000)
    (tmp_path / "ledger").write_bytes(bytes(1_001))
    with pytest.raises(UserError, match="holds more than 1000 bytes"):
        read_ledger(tmp_path / "ledger")


@pytest.fixture
def home(book: LeaseBook, tmp_path: Path) -> Home:
    """Three checkpoints of the run, with a ledger each."""
    found = find_home(str(tmp_path / "home"))
    remember_run(found, RUN, [], used_at="2026-11-30T00:00:00Z")
    for number in (1, 2, 3):
        state = tmp_path / "state"
        state.write_bytes(b"weights")
        checkpoints_of(found).keep(
            state,
            stage=0,
            round_number=number,
            step=number,
            ledger=[wire.encode(message) for message in book.save()],
        )
    return found


def checkpoints_of(home: Home) -> CheckpointFolder:
    return CheckpointFolder(home.checkpoints, RUN.run_id)


def test_spoilt_checkpoints_are_passed_over_and_named(home: Home):
    folders = sorted(checkpoints_of(home).path.iterdir())
    assert saved_ledger(home, RUN.run_id).passed_over == ()
    (folders[2] / "manifest.json").write_text("x")
    (folders[1] / "ledger.msgpack").unlink()
    os.mkfifo(folders[1] / "ledger.msgpack")
    found = saved_ledger(home, RUN.run_id)
    why = {one.path: one.why for one in found.passed_over}
    assert why.keys() == {folders[1], folders[2]}
    assert "manifest.json: is no JSON" in why[folders[2]]
    assert "ledger.msgpack: is not a file" in why[folders[1]]
    (folders[0] / "ledger.msgpack").write_bytes(b"")
    with pytest.raises(UserError, match=r"none of .*, of 3; the last one: .*stage-00-round"):
        saved_ledger(home, RUN.run_id)


def test_entries_of_another_key_are_refused(book: LeaseBook, tmp_path: Path):
    saved = book.save()
    forged = LeaseBook(book.own, 1, RUN.shape, local(), sign=lambda body: bytes(64), verify=verify)
    forged.set_heads([book.own], 0.0)
    forged.handle(Started(), 0.0)
    micro_batch, _ = forged.next_lease(0.0)
    assert micro_batch is not None
    forged.done(micro_batch, 2.0, 2, 0.0)
    path = tmp_path / "ledger"
    path.write_bytes(dump_ledger(RUN.canonical(), [*saved, *forged.save()[1:]]))
    assert read_ledger(path).ledger.digest() == book.ledger.digest()
    path.write_bytes(dump_ledger(RUN.canonical(), forged.save()))
    with pytest.raises(UserError, match="bad_signature"):
        read_ledger(path)
