"""What is not as it should be, told as health items when somebody asks for the status.

Each function looks at one thing, and holds or clears its own code (docs/troubleshooting.md says
what people can do about each). Reads, decides nothing.
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from swarmd.health import BAD, HealthBook
from swarmd.named_limits import WAN
from swarmd.net.addresses import is_loopback
from swarmd.node.caps_shown import hold_caps
from swarmd.protocols.greeting import PROTOCOL_MAX
from swarmd.status import LastRound, Status

if TYPE_CHECKING:
    from swarmd.node.peer_node import PeerNode

FILES_SHARE_MAX = 0.8
DISK_FREE_MIN_BYTES = 1 << 30
OFFENCES = frozenset(
    {
        "bad_signature", "not_the_owner", "malformed", "hash_mismatch", "not_finite", "too_large",
        "norm_too_large", "wrong_shape", "wrong_dtype", "rate_exceeded", "copy_suspected",
    }
)  # fmt: skip
"""Rejection codes that no honest peer earns by being slow, late or of another opinion."""


def hold_all(
    health: HealthBook, node: PeerNode, status: Status, rejected: Mapping[str, Mapping[str, int]]
) -> None:
    """By the status that is being told. rejected: of each peer that is there, by code."""
    _hold_or_clear(
        health,
        "unreachable_from_outside",
        "no neighbour that was asked could dial this peer" if status.peer.reachable == "no" else "",
        impact="others cannot begin a connection to it",
        fix="open or forward its ports, or say what others can dial with --announce",
    )
    _hold_or_clear(
        health,
        "injection_active",
        "faults on purpose: " + ", ".join(node.faults.active) if node.faults.active else "",
        impact="this peer misbehaves; others are told nothing",
        fix="swarmd debug inject --clear",
    )
    hold_disk(health, node)
    hold_data(health, node.life.home.data)
    hold_machine(health, status.resources.open_fds, free_bytes(node.life.home.data))
    hold_rounds(health, status.last_round)
    hold_peers(health, rejected)
    addresses = [shown.addr for shown in status.peer.addresses]
    is_local = node.run is not None and node.run.time_scale == "local"
    hold_addresses(health, addresses, is_local=is_local)
    if node.transport is not None:
        hold_caps(health, node.transport.caps(), status.progress.round_median_s)
    if node.machine is not None:
        present = node.machine.membership.view(trio.current_time()).present()
        hold_versions(health, [peer.record.protocol_max for peer in present])
    if node.watchers is not None:
        hold_growth(health, node.watchers.growth.bytes_per_min)
    repairs = "; ".join(node.life.identity.repairs)
    _hold_or_clear(
        health,
        "key_mode_repaired",
        repairs,
        impact="whoever could read it before could be this peer",
        fix="if others use this machine: `swarmd identity show`, and begin anew with another key",
    )


def hold_disk(health: HealthBook, node: PeerNode) -> None:
    """The last checkpoint, as it could or could not be written."""
    code = "" if node.machine is None else node.machine.work.checkpoints.failed_code
    used, limit = node.quota.used_bytes or 0, node.settings.disk_limit or 0
    impact = "training goes on; after a crash more of it would be done again"
    text = (
        f"the last checkpoint was not kept: {used / 1e9:.3g} GB of {limit / 1e9:.3g} GB are in use"
    )
    _hold_or_clear(
        health,
        "disk_limit",
        text if code == "disk_limit" else "",
        impact=impact,
        fix="raise `--disk-limit`, or remove runs that are over (`swarmd paths`)",
    )
    if code and code in BAD:
        text = f"the last checkpoint could not be written below {node.life.home.checkpoints}"
        health.hold(code, text, impact=impact, fix="make room, or move the data directory")


def hold_data(health: HealthBook, data: Path) -> None:
    """The next checkpoint makes it anew; what was in it is lost."""
    if not data.is_dir():
        health.hold(
            "disk_error",
            f"{data} is gone, and with it this peer's checkpoints",
            impact="after a restart it would have to fetch its stage's state from others",
            fix="if it was moved, put it back; else the next checkpoint makes it anew",
        )


def free_bytes(path: Path) -> int:
    """Where it is, or would be."""
    there = next(place for place in (path, *path.parents) if place.exists())
    return shutil.disk_usage(there).free


def hold_machine(health: HealthBook, open_fds: int | None, disk_free_bytes: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    is_full = open_fds is not None and open_fds > FILES_SHARE_MAX * most
    _hold_or_clear(
        health,
        "fd_nearly_full",
        f"{open_fds} of {most} open files are in use" if is_full else "",
        impact="connections of further peers would fail",
        fix="`ulimit -n 65536`, or LimitNOFILE in the unit",
    )
    is_full = disk_free_bytes < DISK_FREE_MIN_BYTES
    _hold_or_clear(
        health,
        "disk_nearly_full",
        f"{disk_free_bytes / 1e9:.2g} GB are free where checkpoints go" if is_full else "",
        impact="the next checkpoint may find no place",
        fix="make room, or set `--disk-limit`",
    )


def hold_growth(health: HealthBook, bytes_per_min: float | None) -> None:
    most = WAN.memory_growth_bytes_per_min
    is_growing = bytes_per_min is not None and bytes_per_min > most
    _hold_or_clear(
        health,
        "memory_growing",
        f"the daemon takes {(bytes_per_min or 0) / 1e6:.2g} MB more every minute"
        if is_growing
        else "",
        impact="in the end the system would stop it",
        fix="please report it, with `swarmd bugreport`; `swarmd leave` and `join` mend it for now",
    )


def hold_rounds(health: HealthBook, last: LastRound) -> None:
    """How the last exchange between the replicas of our stage went."""
    missing = ", ".join(f"·{found.peer[-4:]} ({found.code})" for found in last.missing)
    _hold_or_clear(
        health,
        "round_partial",
        f"round {last.round} ended without {missing}" if last.outcome == "partial" else "",
        impact="their progress of that round is in no mean",
        fix="`swarmd peers` shows slow links; nothing else if it passes",
    )
    late = last.late_updates or 0
    _hold_or_clear(
        health,
        "late_updates",
        f"{_updates(late)} of round {last.round} came after its deadline" if late else "",
        impact="the round waited for them, and went on without",
        fix="`swarmd peers` shows slow links; deadlines adapt",
    )
    rejected = last.rejected_updates or 0
    whose = missing or "of peers that have no part in it"
    _hold_or_clear(
        health,
        "updates_rejected",
        f"left out of round {last.round}: {_updates(rejected)}, {whose}" if rejected else "",
        impact="none: that is what they are looked at for",
        fix="`swarmd peers --json` counts them by peer and code",
    )


def _updates(count: int) -> str:
    return f"{count} update" + "s" * (count != 1)


def hold_peers(health: HealthBook, rejected: Mapping[str, Mapping[str, int]]) -> None:
    """rejected: of each peer that is there, how often what it sent broke which rule."""
    guilty = []
    for peer, counts in sorted(rejected.items()):
        codes = [f"{count} {code}" for code, count in sorted(counts.items()) if code in OFFENCES]
        if codes:
            guilty.append(f"·{peer[-4:]}: {', '.join(codes)}")
    _hold_or_clear(
        health,
        "peer_misbehaving",
        "; ".join(guilty),
        impact="none: it was refused and counted",
        fix="nothing; or ask whoever runs that peer",
    )


def hold_versions(health: HealthBook, theirs: Iterable[int]) -> None:
    """theirs: the newest protocol of each peer that is there."""
    newest = max(theirs, default=PROTOCOL_MAX)
    _hold_or_clear(
        health,
        "behind_protocol",
        f"peers here speak protocol {newest}, this one up to {PROTOCOL_MAX}"
        if newest > PROTOCOL_MAX
        else "",
        impact="none while the run allows the older one",
        fix="install the newer version, then `swarmd leave` and `join`",
    )


def hold_addresses(health: HealthBook, addresses: Sequence[str], *, is_local: bool) -> None:
    """is_local: all of the run is on one machine, so loopback is right."""
    only = bool(addresses) and all(map(is_loopback, addresses)) and not is_local
    _hold_or_clear(
        health,
        "only_loopback_announced",
        "others are told addresses that work on this machine alone" if only else "",
        impact="nobody else can begin a connection to this peer",
        fix="`--listen 0.0.0.0:PORT`, or `--announce` what is forwarded to it",
    )


def _hold_or_clear(health: HealthBook, code: str, text: str, *, impact: str, fix: str) -> None:
    """An empty text: all is well."""
    if text:
        health.hold(code, text, impact=impact, fix=fix)
    else:
        health.clear(code)
