"""What `--event 'WHEN ACTION'` says: something to do to the swarm, and when.

    20s kill p2          round=3 freeze p1 5s       30s restart p2      40s leave p3
    45s join             50s cut p0,p1|p2,p3        60s heal           20s inject p1 nan_update

Times count from the start of the command. Each event comes due at most once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from swarmd.errors import UserError
from swarmd.injection import parse_injection
from swarmd.units import BadValue, parse_duration

ACTIONS = {
    "kill": "kill pN",
    "freeze": "freeze pN 5s",
    "restart": "restart pN",
    "leave": "leave pN",
    "join": "join",
    "cut": "cut p0,p1|p2,p3",
    "heal": "heal",
    "inject": "inject pN nan_update",
}
"""Each action with a right example."""

_PEER = re.compile(r"p(\d{1,4})")


@dataclass(frozen=True, slots=True)
class Event:
    """One of `at_s`, `at_round`, `at_step` is set. `peers`: numbers; `far_side`: of a cut."""

    text: str
    action: str
    at_s: float | None = None
    at_round: int | None = None
    at_step: int | None = None
    peers: tuple[int, ...] = ()
    far_side: tuple[int, ...] = ()
    duration_s: float | None = None
    spec: str = ""
    """Of a fault on purpose."""

    def is_due(self, elapsed_s: float, round_number: int, step: int) -> bool:
        if self.at_s is not None:
            return elapsed_s >= self.at_s
        if self.at_round is not None:
            return round_number >= self.at_round
        return step >= (self.at_step or 0)


def parse_event(text: str, peer_count: int) -> Event:
    """Raises UserError (exit 2) with the value, what is wrong with it, and a right example."""
    words = text.split()
    if len(words) < 2 or words[1] not in ACTIONS:
        raise _wrong(text, "has the form 'WHEN ACTION', with one of " + ", ".join(ACTIONS))
    action, rest = words[1], words[2:]
    try:
        when = _parse_when(words[0])
        arguments = _parse_arguments(action, rest, peer_count)
    except (BadValue, ValueError) as error:
        raise _wrong(text, str(error), f"'20s {ACTIONS[action]}'") from None
    return Event(text=text, action=action, **when, **arguments)  # type: ignore[arg-type]


def _wrong(text: str, fault: str, example: str = "'20s kill p2'") -> UserError:
    return UserError(
        f"--event {text!r}: {fault}", code="usage", exit_code=2, hint=f"a right one: {example}"
    )


def _parse_when(word: str) -> dict[str, float | int]:
    name, _, number = word.partition("=")
    if number:
        if name not in ("round", "step") or not number.isdigit():
            raise ValueError(f"{word!r} is neither a time, round=N nor step=N")
        return {f"at_{name}": int(number)}
    return {"at_s": parse_duration(word)}


def _parse_arguments(action: str, rest: list[str], peer_count: int) -> dict[str, object]:
    wanted = len(ACTIONS[action].split()) - 1
    if len(rest) != wanted:
        raise ValueError(f"`{action}` takes {wanted} arguments")
    if action in ("join", "heal"):
        return {}
    if action == "cut":
        near, bar, far = rest[0].partition("|")
        if not bar:
            raise ValueError("a cut has two sides with a | between them")
        return {
            "peers": tuple(_peer(name, peer_count) for name in near.split(",")),
            "far_side": tuple(_peer(name, peer_count) for name in far.split(",")),
        }
    arguments: dict[str, object] = {"peers": (_peer(rest[0], peer_count),)}
    if action == "freeze":
        arguments["duration_s"] = parse_duration(rest[1])
    elif action == "inject":
        arguments["spec"] = parse_injection(rest[1]).text
    return arguments


def _peer(name: str, peer_count: int) -> int:
    match = _PEER.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no peer; they are called p0 to p{peer_count - 1}")
    return int(match[1])
