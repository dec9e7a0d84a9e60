"""Settings that change while the daemon runs: SIGHUP reads them again.

What may change at once is marked in settings.py (`is_live`); whatever else differs is named, and
holds from the next start. A file that is wrong changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from swarmd.errors import UserError
from swarmd.peer_config import PeerConfig
from swarmd.settings import SETTINGS

if TYPE_CHECKING:
    from swarmd.node.peer_node import PeerNode

log = logging.getLogger("swarmd.daemon")


def taken_over(before: PeerConfig, wanted: PeerConfig) -> tuple[PeerConfig, list[str], list[str]]:
    """(what holds from now on, keys that changed, keys that wait for the next start)."""
    differing = [s for s in SETTINGS if getattr(before, s.name) != getattr(wanted, s.name)]
    live = {s.name: getattr(wanted, s.name) for s in differing if s.is_live and s.is_obeyed}
    waiting = [s.key for s in differing if s.name not in live]
    changed = [s.key for s in differing if s.name in live]
    return replace(before, **live), changed, waiting


def reload(node: PeerNode, reread: Callable[[], PeerConfig]) -> None:
    """Read the settings again. Never raises for what is in a file."""
    try:
        wanted = reread()
    except UserError as error:
        log.error("config_not_reloaded code=%s text=%s", error.code, error)
        node.feed.publish(
            "config_reloaded", level="error", code=error.code, data={"text": str(error)}
        )
        return
    node.settings, changed, waiting = taken_over(node.settings, wanted)
    if node.transport is not None:
        node.transport.set_caps(
            up_bytes_per_s=node.settings.limit_up, down_bytes_per_s=node.settings.limit_down
        )
    log.info("config_reloaded changed=%s at_next_start=%s", changed, waiting)
    node.feed.publish("config_reloaded", data={"changed": changed, "at_next_start": waiting})
