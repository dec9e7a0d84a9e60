"""How large a message is on the wire, nearly, without encoding it.

Encoding costs more than everything else the simulator does with a message. The sizes below are
within a few percent of wire.encode for gossip (tests/sim/test_seeds.py compares them); other
messages are small beside their payloads, and get a flat size.
"""

from __future__ import annotations

from typing import Any

from swarmd.protocols.messages import Message, gossip

FLAT_BYTES = 96
RECORD_EXTRA_BYTES = 88
"""Its signature, and what wraps both."""
RUMOUR_BYTES = 268
_WITH_NEWS = {gossip.Probe: 16, gossip.Ack: 16, gossip.Gossip: 5}
_EMPTY = {gossip.ProbeReply: 22, gossip.ProbeRequest: 84}


def size_of_message(message: Message) -> int:
    """Bytes of the encoded message, without any payload."""
    empty_bytes = _WITH_NEWS.get(type(message))
    if empty_bytes is not None:
        return empty_bytes + _size_of_news(message)
    if isinstance(message, gossip.SyncSummary):
        return len(message.buckets) + 16
    if isinstance(message, gossip.SyncEntries):
        return len(message.entries) + 3 * len(message.buckets) + 40
    return _EMPTY.get(type(message), FLAT_BYTES)


def _size_of_news(message: Any) -> int:
    size_bytes = RUMOUR_BYTES * len(message.rumours) if message.rumours else 0
    for record in message.records:
        size_bytes += len(record.body) + RECORD_EXTRA_BYTES
    if type(message) is gossip.Gossip:
        size_bytes += 10 * len(message.wanted)
    return size_bytes
