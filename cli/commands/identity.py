"""`swarmd identity`: the key of this home."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarmd.cli.framework import Session, argument, group
from swarmd.home import absolute

if TYPE_CHECKING:
    from swarmd.identity import Identity


@group(section="Keeping house")
def identity(session: Session) -> None:
    """The key of this home: whoever has it is this peer."""


@identity.subcommand()
def show(session: Session) -> None:
    """The peer id, and where its key lies. Never the key."""
    _show(session, _load(session))


@identity.subcommand("backup")
@argument("file", metavar="FILE")
def backup_command(session: Session, file: str) -> None:
    """Copy the key to FILE, mode 0600. Keep it secret: it is the peer."""
    from swarmd.identity import backup

    saved = backup(session.home, absolute(file), overwrite=session.options.yes)
    session.done(f"the key of ·{saved.peer_id[-4:]} is in {file}", path=str(absolute(file)))


@identity.subcommand("restore")
@argument("file", metavar="FILE")
def restore_command(session: Session, file: str) -> None:
    """Put a backed-up key into this home. A key that is there is kept beside it."""
    from swarmd import __version__
    from swarmd.home_lock import acquire_lock
    from swarmd.identity import restore
    from swarmd.json_record import utc

    session.home.create()
    lock = acquire_lock(session.home, started_at=utc(), version=__version__)
    try:
        restored = restore(session.home, absolute(file), replace=session.options.yes)
    finally:
        lock.release()
    _show(session, restored)


def _load(session: Session) -> Identity:
    from swarmd.errors import UserError
    from swarmd.identity import load

    file = session.home.identity_key
    if not file.exists() and not session.home.has_older_state():
        raise UserError(
            f"this home has no identity yet ({file})",
            code="no_identity",
            exit_code=1,
            hint="`swarmd join` makes one, `swarmd identity restore FILE` brings one back",
        )
    return load(file)


def _show(session: Session, found: Identity) -> None:
    from swarmd.home_files import read_incarnation
    from swarmd.json_record import render
    from swarmd.peer_config import effective_config
    from swarmd.records import IdentityRecord

    for repair in found.repairs:
        session.printer.warn(repair)
    record = IdentityRecord(
        id=found.peer_id,
        name=effective_config(session.home).config.name,
        file=str(found.file),
        mode=f"{found.file.stat().st_mode & 0o7777:04o}",
        incarnation=read_incarnation(session.home),
    )
    if session.is_json:
        session.printer.object(render(record))
        return
    for label, value in (
        ("id", record.id),
        ("name", record.name or "-"),
        ("file", f"{record.file}, mode {record.mode}"),
        ("incarnation", str(record.incarnation)),
    ):
        session.printer.line(f"{label:<13}{value}")
