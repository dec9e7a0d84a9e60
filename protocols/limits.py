"""Every bound on the wire and in queues, with its reason. Relations are checked at import.

Anything a peer can make us hold has its limit here. Guesses say so.
"""

from __future__ import annotations

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

CONTROL_MESSAGE_BYTES_MAX = 1 * MIB
"""One message without its payload. cli.md section 14 promises at most 4 MiB."""

CONTROL_MESSAGES_PER_S = 20.0
CONTROL_MESSAGES_BURST = 100
"""Gossip taken from one peer. Pipeline messages are bounded by credits instead."""

PAYLOAD_BYTES_MAX = 256 * MIB
"""A tensor that travels with one message. Larger things go in chunks."""

CHUNK_BYTES = 1 * MIB
CHUNK_BYTES_MAX = 4 * MIB
"""State travels in chunks: small enough that an activation overtakes soon. Mixes: mix_parts.py."""

DEPTH_MAX = 8
"""Nesting of a message. Ours need 4."""

ITEMS_MAX = 65_536
"""Entries of one list or map in a message, unless its field says less."""

TEXT_CHARS_MAX = 4_096
NAME_CHARS_MAX = 64
ADDRESSES_MAX = 16
ADDRESS_CHARS_MAX = 256

STAGES_MAX = 256
PEERS_MAX = 16_384
"""Four times the largest swarm that is simulated."""

ROUND_MAX = (1 << 31) - 1
MICRO_BATCHES_PER_ROUND_MAX = 1 << 20
"""A bitmap of them takes 128 KiB, so that the worst ledger entry still fits in a message."""

STEP_MAX = (1 << 40) - 1
ATTEMPTS_MAX = 1 << 16
COUNT_MAX = (1 << 62) - 1
SECONDS_MAX = 86_400.0 * 7
"""Relative times on the wire. A longer one is nonsense from a peer."""

EFFECTS_PER_EVENT_MAX = 4_096
"""A machine that wants more at once has a bug."""

assert CHUNK_BYTES <= CHUNK_BYTES_MAX <= PAYLOAD_BYTES_MAX
assert CONTROL_MESSAGE_BYTES_MAX <= 4 * MIB
ROUNDS_OPEN_MAX = 16
"""Rounds of which some micro-batch has not ended. So far behind the others one may still begin, and
so long a peer remembers what it has counted."""
