"""Values that are made all the time: events, effects, messages, views. Never changed once made.

A frozen dataclass is filled through object.__setattr__, so that making one costs almost four times
as much, and a peer makes several for each message. So these are frozen for the type checker,
which reads all machines, and not a second time at run time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[_T]) -> type[_T]:
    """Make a slotted dataclass, equal and hashed by its fields, that nobody may change."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
