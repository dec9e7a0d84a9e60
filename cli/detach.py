"""`swarmd join --detach`: start the daemon in a session of its own, return once it answers.

The daemon does not put itself in the background: this command starts the same command line again
without `--detach`, in the same directory, since homes, run files and data may be named relative to
it, and waits. If that ends early, its last words and its exit status are ours.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from typing import IO, TYPE_CHECKING, Any

from swarmd.cli import exits
from swarmd.errors import UserError
from swarmd.home_lock import busy_error, is_held
from swarmd.named_limits import WAN

if TYPE_CHECKING:
    from swarmd.cli.framework import Session
    from swarmd.run_source import RunSource

POLL_S = 0.1
ADDRESS_S = 10.0
"""After the first answer: how long to wait for an address and a run link to print."""


def join_detached(session: Session, source: RunSource | None) -> int:
    """source None: any run will do, if a daemon is there already."""
    home = session.home
    home.create()
    if is_held(home):
        status = _ask(session, WAN.first_reply_s)
        _require_same_run(session, source, status)
        _show(session, status, already=True)
        return exits.OK
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            [sys.executable, "-m", "swarmd", *_without_detach(session.argv)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
            start_new_session=True,
        )
        status = _first_answer(session, process, words)
    _show(session, status, already=False)
    return exits.OK


def _without_detach(argv: list[str]) -> list[str]:
    return [argument for argument in argv if argument != "--detach"]


def _first_answer(
    session: Session, process: subprocess.Popen[bytes], words: IO[bytes]
) -> dict[str, Any]:
    """The status once it names a run link, or what is known when that takes too long."""
    limit_s = session.options.timeout_s or WAN.first_reply_s + ADDRESS_S
    deadline_s = time.monotonic() + limit_s
    status: dict[str, Any] | None = None
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise _ended(process, words)
        try:
            status = _ask(session, 1.0)
        except UserError as error:
            if error.code not in ("no_daemon", "daemon_silent"):
                raise
        if status is not None and (status.get("run") or {}).get("link"):
            return status
        time.sleep(POLL_S)
    if status is None:
        raise UserError(
            f"the daemon with pid {process.pid} does not answer within {limit_s:g} s",
            code="daemon_silent",
            exit_code=exits.FAILED,
            hint="it goes on starting; `swarmd logs` shows what it does",
        )
    return status


def _ask(session: Session, timeout_s: float) -> dict[str, Any]:
    from swarmd.local_api.client import ask

    return ask(session.home, "status", timeout_s=timeout_s)


def _ended(process: subprocess.Popen[bytes], words: IO[bytes]) -> UserError:
    """Its own error, as it said it."""
    words.seek(0)
    lines = words.read().decode("utf-8", "replace").splitlines()
    errors = [line for line in lines if line.startswith("swarmd: error:")]
    hints = [line for line in lines if line.startswith("hint:")]
    message = errors[-1].removeprefix("swarmd: error:").strip() if errors else "the daemon ended"
    text, _, code = message.rpartition(" (")
    status = process.returncode
    return UserError(
        text or message,
        code=code.rstrip(")") if text else "daemon_ended",
        exit_code=status if status > 0 else exits.FAILED,
        hint=hints[-1].removeprefix("hint:").strip() if hints else "`swarmd logs` shows more",
    )


def _require_same_run(session: Session, source: RunSource | None, status: dict[str, Any]) -> None:
    if source is None:
        return
    run_id = source.run_id
    if run_id is None and source.plan is not None:
        run_id = source.plan.measure(session.home.cache).config.run_id
    if (status.get("run") or {}).get("id") != run_id:
        raise busy_error(session.home)


def _show(session: Session, status: dict[str, Any], *, already: bool) -> None:
    from swarmd.json_record import render
    from swarmd.records import Joined

    peer, run = status.get("peer") or {}, status.get("run") or {}
    addresses = [str(found.get("addr")) for found in peer.get("addresses") or []]
    record = Joined(
        pid=peer.get("pid") or 0,
        home=str(session.home),
        peer_id=peer.get("id") or "",
        addresses=addresses,
        port=_port(addresses),
        run_id=run.get("id"),
        run_link=run.get("link"),
        already_running=already,
    )
    if session.is_json:
        session.printer.object(render(record))
        return
    if already:
        session.printer.say("the daemon of this home is in that run already")
    session.printer.line(f"pid      {record.pid}")
    session.printer.line(f"address  {', '.join(addresses) or '-'}")
    session.printer.line(f"link     {record.run_link or '-'}")


def _port(addresses: list[str]) -> int | None:
    for address in addresses:
        port = address.partition("/tcp/")[2].partition("/")[0]
        if port.isdigit():
            return int(port)
    return None
