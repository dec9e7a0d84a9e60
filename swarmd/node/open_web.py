"""The web view and the metrics of a node, where its settings want them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from swarmd.node.peer_node import PeerNode


async def open_web(node: PeerNode, say: Callable[[str], None]) -> Any | None:
    """WebServers that listen, to be run; None where nothing is wanted.

    say: told where they are, and once the token. Raises UserError for an address that cannot be
    had. The servers' libraries take half a second to import, so a thread does it.
    """
    config = node.life.config
    if config.web is None and config.metrics is None:
        return None
    web = await trio.to_thread.run_sync(importlib.import_module, "swarmd.web.serve")
    shown = web.Shown(
        status=node.reporter.status, peers=node.reporter.peers, events=node.feed.latest
    )
    servers = web.WebServers(node.life.home, shown, say=say)
    servers.open(web=config.web, metrics=config.metrics)
    return servers
