"""The small files of a home: incarnation, last exit, peers that answered before, known runs.

Each is written whole or not at all (store.py). They survive every end of the daemon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from swarmd.errors import Corrupt, UserError
from swarmd.home import Home
from swarmd.protocols.ids import PeerId, RunId
from swarmd.run_config import InvalidRun, RunConfig, run_from_canonical
from swarmd.run_link import PeerAddress, parse_peer_address
from swarmd.store import read_bytes, read_json, write_bytes, write_json
from swarmd.units import BadValue

KNOWN_PEERS_MAX = 256
"""Enough to find a large swarm again, few enough to be written often."""


# -------------------------------------------------------------------------------------- incarnation


def read_incarnation(home: Home) -> int:
    """That of the last start; 0 before the first. Raises Corrupt."""
    body = read_bytes(home.incarnation_file, bytes_max=64)
    if body is None:
        return 0
    text = body.strip()
    if not text.isdigit():
        raise Corrupt(home.incarnation_file, "is no number")
    return int(text)


def raise_incarnation(home: Home, *, at_least: int = 0) -> int:
    """The new incarnation, on disk before it is returned, so that no start ever repeats one.

    at_least: what the swarm remembers of this identity, where that is more than we do.
    """
    incarnation = max(read_incarnation(home) + 1, at_least)
    write_bytes(home.incarnation_file, f"{incarnation}\n".encode())
    return incarnation


def has_lived(home: Home) -> bool:
    """Whether a daemon ever got so far here as to have an incarnation."""
    return home.incarnation_file.exists()


# ---------------------------------------------------------------------------------------- last exit


@dataclass(frozen=True, slots=True, kw_only=True)
class LastExit:
    """How the daemon ended, written as its last act."""

    code: str
    """A reason code, or an error code of section 6."""
    exit_code: int
    text: str
    at: str
    """RFC 3339."""
    pid: int | None = None
    run_id: str | None = None
    hint: str = ""
    """What the user can do, if anything."""


def write_last_exit(home: Home, last: LastExit) -> None:
    write_json(home.last_exit_file, asdict(last))


def read_last_exit(home: Home) -> LastExit | None:
    """None if no daemon ever ended in order here, or the file is not one of ours."""
    try:
        found = read_json(home.last_exit_file)
    except Corrupt:
        return None
    known = LastExit.__dataclass_fields__
    try:
        return LastExit(**{key: found[key] for key in found if key in known})
    except TypeError:
        return None


def clear_last_exit(home: Home) -> None:
    """At a start: what is left behind by a daemon that was killed must not look like an end."""
    home.last_exit_file.unlink(missing_ok=True)


# -------------------------------------------------------------------------------------- known peers


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPeer:
    """A peer that answered before: where to look when every entry address is dead."""

    peer: PeerId
    name: str
    addresses: tuple[str, ...]
    """Without the /p2p part."""
    seen_at: str

    def entries(self) -> tuple[PeerAddress, ...]:
        return tuple(PeerAddress(self.peer, base) for base in self.addresses)


def write_known_peers(home: Home, run_id: RunId, peers: Sequence[KnownPeer]) -> None:
    """Keeps the last seen ones, and nothing of another run."""
    kept = sorted(peers, key=lambda peer: (peer.seen_at, peer.peer), reverse=True)
    write_json(
        home.known_peers_file,
        {"run_id": run_id, "peers": [asdict(peer) for peer in kept[:KNOWN_PEERS_MAX]]},
    )


def read_known_peers(home: Home, run_id: RunId) -> tuple[KnownPeer, ...]:
    """Those of this run, last seen first. What cannot be read is left out: it is only a memory."""
    try:
        found = read_json(home.known_peers_file)
    except Corrupt:
        return ()
    if not isinstance(found, dict) or found.get("run_id") != run_id:
        return ()
    listed = found.get("peers")
    peers = [_known_peer(item) for item in listed] if isinstance(listed, list) else []
    return tuple(peer for peer in peers if peer is not None)


def _known_peer(item: object) -> KnownPeer | None:
    if not isinstance(item, dict):
        return None
    try:
        bases = [parse_peer_address(f"{base}/p2p/{item['peer']}") for base in item["addresses"]]
        return KnownPeer(
            peer=PeerId(item["peer"]),
            name=str(item["name"]),
            addresses=tuple(entry.base for entry in bases),
            seen_at=str(item["seen_at"]),
        )
    except (KeyError, TypeError, BadValue):
        return None


# --------------------------------------------------------------------------------------- known runs


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run this home has taken part in, or was told to create."""

    config: RunConfig
    file: Path
    entries: tuple[PeerAddress, ...]
    used_at: str


def remember_run(
    home: Home, config: RunConfig, entries: Sequence[PeerAddress], *, used_at: str
) -> Path:
    """Keep the description and the entry addresses; the run used last is the default of `join`."""
    home.runs.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = home.runs / f"{config.run_id}.run"
    write_bytes(file, config.canonical())
    write_json(
        file.with_suffix(".json"),
        {
            "name": config.name,
            "used_at": used_at,
            "entries": [str(entry) for entry in entries],
        },
    )
    return file


def known_runs(home: Home) -> list[KnownRun]:
    """Last used first. A file that is no run, or not the one its name says, is left out."""
    runs = []
    for file in sorted(home.runs.glob("*.run")):
        try:
            config = run_from_canonical(read_bytes(file) or b"")
            about = read_json(file.with_suffix(".json")) or {}
        except (InvalidRun, Corrupt):
            continue
        if config.run_id != file.stem or not isinstance(about, dict):
            continue
        runs.append(
            KnownRun(config, file, _entries(about.get("entries")), str(about.get("used_at", "")))
        )
    return sorted(runs, key=lambda run: (run.used_at, run.config.run_id), reverse=True)


def find_run(home: Home, name: str) -> KnownRun | None:
    """By name, id or a prefix of at least 4 digits. Raises UserError if several match."""
    runs = known_runs(home)
    found = [run for run in runs if run.config.name == name or run.config.run_id == name]
    if not found and len(name) >= 4:
        found = [run for run in runs if run.config.run_id.startswith(name)]
    if len(found) > 1:
        listed = ", ".join(run.config.run_id[:12] for run in found)
        raise UserError(
            f"{name!r} names several runs of this home: {listed}",
            code="ambiguous_run",
            exit_code=2,
            hint="give more digits of the run id",
        )
    return found[0] if found else None


def forget_run(run: KnownRun) -> None:
    run.file.with_suffix(".json").unlink(missing_ok=True)
    run.file.unlink(missing_ok=True)


def _entries(listed: object) -> tuple[PeerAddress, ...]:
    entries = []
    for text in listed if isinstance(listed, list) else []:
        try:
            entries.append(parse_peer_address(str(text)))
        except BadValue:
            continue
    return tuple(entries)
