"""Every message between peers, in one file per concern. Type numbers are append-only.

 1-19  control    hello, goodbye, run description
20-39  gossip     membership and roster
40-58  pipeline   micro-batches
59-69  ledger     leases and receipts
70-89  mixing     exchange between replicas
90-109 state      checkpoints and their transfer
"""

from __future__ import annotations

from types import ModuleType

from swarmd.protocols.messages import control, gossip, ledger, mixing, pipeline, state
from swarmd.protocols.schema import REGISTRY, Message

__all__ = [
    "REGISTRY",
    "Message",
    "control",
    "gossip",
    "is_of",
    "ledger",
    "mixing",
    "pipeline",
    "state",
]


def is_of(message: Message, concern: ModuleType) -> bool:
    """Whether that file declares the message."""
    return type(message).__module__ == concern.__name__
