"""The network that a peer's own settings ask for: ports, what is announced, shape and caps, LAN.

The transport's module takes a second to import (libp2p), so the daemon opens it in a thread, while
its control socket answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarmd.net.lan_discovery import LanDiscovery
from swarmd.net.transport import PayloadStore, Transport
from swarmd.peer_config import PeerConfig
from swarmd.protocols.ids import RunId

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
        announce_bulk=config.announced_bulk,
        bulk_port=config.wanted_bulk_port if port else 0,
        shape=config.shape,
        up_bytes_per_s=config.limit_up,
        down_bytes_per_s=config.limit_down,
        asks_back=True,
    )


def open_lan_discovery(config: PeerConfig, transport: Transport, run_id: RunId) -> LanDiscovery:
    """Not running yet. Whoever is found is dialled; what follows is as with any other link."""
    return LanDiscovery(
        transport.peer_id,
        run_id,
        transport.addresses,
        transport.dial,
        listen_host=config.listen.host if config.listen else "0.0.0.0",
    )
