"""Declares the fields of a message with their bounds, and checks values against them.

A message is a value (values.py) whose fields say what may stand in them:

    @message(40)
    class Busy:
        retry_in_s: float = seconds()

Bounds are checked both ways: on decode a violation is the peer's fault (RemoteProtocolError), on
encode it is ours (LocalProtocolError). On the wire a message is `[number, {field: value}]` in
msgpack, or `[number, [value, ...]]` where names would weigh as much as what they name. Unknown
fields are ignored, unknown numbers refused, a missing field takes its default or is refused if it
has none. Numbers are append-only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar, dataclass_transform

from swarmd.protocols import limits

Check = Callable[[Any], Any]
"""Returns the value in its Python form, or raises ValueError with what is wrong."""

_NONE_YET = object()
_T = TypeVar("_T")


class Message:
    """Base of every message. `NUMBER` is its type on the wire."""

    NUMBER: int = -1
    IN_ORDER: bool = False
    """Values travel in the order of the fields, without their names. New fields come last."""
    __slots__ = ()


REGISTRY: dict[int, type[Message]] = {}


def _declare(check: Check, default: Any) -> Any:
    metadata = {"check": check}
    if default is _NONE_YET:
        return field(metadata=metadata)
    if isinstance(default, (dict, list)):
        kind = type(default)
        return field(default_factory=lambda: kind(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(_declare, field))
def message(number: int, *, in_order: bool = False) -> Callable[[type[_T]], type[_T]]:
    """Make a slotted, keyword-only dataclass, frozen as in values.py, and give it its number."""

    def wrap(cls: type[_T]) -> type[_T]:
        made = dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)
        made.NUMBER = number  # type: ignore[attr-defined]
        made.IN_ORDER = in_order  # type: ignore[attr-defined]
        assert number not in REGISTRY, f"number {number} is taken by {REGISTRY.get(number)}"
        REGISTRY[number] = made  # type: ignore[assignment]
        return made

    return wrap


# ------------------------------------------------------------------------------ single values


def _integer(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"not an integer in {low}..{high}")
        return value

    return check


def _number(low: float, high: float) -> Check:
    def check(value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
            raise ValueError(f"not a number in {low}..{high}")
        return float(value)

    return check


def _text(chars_max: int) -> Check:
    def check(value: Any) -> str:
        if type(value) is not str or len(value) > chars_max:
            raise ValueError(f"not a text of at most {chars_max} characters")
        return value

    return check


def _raw(bytes_max: int) -> Check:
    def check(value: Any) -> bytes:
        if not isinstance(value, bytes) or len(value) > bytes_max:
            raise ValueError(f"not bytes of at most {bytes_max}")
        return value

    return check


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("not a boolean")
    return value


def optional_check(inner: Check) -> Check:
    return lambda value: None if value is None else inner(value)


def sequence_check(inner: Check, items_max: int) -> Check:
    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)) or len(value) > items_max:
            raise ValueError(f"not a list of at most {items_max}")
        return tuple(inner(item) for item in value)

    return check


def nested_check(kind: type[Message]) -> Check:
    def check(value: Any) -> Message:
        if isinstance(value, kind):
            return value
        return from_fields(kind, value)

    return check


# -------------------------------------------------------------------------------- field specifiers


def uint(high: int = limits.COUNT_MAX, *, low: int = 0, default: Any = _NONE_YET) -> Any:
    """An integer in low..high."""
    return _declare(_integer(low, high), default)


def number(low: float, high: float, *, default: Any = _NONE_YET) -> Any:
    """A finite number in low..high."""
    return _declare(_number(low, high), default)


def seconds(*, default: Any = _NONE_YET) -> Any:
    """A relative time, never negative."""
    return _declare(_number(0.0, limits.SECONDS_MAX), default)


def text(chars_max: int = limits.NAME_CHARS_MAX, *, default: Any = _NONE_YET) -> Any:
    return _declare(_text(chars_max), default)


def raw(bytes_max: int, *, default: Any = _NONE_YET) -> Any:
    return _declare(_raw(bytes_max), default)


def flag(*, default: Any = _NONE_YET) -> Any:
    return _declare(_truth, default)


def optional(inner: Any, *, default: Any = None) -> Any:
    """`inner` is another specifier's result; None is allowed and the default."""
    return _declare(optional_check(check_of(inner)), default)


def sequence(inner: Any, items_max: int = limits.ITEMS_MAX, *, default: Any = ()) -> Any:
    """A tuple of what `inner` (another specifier's result) describes."""
    return _declare(sequence_check(check_of(inner), items_max), default)


def nested(kind: type[Any], *, default: Any = _NONE_YET) -> Any:
    """Another message's fields, in place."""
    return _declare(nested_check(kind), default)


def check_of(specifier: Any) -> Check:
    """The check inside a specifier's result."""
    check: Check = specifier.metadata["check"]
    return check


# -------------------------------------------------------------------------------------- conversion


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return to_fields(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def to_fields(value: Message) -> dict[str, Any] | list[Any]:
    """Plain values, by their fields' names or in order. Fields at their default are left out (in
    order: at the end): the receiver fills them in."""
    if value.IN_ORDER:
        return _in_order(value)
    plain = {}
    for name, _, default, _ in _items_of(type(value)):
        current = getattr(value, name)
        if current is not default and current != default:
            plain[name] = current if type(current) in _PLAIN else _plain(current)
    return plain


def _in_order(value: Message) -> list[Any]:
    items = _items_of(type(value))
    current = [getattr(value, item.name) for item in items]
    length = len(items)
    while length and current[length - 1] == items[length - 1].default:
        length -= 1
    return [_plain(one) for one in current[:length]]


def from_fields(kind: type[Message], plain: Any) -> Message:
    """Build a message of `kind` from untrusted plain values. Raises ValueError."""
    if isinstance(plain, list) and kind.IN_ORDER:
        plain = dict(zip([item.name for item in _items_of(kind)], plain, strict=False))
    if not isinstance(plain, dict):
        raise ValueError(f"{kind.__name__}: not its fields")
    values = {}
    for name, check, _, is_required in _items_of(kind):
        if name in plain:
            try:
                values[name] = check(plain[name])
            except ValueError as error:
                raise ValueError(f"{kind.__name__}.{name}: {error}") from None
        elif is_required:
            raise ValueError(f"{kind.__name__}.{name}: missing")
    return kind(**values)


class _Item(NamedTuple):
    """A field as conversion needs it, looked up once."""

    name: str
    check: Check
    default: Any
    """MISSING, which no value equals, if it has none or makes a new one each time."""
    is_required: bool


_PLAIN = frozenset({int, str, bytes, float, bool, type(None)})
_ITEMS: dict[type[Message], tuple[_Item, ...]] = {}
"""Kept, for every message that comes or goes asks. As many entries as there are classes."""


def _items_of(kind: type[Message]) -> tuple[_Item, ...]:
    found = _ITEMS.get(kind)
    if found is None:
        found = _ITEMS[kind] = tuple(map(_item, fields(kind)))  # type: ignore[arg-type]
    return found


def _item(declared: Field[Any]) -> _Item:
    is_required = declared.default is MISSING and declared.default_factory is MISSING
    return _Item(declared.name, declared.metadata["check"], declared.default, is_required)
