"""The transport that a peer's own settings ask for: ports, what is announced, shape and caps.

Its module takes a second to import (libp2p), so the daemon calls this in a thread, while its
control socket answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarmd.net.transport import PayloadStore
from swarmd.peer_config import PeerConfig

if TYPE_CHECKING:
    from swarmd.net.swarm_transport import SwarmTransport


def open_transport(config: PeerConfig, seed: bytes, store: PayloadStore) -> SwarmTransport:
    """Not running yet; it listens once it runs. seed: of the ed25519 key."""
    from swarmd.net.swarm_transport import SwarmTransport

    host = config.listen.host if config.listen else "0.0.0.0"
    kind = "ip6" if ":" in host else "ip4"
    port = config.libp2p_port
    return SwarmTransport(
        seed,
        [f"/{kind}/{host}/tcp/{port}"],
        store,
        announce=config.announce,
        bulk_port=config.wanted_bulk_port if port else 0,
        shape=config.shape,
        up_bytes_per_s=config.limit_up,
        down_bytes_per_s=config.limit_down,
    )
