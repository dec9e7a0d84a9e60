"""Who this peer is: one ed25519 key in the home, made once and never quietly replaced.

    state/identity.key   36 bytes, mode 0600: 08 01 12 20 <32 bytes of seed>

That is the form in which libp2p's own `load_identity` reads a key; libp2p itself is not imported
here, because it takes a second to load and commands that only show the id must not pay for it.

The rules (docs/cli.md section 8, IDEN-03): a mode wider than 0600 is repaired with a warning if the
file is ours, refused otherwise; a missing or unreadable key beside older state is refused and names
`swarmd identity restore`, because a second identity would lose the history of the first.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from swarmd.errors import NotPermitted, StoreError, UserError
from swarmd.home import Home
from swarmd.peer_id import peer_id_of, public_key_of
from swarmd.protocols.ids import PeerId
from swarmd.store import read_bytes, read_json, write_bytes, write_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PREFIX = bytes.fromhex("08011220")
KEY_FILE_BYTES = len(_PREFIX) + 32
BACKUP_NOTE = "identity_backup.json"
"""When the key was last backed up; `doctor` tells."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A key and the id that follows from it. Never prints its key."""

    peer_id: PeerId
    file: Path
    _key: Ed25519PrivateKey = field(repr=False, compare=False)
    repairs: tuple[str, ...] = ()
    """What was wrong with the file and is right now; health shows `key_mode_repaired`."""

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes, for the transport. Never shown."""
        return self._key.private_bytes_raw()

    def sign(self, body: bytes) -> bytes:
        """64 bytes."""
        return self._key.sign(body)


def verify(peer_id: str, body: bytes, signature: bytes) -> bool:
    """Whether the holder of `peer_id` signed `body`. Never raises for what a peer can send."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public_key_of(peer_id)).verify(signature, body)
    except (InvalidSignature, ValueError):
        return False
    return True


def load_or_create(home: Home) -> Identity:
    """The identity of a home whose directories exist. Raises UserError (exit 78)."""
    if not home.identity_key.exists():
        if home.has_older_state():
            raise _unusable(home.identity_key, "is missing, though a peer has lived in this home")
        write_bytes(home.identity_key, _PREFIX + os.urandom(32))
    return load(home.identity_key)


def load(file: Path) -> Identity:
    """Raises UserError (exit 78): missing, unreadable, malformed, open to others and not ours."""
    repairs = _repair_mode(file)
    try:
        body = read_bytes(file, bytes_max=4096)
    except StoreError as error:
        raise _unusable(file, error.text) from error
    if body is None:
        raise _unusable(file, "is missing")
    return _identity(file, body, repairs)


def backup(home: Home, to: Path, *, overwrite: bool = False) -> Identity:
    """Copy the key, mode 0600. Raises UserError if `to` exists and must not be replaced."""
    identity = load(home.identity_key)
    if to.exists() and not overwrite:
        raise UserError(
            f"{to} exists already",
            code="file_exists",
            exit_code=2,
            hint="give another name, or `--yes` to replace it",
        )
    body = read_bytes(home.identity_key)
    assert body is not None
    write_bytes(to, body)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    write_json(home.state / BACKUP_NOTE, {"file": str(to), "at": at})
    return identity


def restore(home: Home, source: Path, *, replace: bool = False) -> Identity:
    """Put a backed-up key into the home. The caller holds the home's lock.

    Another key that is there already stays beside it under a name with its own id; nothing deletes
    a key. Raises UserError: no such backup, no key in it, or another key is there and `replace` was
    not said.
    """
    try:
        body = read_bytes(source, bytes_max=4096)
    except StoreError as error:
        raise UserError(str(error), code="no_backup", exit_code=1) from error
    if body is None:
        raise UserError(f"there is no file {source}", code="no_backup", exit_code=2)
    wanted = _identity(source, body, ())
    present = read_bytes(home.identity_key, bytes_max=4096)
    if present is not None and present != body:
        _set_aside(home, present, wanted, replace=replace)
    write_bytes(home.identity_key, body)
    return load(home.identity_key)


def backed_up_at(home: Home) -> str | None:
    """RFC 3339, or None if this key was never backed up from here."""
    note = read_json(home.state / BACKUP_NOTE)
    return note.get("at") if isinstance(note, dict) else None


def _set_aside(home: Home, present: bytes, wanted: Identity, *, replace: bool) -> None:
    try:
        name = _identity(home.identity_key, present, ()).peer_id[-8:]
    except UserError:
        name = "unreadable"
    if not replace:
        raise UserError(
            f"this home has another key (·{name[-4:]}) than the backup (·{wanted.peer_id[-4:]})",
            code="identity_exists",
            exit_code=2,
            hint="`--yes` puts the backup in its place; the present key is kept beside it",
        )
    write_bytes(home.state / f"identity.key.{name}", present)


def _identity(file: Path, body: bytes, repairs: tuple[str, ...]) -> Identity:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    if len(body) != KEY_FILE_BYTES or not body.startswith(_PREFIX):
        raise _unusable(file, "is no ed25519 key file of 36 bytes")
    key = Ed25519PrivateKey.from_private_bytes(body[len(_PREFIX) :])
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return Identity(peer_id_of(public), file, key, repairs)


def _repair_mode(file: Path) -> tuple[str, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()  # reading it says why
    mode = stat.S_IMODE(found.st_mode)
    if not mode & 0o077:
        return ()
    if found.st_uid != os.geteuid():
        raise _unusable(file, f"has mode {mode:04o} and belongs to another user")
    try:
        file.chmod(0o600)
    except OSError as error:
        raise NotPermitted(file, f"mode {mode:04o} cannot be repaired: {error}") from error
    return (f"{file} had mode {mode:04o}; it is 0600 now",)


def _unusable(file: Path, fault: str) -> UserError:
    return UserError(
        f"the identity {file} {fault}",
        code="identity_unusable",
        exit_code=78,
        hint="put the key back with `swarmd identity restore FILE`; a new key is another peer",
    )
