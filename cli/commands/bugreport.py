"""`swarmd bugreport`: one archive with what helps to find a mistake, and without secrets."""

from __future__ import annotations

import base64
import io
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from swarmd.cli.framework import Session, argument, command
from swarmd.errors import SwarmdError, UserError

if TYPE_CHECKING:
    from swarmd.cli.redaction import Redaction
    from swarmd.home import Home


@command(section="Checking")
@argument("file", metavar="[FILE]", required=False)
def bugreport(session: Session, file: str | None) -> None:
    """One archive with config, status, events and log, without secrets.

    Default: a new file in this home's cache. Needs no daemon. Public addresses, your name and that
    of this machine are replaced; look into it before you give it away.
    """
    from swarmd.cli import format as f
    from swarmd.cli.report_files import parts
    from swarmd.store import write_bytes

    stem = time.strftime("swarmd-bugreport-%Y%m%d-%H%M%S", time.gmtime())
    path = _place(session.home, file, stem)
    redaction = _redaction()
    bodies = {name: redaction.apply(text).encode() for name, text in parts(session)}
    _refuse_the_key(session.home, bodies)
    body = _archive(stem, bodies)
    write_bytes(path, body)
    session.printer.say(f"{len(bodies)} files, {f.size(len(body))}; nothing was sent anywhere")
    session.done(str(path), {"files": sorted(bodies), "bytes": len(body)}, path=str(path))


def _place(home: Home, file: str | None, stem: str) -> Path:
    if file is None:
        home.cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        return home.cache / f"{stem}.tar.gz"
    path = Path.cwd() / file
    if path.exists():
        raise UserError(
            f"{path} exists already", code="file_exists", exit_code=2, hint="give another name"
        )
    return path


def _redaction() -> Redaction:
    import getpass
    import socket

    from swarmd.cli.redaction import Redaction

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = ""
    return Redaction(
        user_directory=str(Path("~").expanduser()),
        user_name=user,
        host_name=socket.gethostname().partition(".")[0],
    )


def _refuse_the_key(home: Home, bodies: dict[str, bytes]) -> None:
    """The last line of defence: no report is written that holds the key in any usual form."""
    from swarmd.identity import load

    try:
        seed = load(home.identity_key).seed
    except SwarmdError:
        return
    forms = (
        seed,
        seed.hex().encode(),
        base64.b64encode(seed)[:-1],
        base64.urlsafe_b64encode(seed)[:-1],
    )
    for name, body in bodies.items():
        if any(form in body for form in forms):
            raise UserError(
                f"{name} holds this peer's key; no report was written",
                code="key_in_report",
                exit_code=1,
                hint="find out who wrote it there, and make a new identity",
            )


def _archive(stem: str, bodies: dict[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name, body in sorted(bodies.items()):
            member = tarfile.TarInfo(f"{stem}/{name}")
            member.size, member.mode, member.mtime = len(body), 0o600, int(time.time())
            archive.addfile(member, io.BytesIO(body))
    return whole.getvalue()
