"""One start of one peer: what is settled before anything runs, and stays so until it ends."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

from swarmd.home import Home
from swarmd.identity import Identity
from swarmd.peer_config import PeerConfig
from swarmd.protocols.ids import PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    home: Home
    config: PeerConfig
    identity: Identity
    incarnation: int
    """With which it started. Its record may have to step over a former life's (own_record.py)."""
    started_at: str
    is_founder: bool
    """Asked to found the swarm, if it was never in it."""
    stays: bool
    """After the run's end, until told to go."""
    injection: tuple[str, ...] = ()

    @property
    def peer(self) -> PeerId:
        return PeerId(self.identity.peer_id)

    @property
    def name(self) -> str:
        """For people."""
        return self.config.name or "peer-" + self.identity.peer_id[-4:].lower()

    @property
    def states(self) -> Path:
        """Where states lie that come, go, or are being written."""
        return self.home.cache / "state"

    def rng(self, purpose: str) -> random.Random:
        """Different on every peer and start; inside machines everything follows from it."""
        return random.Random(f"{self.peer}/{self.incarnation}/{purpose}/{os.getpid()}")
