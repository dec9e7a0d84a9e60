"""What was turned away at this peer's two ports, by whoever knocked there: for status.

The transport counts whatever happens at its edge. What is no refusal (a restart of a service, two
peers that dialled each other at once) is left out here; everything else is shown under its own
name, so that a new counter cannot go unseen.
"""

from __future__ import annotations

from collections.abc import Mapping

from swarmd.status import Refusals

NO_REFUSALS = frozenset(
    {
        "circuits_relayed",
        "circuits_failed",
        "dial_back_ended",
        "duplicate",
        "closing",
        "notifee_failed",
        "stream_failed",
        "bulk_hello_lost",
        "bulk_hello_closed",
    }
)
"""Counted by the transport; ends of connections that were welcome, and work done for others."""


def refusals_shown(transport: Mapping[str, int], greetings: Mapping[str, int]) -> Refusals:
    """transport: its counters. greetings: peers of another run or version, by code."""
    found = dict(greetings)
    for code, count in transport.items():
        if code not in NO_REFUSALS and not code.endswith("_restarted") and count:
            found[code] = found.get(code, 0) + count
    return Refusals(total=sum(found.values()), by_code=dict(sorted(found.items())))
