"""The peer of this home: identity, files, ports, and whether the run can be spoken with."""

from __future__ import annotations

import errno
import socket
import stat
from collections.abc import Iterator
from typing import Any

from swarmd.cli import format as f
from swarmd.data.at_hand import is_at_hand
from swarmd.errors import SwarmdError
from swarmd.home import Home
from swarmd.peer_config import PeerConfig
from swarmd.result_records import Finding
from swarmd.run_config import RunConfig


def findings(home: Home, config: PeerConfig, status: dict[str, Any] | None) -> Iterator[Finding]:
    """status: of the daemon, if one runs and answers."""
    yield _identity(home)
    yield from _files(home)
    yield _ports(config) if status is None else _reachability(status)
    yield _service()


def _identity(home: Home) -> Finding:
    from swarmd.identity import BACKUP_NOTE, load
    from swarmd.store import read_json

    if not home.identity_key.exists() and not home.has_older_state():
        return Finding(check="identity", severity="ok", text="none yet; the first `join` makes one")
    try:
        found = load(home.identity_key)
        note = read_json(home.state / BACKUP_NOTE)
    except SwarmdError as error:
        hint = getattr(error, "hint", "") or "`swarmd identity restore FILE` from a backup"
        return Finding(check="identity", severity="error", text=str(error), fix=hint)
    mode = f"{found.file.stat().st_mode & 0o7777:04o}"
    text = f"·{found.peer_id[-4:]}, mode {mode}"
    at = note.get("at") if isinstance(note, dict) else None
    if at is None:
        return Finding(
            check="identity",
            severity="warn",
            text=f"{text}, never backed up: without the key what was counted for it is lost",
            fix="`swarmd identity backup FILE`, and keep FILE secret",
        )
    return Finding(check="identity", severity="ok", text=f"{text}, backed up {f.ago(at)}")


def _files(home: Home) -> Iterator[Finding]:
    """Folders are the user's alone (0700), files 0600."""
    folders = [folder for folder in home.directories() if folder.exists()]
    secret = [home.identity_key, home.control_socket, home.log_file, home.events_file]
    paths = [*folders, *(path for path in secret if path.exists())]
    open_ones = [path for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if open_ones:
        yield Finding(
            check="files",
            severity="warn",
            text=f"others may read {', '.join(map(str, open_ones))}",
            fix=f"`chmod go= {' '.join(map(str, open_ones))}`",
        )
    else:
        yield Finding(check="files", severity="ok", text=f"{len(paths)} places, all yours alone")


def _ports(config: PeerConfig) -> Finding:
    """No daemon runs: whether the ports can be had. Whether others reach them, only they know."""
    host = config.listen.host if config.listen else "0.0.0.0"
    wanted = [port for port in (config.libp2p_port, config.wanted_bulk_port) if port]
    taken = [port for port in wanted if not _is_free(host, port)]
    listed = ", ".join(f"{port}/tcp" for port in wanted) or "any"
    if taken:
        busy = ", ".join(map(str, taken))
        return Finding(
            check="port",
            severity="warn",
            text=f"{busy} in use by another program",
            fix="another one with `--port N`, or 0 for any free one",
        )
    return Finding(
        check="port",
        severity="ok",
        text=f"{listed} free; whether others reach it shows once the peer has joined",
    )


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno not in (errno.EADDRINUSE, errno.EACCES)
    return True


def _reachability(status: dict[str, Any]) -> Finding:
    """What neighbours found who were asked to dial back."""
    peer = status.get("peer") or {}
    listed = ", ".join(str(item.get("addr")) for item in peer.get("addresses") or []) or "nothing"
    match peer.get("reachable"):
        case "yes":
            return Finding(check="port", severity="ok", text=f"{listed}, reached by a neighbour")
        case "no":
            return Finding(
                check="port",
                severity="error",
                text=f"{listed} is not reachable from outside",
                fix="forward the port to this host, or give `--announce`; else a relay is used",
            )
    return Finding(
        check="port", severity="ok", text=f"{listed}; nobody has been asked yet to dial it"
    )


def _service() -> Finding:
    """A unit that kills before the drain has ended throws work away at every stop."""
    from swarmd.cli.service_unit import TIMEOUT_STOP_S, installed, stop_timeout_s
    from swarmd.named_limits import WAN

    units = installed()
    if not units:
        return Finding(check="service", severity="ok", text="none is installed")
    least = WAN.drain_deadline_s + WAN.stop_grace_s
    for path in units:
        stop_s = stop_timeout_s(path.read_text(encoding="utf-8", errors="replace"))
        if stop_s is None or stop_s <= least:
            said = "none" if stop_s is None else f"{stop_s:g} s"
            return Finding(
                check="service",
                severity="warn",
                text=f"{path}: TimeoutStopSec is {said}, a drain takes up to {least:g} s",
                fix=f"TimeoutStopSec={TIMEOUT_STOP_S:g}, or `swarmd service install` again",
            )
    text = f"{units[0]}: TimeoutStopSec > drain {WAN.drain_deadline_s:g} s"
    return Finding(check="service", severity="ok", text=f"{text} + {WAN.stop_grace_s:g} s")


def run_findings(run: RunConfig, home: Home, config: PeerConfig) -> Iterator[Finding]:
    """Versions, and room for this run's checkpoints."""
    from swarmd.protocols.greeting import PROTOCOL_MAX, PROTOCOL_MIN

    text = (
        f"speaks protocol {PROTOCOL_MIN}..{PROTOCOL_MAX}, "
        f"the run needs {run.protocol_min}..{run.protocol_max}"
    )
    fits = run.protocol_min <= PROTOCOL_MAX and PROTOCOL_MIN <= run.protocol_max
    yield Finding(
        check="versions",
        severity="ok" if fits else "error",
        text=text,
        fix=None if fits else "install the version that the others run",
    )
    yield _data(run, home, config)


def _data(run: RunConfig, home: Home, config: PeerConfig) -> Finding:
    """Only first stages read the data; whoever does not have it takes another."""
    source = config.data_source or run.data.source
    if is_at_hand(run, home.cache, config.data_source):
        return Finding(check="data", severity="ok", text=source)
    return Finding(
        check="data",
        severity="warn",
        text=f"{source} is not on this machine, so it can hold no first stage",
        fix="put the same files there, or name where they are with `--data-source`",
    )
