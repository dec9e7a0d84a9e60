"""How the parent talks to its peers: control socket, signals, the files a home promises."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from swarmd.cli.local_swarm.processes import PeerProcess
from swarmd.cli.local_swarm.view import StatusDict, SwarmView, dig
from swarmd.errors import SwarmdError, UserError
from swarmd.home import home_at
from swarmd.home_lock import is_held
from swarmd.local_api.client import Client

REPLY_S = 1.0
"""`status_reply_s`. A peer that needs longer is shown as it was."""


def status_of(home: Path) -> StatusDict | None:
    """The peer's present status, None while it does not answer."""
    try:
        return Client(home_at(home), timeout_s=REPLY_S).ask("status")
    except (SwarmdError, OSError):
        return None


def last_status_of(home: Path) -> StatusDict | None:
    """The status a peer left behind when it stopped."""
    try:
        found: StatusDict = json.loads(home_at(home).last_status_file.read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError):
        return None


def link_in(status: StatusDict | None) -> str | None:
    """The run link, once it names an address."""
    link = dig(status, "run.link")
    return link if isinstance(link, str) and "peer=" in link else None


def inject(home: Path, spec: str = "", *, clear: bool = False) -> bool:
    """Have a peer misbehave (docs/cli.md section 16)."""
    try:
        arguments = {"clear": True} if clear else {"specs": [spec]}
        Client(home_at(home), timeout_s=REPLY_S).ask("inject", arguments)
    except (SwarmdError, OSError):
        return False
    return True


def signal_group(peer: PeerProcess, number: int) -> None:
    """To the daemon and its worker: each peer is a process group of its own."""
    if peer.process is not None and peer.process.poll() is None:
        os.killpg(peer.process.pid, number)


def live_runtime_files(home: Path) -> Iterator[Path]:
    """A socket that still accepts, a lock that somebody still holds."""
    place = home_at(home)
    if is_held(place):
        yield place.lock_file
    if place.control_socket.exists() and status_of(home) is not None:
        yield place.control_socket


def peer_failed_to_start(peer: PeerProcess) -> UserError:
    """The first peer's own last words, as ours."""
    lines = []
    if peer.log.exists():
        lines = peer.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = next((line for line in reversed(lines) if line.startswith("swarmd: error:")), "")
    said = said.removeprefix("swarmd: error:").strip() or "it did not answer in time"
    code = peer.exit_code if peer.exit_code and peer.exit_code > 0 else 1
    hint = next((line for line in reversed(lines) if line.startswith("hint:")), "")
    return UserError(
        f"{peer.name} did not start: {said}",
        code="peer_crashed" if code == 1 else "bad_config",
        exit_code=12 if code == 1 else code,
        hint=hint.removeprefix("hint:").strip() or f"its log is {peer.log}",
    )


def write_summary(path: Path, peers: Sequence[PeerProcess], view: SwarmView) -> None:
    """DIR/local.json: who is who, for scripts that look while it runs."""
    entries: list[dict[str, Any]] = []
    for peer, seen in zip(peers, view.peers, strict=True):
        status = seen.status or status_of(peer.home)
        entries.append(
            {
                "name": peer.name,
                "home": str(peer.home),
                "pid": peer.pid,
                "stage": peer.stage,
                "id": dig(status, "peer.id"),
                "addresses": [a.get("addr") for a in dig(status, "peer.addresses") or []],
            }
        )
    path.write_text(json.dumps({"peers": entries}, indent=1) + "\n", encoding="utf-8")
