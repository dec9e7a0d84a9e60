"""Faults on purpose: KIND[=PARAM][@WHEN], as in docs/cli.md section 16.

    nan_update@round=3      drop_forward=0.1      slow=4@after=10s      cut=k4Qe,Pq0d

Only the grammar and the list of kinds live here; who suffers what is with each subsystem. Runs
whose file does not say `allow_injection = true` refuse every attempt with 77.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from swarmd.errors import UserError
from swarmd.units import BadValue, parse_duration, parse_rate, parse_size

Trigger = Literal["now", "round", "step", "after"]


@dataclass(frozen=True, slots=True)
class Injection:
    """One parsed fault. `text` is what was written and what `status` lists."""

    kind: str
    param: Any
    trigger: Trigger
    at: float
    """The round, the step, or seconds from now; 0 with `now`."""
    text: str


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise BadValue(text, "is no number", "2") from None
        if not low <= value <= high:
            raise BadValue(text, f"is not in {low:g}..{high:g}", f"{max(low, min(high, 1)):g}")
        return value

    return parse


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise BadValue(text, "is no whole number", "2")
    return int(text)


def _shift(text: str) -> float:
    """A duration with a sign."""
    sign = -1.0 if text.startswith("-") else 1.0
    return sign * parse_duration(text.lstrip("+-"))


def _step(text: str) -> int:
    if text not in ("+1", "-1"):
        raise BadValue(text, "is neither +1 nor -1", "+1")
    return int(text)


def _ids(text: str) -> tuple[str, ...]:
    ids = tuple(part.strip() for part in text.split(","))
    if not all(ids):
        raise BadValue(text, "is no list of peers", "k4Qe,Pq0d")
    return ids


def _word(text: str) -> str:
    return text


REQUIRED = object()
"""In place of a default: this kind means nothing without its parameter."""
_SHARE = _number(0.0, 1.0)
_ANY = _number(0.0, 1e9)

KINDS: dict[str, tuple[Callable[[str], Any] | None, Any, str]] = {
    "nan_update": (None, None, "sends an outer update of NaN"),
    "inf_update": (None, None, "sends an outer update of infinity"),
    "zero_update": (None, None, "sends an outer update of zeros"),
    "sign_flip": (None, None, "sends its outer update with the sign turned round"),
    "huge_update": (_ANY, 1000.0, "sends its outer update that many times too large"),
    "stale_update": (_whole, 1, "sends the update of that many rounds ago"),
    "copy_update": (None, None, "sends a neighbour's update as its own"),
    "repeat_batch": (None, None, "trains on one batch only"),
    "wrong_shape": (None, None, "sends a tensor of another shape"),
    "wrong_dtype": (None, None, "sends a tensor of another type"),
    "wrong_stage": (None, None, "sends what belongs to another stage"),
    "wrong_round": (None, None, "sends what belongs to another round"),
    "nan_activation": (_SHARE, 1.0, "spoils this share of its micro-batches"),
    "drop_forward": (_SHARE, 1.0, "drops this share of activations"),
    "drop_gradient": (_SHARE, 1.0, "drops this share of gradients"),
    "lie_samples": (_ANY, 10.0, "claims that many times the samples it processed"),
    "lie_speed": (_ANY, 10.0, "claims that many times the speed it has"),
    "forge_receipt": (None, None, "signs receipts for others"),
    "forge_record": (None, None, "changes the records of others"),
    "spoof_id": (None, None, "speaks as another peer"),
    "replay": (_whole, 1, "sends old messages again, for that many rounds"),
    "corrupt_chunk": (_SHARE, 1.0, "serves this share of chunks with wrong bytes"),
    "serve_stall": (_SHARE, 0.5, "stops serving after this share of a transfer"),
    "serve_rate": (parse_rate, 1000.0, "serves that slowly"),
    "refuse_serving": (None, None, "serves nobody"),
    "empty_manifest": (None, None, "offers a manifest with nothing in it"),
    "missing_chunks": (_SHARE, 0.5, "lacks this share of what it offers"),
    "gossip_flood": (_ANY, 10_000.0, "sends that many control messages a second"),
    "big_message": (parse_size, 100_000_000, "sends a control message of that size"),
    "garbage": (_ANY, 100.0, "sends that many meaningless messages a second"),
    "gossip_delay": (parse_duration, 5.0, "holds back its own control messages"),
    "cut": (_ids, REQUIRED, "loses everything to and from these peers"),
    "slow": (_number(1.0, 1e6), 10.0, "computes that many times slower"),
    "busy_start": (parse_duration, 60.0, "blocks at start"),
    "oom": (_SHARE, None, "runs out of device memory: once, or at this share of jobs"),
    "device_lost": (_SHARE, None, "loses its device: once, or at this share of jobs"),
    "worker_exit": (_SHARE, None, "loses its compute worker: once, or at this share of jobs"),
    "task_exit": (_word, REQUIRED, "one of its internal tasks ends"),
    "short_read": (None, None, "an internal channel reads short"),
    "wedge": (_word, REQUIRED, "hangs in this phase"),
    "clock": (_shift, REQUIRED, "sees a shifted wall clock"),
    "protocol": (_step, REQUIRED, "pretends to be another protocol version"),
    "disk_full": (None, None, "gets this from its disk"),
    "fsync_error": (None, None, "gets this from its disk"),
}
"""Kind to (parser of its parameter, or None if it takes none; default; what the peer does)."""

LIES_OF_THE_WORKER = (
    "nan_update",
    "inf_update",
    "zero_update",
    "sign_flip",
    "huge_update",
    "stale_update",
    "copy_update",
    "wrong_shape",
    "wrong_dtype",
)
"""About what is mixed."""
OF_THE_WORKER = frozenset(
    {
        "oom",
        "device_lost",
        "worker_exit",
        "wedge",
        "slow",
        "busy_start",
        "repeat_batch",
        *LIES_OF_THE_WORKER,
    }
)
"""What the compute worker carries out."""

EXAMPLE = "slow=4@after=10s"


def parse_injection(text: str) -> Injection:
    """Raises BadValue."""
    what, at_sign, when = text.partition("@")
    kind, equals, param = what.partition("=")
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        guess = f" (did you mean {near[0]}?)" if near else ""
        raise BadValue(text, f"names no kind of fault{guess}", EXAMPLE)
    parse, default, _ = KINDS[kind]
    if equals and parse is None:
        raise BadValue(text, f"gives {kind} a parameter, which it does not take", kind)
    if not equals and default is REQUIRED:
        raise BadValue(text, f"gives {kind} no parameter, which it needs", EXAMPLE)
    try:
        value = parse(param) if equals and parse is not None else default
        trigger, at = _when(when) if at_sign else ("now", 0.0)
    except BadValue as error:
        raise BadValue(text, f"holds {error.value!r}, which {error.fault}", EXAMPLE) from None
    return Injection(kind, value, trigger, at, text)


def parse_injection_of_peer(text: str) -> tuple[str, Injection]:
    """`pN:SPEC`, as `swarmd local` takes it. Raises BadValue."""
    name, colon, spec = text.partition(":")
    if not colon or not (name.startswith("p") and name[1:].isdigit()):
        raise BadValue(text, "does not begin with a peer, as p2:", f"p2:{EXAMPLE}")
    return name, parse_injection(spec)


def not_allowed() -> UserError:
    """What every attempt gets in a run that does not allow it."""
    return UserError(
        "this run does not allow fault injection",
        code="injection_not_allowed",
        exit_code=77,
        hint="only runs whose file says `allow_injection = true` do, and those of `swarmd local`",
    )


def _when(text: str) -> tuple[Trigger, float]:
    trigger, _, value = text.partition("=")
    if text == "now":
        return "now", 0.0
    if trigger == "round":
        return "round", float(_whole(value))
    if trigger == "step":
        return "step", float(_whole(value))
    if trigger == "after":
        return "after", parse_duration(value)
    raise BadValue(text, "is no time: now, round=N, step=N or after=DUR", EXAMPLE)
