"""What `swarmd wait --for` waits for: a condition on the status (docs/cli.md 3.4).

Numbers mean "at least". Three answers: it holds, not yet, or it can no longer become true.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from swarmd.protocols.reasons import STATE_OF_CODE, STATES
from swarmd.units import BadValue

Verdict = Literal["holds", "not_yet", "never"]

EXAMPLE = "joined, training, round=3, peers=4 or reason=mixing"
_FORM = re.compile(r"(\w+)(!?=)(.+)")
_OVER = ("stopped", "failed")
_NOT_IN_YET = ("starting", "joining", *_OVER)


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed `--for`. `test` looks at a status object."""

    text: str
    test: Callable[[Mapping[str, Any]], bool]
    holds_without_daemon: bool = False

    def judge(self, status: Mapping[str, Any]) -> Verdict:
        if self.test(status):
            return "holds"
        return "never" if status.get("state") in _OVER else "not_yet"


def parse_condition(text: str) -> Condition:
    """Raises BadValue."""
    named = _NAMED.get(text)
    if named is not None:
        return Condition(text, named, holds_without_daemon=text == "stopped")
    match = _FORM.fullmatch(text)
    if match is None:
        near = difflib.get_close_matches(text, _NAMED, n=1)
        raise BadValue(
            text, "is no condition" + (f" (did you mean {near[0]}?)" if near else ""), EXAMPLE
        )
    name, sign, value = match.groups()
    if name == "state" and sign == "=":
        _known(text, value, STATES)
        return Condition(text, lambda status: status.get("state") == value)
    if name == "reason":
        _known(text, value, tuple(STATE_OF_CODE))
        wanted = sign == "="
        return Condition(text, lambda status: (_at(status, "reason.code") == value) == wanted)
    path = _COUNTED.get(name)
    if path is None or sign != "=":
        raise BadValue(text, "is no condition", EXAMPLE)
    if not (value.isascii() and value.isdigit()):
        raise BadValue(text, f"needs a number after {name}=", EXAMPLE)
    least = int(value)
    return Condition(text, lambda status: _is_at_least(_at(status, path), least))


def _at(status: Mapping[str, Any], path: str) -> Any:
    found: Any = status
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _is_at_least(value: Any, least: int) -> bool:
    return isinstance(value, (int, float)) and value >= least


def _known(text: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        fault = f"names {value!r}, which does not exist{_guess(value, known)}"
        raise BadValue(text, fault, EXAMPLE)


def _guess(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _is_joined(status: Mapping[str, Any]) -> bool:
    """Known and talking to the run; a founder is in its swarm at once."""
    return status.get("state") not in (*_NOT_IN_YET, None)


def _is_synced(status: Mapping[str, Any]) -> bool:
    """Holds the state of its stage, or needs none."""
    has_what_it_needs = status.get("stage") is not None or _at(status, "peer.observer") is True
    return _is_joined(status) and status.get("state") != "syncing" and has_what_it_needs


_NAMED: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "reachable": lambda status: _at(status, "peer.reachable") == "yes",
    "joined": _is_joined,
    "synced": _is_synced,
    "training": lambda status: status.get("state") == "training",
    "stopped": lambda status: status.get("state") == "stopped",
}
_COUNTED = {
    "round": "progress.outer_round",
    "step": "progress.inner_step",
    "peers": "peers.alive",
    "contributing": "peers.contributing",
}
