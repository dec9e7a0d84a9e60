"""IDEN-03: one key, the same id from everywhere, never quietly another one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from swarmd import identity
from swarmd.errors import UserError
from swarmd.home import Home, find_home
from swarmd.home_files import raise_incarnation


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = find_home(str(tmp_path / "home"))
    found.create()
    return found


def test_iden_03_key_is_made_once_and_kept(home: Home) -> None:
    first = identity.load_or_create(home)
    assert first.peer_id.startswith("12D3KooW")
    assert identity.load_or_create(home).peer_id == first.peer_id
    assert home.identity_key.stat().st_size == 36
    assert stat.S_IMODE(home.identity_key.stat().st_mode) == 0o600


def test_iden_03_libp2p_reads_the_same_identity(home: Home) -> None:
    from libp2p import load_identity
    from libp2p.peer.id import ID

    ours = identity.load_or_create(home)
    theirs = load_identity(home.identity_key)
    assert ID.from_pubkey(theirs.public_key).to_base58() == ours.peer_id
    assert theirs.public_key.verify(b"body", ours.sign(b"body"))


def test_signature_holds_for_its_signer_and_body_only(home: Home, tmp_path: Path) -> None:
    ours = identity.load_or_create(home)
    other_home = find_home(str(tmp_path / "other"))
    other_home.create()
    other = identity.load_or_create(other_home)
    signature = ours.sign(b"record")
    assert identity.verify(ours.peer_id, b"record", signature)
    assert not identity.verify(ours.peer_id, b"recorD", signature)
    assert not identity.verify(other.peer_id, b"record", signature)


@pytest.mark.parametrize(
    ("peer", "signature"), [("", b""), ("x" * 52, b"\0" * 64), ("12D3KooW", b"\0" * 64)]
)
def test_nonsense_from_a_peer_is_no_signature(peer: str, signature: bytes) -> None:
    assert not identity.verify(peer, b"record", signature)


def test_short_signature_is_no_signature(home: Home) -> None:
    ours = identity.load_or_create(home)
    assert not identity.verify(ours.peer_id, b"record", ours.sign(b"record")[:-1])


def test_iden_03_wide_mode_is_repaired_and_told(home: Home) -> None:
    first = identity.load_or_create(home)
    home.identity_key.chmod(0o644)
    second = identity.load_or_create(home)
    assert second.peer_id == first.peer_id
    assert "0644" in second.repairs[0]
    assert stat.S_IMODE(home.identity_key.stat().st_mode) == 0o600
    assert identity.load_or_create(home).repairs == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give a file away")
def test_iden_03_wide_mode_of_a_foreign_file_is_refused(home: Home) -> None:
    identity.load_or_create(home)
    home.identity_key.chmod(0o644)
    os.chown(home.identity_key, 12345, 12345)
    with pytest.raises(UserError, match="another user") as caught:
        identity.load_or_create(home)
    assert caught.value.exit_code == 78
    assert stat.S_IMODE(home.identity_key.stat().st_mode) == 0o644


def test_iden_03_missing_key_beside_older_state_is_refused(home: Home) -> None:
    identity.load_or_create(home)
    raise_incarnation(home)
    home.identity_key.unlink()
    with pytest.raises(UserError) as caught:
        identity.load_or_create(home)
    assert caught.value.exit_code == 78
    assert "identity restore" in caught.value.hint
    assert not home.identity_key.exists()


@pytest.mark.parametrize("body", [b"", b"\x08\x01\x12\x20" + b"k" * 31, b"x" * 36, b"x" * 5000])
def test_iden_03_broken_key_is_refused_and_left_alone(home: Home, body: bytes) -> None:
    home.identity_key.write_bytes(body)
    with pytest.raises(UserError) as caught:
        identity.load_or_create(home)
    assert caught.value.exit_code == 78
    assert home.identity_key.read_bytes() == body


def test_iden_03_backup_wipe_restore_gives_the_same_id(home: Home, tmp_path: Path) -> None:
    first = identity.load_or_create(home)
    backup = tmp_path / "key.backup"
    identity.backup(home, backup)
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert identity.backed_up_at(home) is not None
    home.identity_key.unlink()
    assert identity.restore(home, backup).peer_id == first.peer_id
    assert identity.load_or_create(home).peer_id == first.peer_id


def test_backup_replaces_nothing_unasked(home: Home, tmp_path: Path) -> None:
    identity.load_or_create(home)
    target = tmp_path / "precious"
    target.write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        identity.backup(home, target)
    assert target.read_text() == "mine"
    identity.backup(home, target, overwrite=True)
    assert target.stat().st_size == 36


def test_restore_over_another_key_asks_and_then_keeps_both(home: Home, tmp_path: Path) -> None:
    old = identity.load_or_create(home)
    other_home = find_home(str(tmp_path / "other"))
    other_home.create()
    new = identity.load_or_create(other_home)
    with pytest.raises(UserError) as caught:
        identity.restore(home, other_home.identity_key)
    assert caught.value.exit_code == 2
    assert identity.load(home.identity_key).peer_id == old.peer_id
    assert identity.restore(home, other_home.identity_key, replace=True).peer_id == new.peer_id
    kept = home.state / f"identity.key.{old.peer_id[-8:]}"
    assert identity.load(kept).peer_id == old.peer_id


def test_restore_of_no_key_changes_nothing(home: Home, tmp_path: Path) -> None:
    first = identity.load_or_create(home)
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"hello")
    for source in (wrong, tmp_path / "none"):
        with pytest.raises(UserError):
            identity.restore(home, source, replace=True)
    assert identity.load_or_create(home).peer_id == first.peer_id


def test_sec_03_key_is_not_printed(home: Home) -> None:
    ours = identity.load_or_create(home)
    secret = home.identity_key.read_bytes()[4:]
    assert secret.hex() not in repr(ours)
    assert repr(secret) not in repr(ours)
    assert "Ed25519PrivateKey" not in repr(ours)
