"""What stands in JSON: dataclasses with a schema name, rendered and read by the same few rules.

The rules of docs/cli.md section 5 in one place: every object begins with `schema`,
`schema_version`, `generated_at`, `swarmd_version`; every field is always there, null when unknown;
no NaN, no Infinity; times are RFC 3339 in UTC. Reading is lenient, for a daemon of another version:
unknown fields are kept apart, missing ones are null.

The JSON Schemas that `swarmd schema` prints are made from the same dataclasses (schemas.py).
"""

from __future__ import annotations

import json
import math
import time
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from swarmd import __version__

Time = Annotated[str, "date-time"]
"""RFC 3339, UTC, milliseconds."""
Ratio = Annotated[float, "ratio"]
"""A share in 0..1. Named `_ratio` or `_share`, or `mfu` and `compute_utilisation`."""

_T = TypeVar("_T")


class Record:
    """Base of the objects that leave a command. `SCHEMA` without the `swarmd.`."""

    SCHEMA: ClassVar[str] = ""
    SCHEMA_VERSION: ClassVar[int] = 1


RECORDS: dict[str, type[Record]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def part(cls: type[_T]) -> type[_T]:
    """A frozen, slotted, keyword-only dataclass inside a record.

    They share one __repr__: writing one for each of the fifty would take a quarter of the time in
    which `swarmd status` loads its record.
    """
    made = dataclass(frozen=True, slots=True, kw_only=True, repr=False)(cls)
    made.__repr__ = _shown  # type: ignore[assignment]
    return made


def _shown(value: Any) -> str:
    inside = ", ".join(f"{item.name}={getattr(value, item.name)!r}" for item in fields(value))
    return f"{type(value).__name__}({inside})"


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(name: str, *, version: int = 1) -> Callable[[type[_T]], type[_T]]:
    """As `part`, and registered as `swarmd.NAME`."""

    def wrap(cls: type[_T]) -> type[_T]:
        made = part(cls)
        assert issubclass(made, Record)
        made.SCHEMA, made.SCHEMA_VERSION = name, version
        assert name not in RECORDS, f"two records are named {name}"
        RECORDS[name] = made
        return cast("type[_T]", made)

    return wrap


# --------------------------------------------------------------------------------------------- time


def utc(at_unix_s: float | None = None) -> str:
    """RFC 3339 in UTC with milliseconds; now if not said otherwise."""
    milliseconds = round((time.time() if at_unix_s is None else at_unix_s) * 1000)
    seconds, rest = divmod(milliseconds, 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:03d}Z"


def unix_s(text: str) -> float:
    """The inverse of `utc`. Raises ValueError."""
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


# ---------------------------------------------------------------------------------------- rendering


def render(value: Record, *, generated_at: str | None = None) -> dict[str, Any]:
    """The whole object, ready for JSON."""
    return {
        "schema": f"swarmd.{value.SCHEMA}",
        "schema_version": value.SCHEMA_VERSION,
        "generated_at": generated_at or utc(),
        "swarmd_version": __version__,
        **plain(value),
    }


def plain(value: Any) -> Any:
    """Dataclasses to maps, tuples to lists; what is not finite is not known: null."""
    if is_dataclass(value):
        return {json_name(item): plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_json(value: Mapping[str, Any], *, indent: int | None = None) -> str:
    """One line (or indented) of strict JSON, without the newline at the end."""
    separators = None if indent else (",", ":")
    return json.dumps(
        value, allow_nan=False, ensure_ascii=False, indent=indent, separators=separators
    )


# ------------------------------------------------------------------------------------------ reading


def from_plain(kind: type[_T], found: Any) -> _T:
    """Build `kind` from what another version may have written.

    Unknown fields are ignored; a missing or unfit value becomes the field's default, or null.
    """
    hints = hints_of(kind)  # type: ignore[arg-type]
    given = found if isinstance(found, Mapping) else {}
    values: dict[str, Any] = {}
    for item in fields(kind):  # type: ignore[arg-type]
        value = given.get(json_name(item), MISSING)
        if value is not MISSING:
            value = _fit(hints[item.name], value)
        values[item.name] = _default(item, hints[item.name]) if value is MISSING else value
    return kind(**values)


def json_name(item: Field[Any]) -> str:
    """A field whose name is a Python keyword carries an underscore that JSON does not see."""
    return item.name.removesuffix("_")


@cache
def hints_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def union_members(hint: Any) -> tuple[Any, ...] | None:
    """The members of `A | B`, None if `hint` is no union."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else None


def _default(item: Field[Any], hint: Any) -> Any:
    if item.default is not MISSING:
        return item.default
    if item.default_factory is not MISSING:
        return item.default_factory()
    return from_plain(hint, {}) if is_dataclass(hint) and isinstance(hint, type) else None


def _fit(hint: Any, value: Any) -> Any:
    """The value in the form of `hint`, or MISSING."""
    members = union_members(hint)
    if members is not None:
        if value is None and type(None) in members:
            return None
        fits = (_fit(member, value) for member in members if member is not type(None))
        return next((fit for fit in fits if fit is not MISSING), MISSING)
    origin = get_origin(hint)
    if origin is Annotated:
        return _fit(get_args(hint)[0], value)
    if origin is Literal:  # enums are append-only: a value we do not know is still a value
        return value if isinstance(value, str) else MISSING
    if origin is list:
        if not isinstance(value, list):
            return MISSING
        return [fit for item in value if (fit := _fit(get_args(hint)[0], item)) is not MISSING]
    if origin is tuple:
        return tuple(value) if isinstance(value, list) else MISSING
    if origin is dict:
        return dict(value) if isinstance(value, Mapping) else MISSING
    if hint is Any:
        return value
    if is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value) if isinstance(value, Mapping) else MISSING
    if hint is float:
        return float(value) if type(value) in (int, float) else MISSING
    return value if type(value) is hint else MISSING
