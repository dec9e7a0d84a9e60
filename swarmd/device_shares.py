"""Several devices: the settings of the daemon that each of them gets.

A peer holds one stage, and its key stands for it in the roster; so each device is a peer of its
own. The first device's daemon is the one that was asked for. The others are its companions
(node/companions.py): their ports are ten higher each, and what is limited for the machine's sake is
shared out equally.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swarmd.peer_config import PeerConfig
from swarmd.settings import NAME_CHARS_MAX, SETTINGS, HostPort
from swarmd.toml_file import render_toml

PORT_STEP = 10
"""From one device's ports to the next one's: libp2p, bulk, web view and metrics keep theirs."""
SHARED = ("limit_up", "limit_down", "quota_month", "disk_limit")
"""Of the machine, not of a device."""


def split(config: PeerConfig) -> tuple[PeerConfig, ...]:
    """One for each device that was named, the first's first; just `config` if it is one or none.

    An observer computes nowhere.
    """
    devices: list[Mapping[str, Any]] = [
        *({"gpu": (gpu,)} for gpu in config.gpu),
        *({"device": (kind,)} for kind in config.device if len(config.device) > 1),
    ]
    if config.observe or len(devices) < 2:
        return (config,)
    shares = {name: _share(getattr(config, name), len(devices)) for name in SHARED}
    return tuple(
        replace(config, **_moved(config, place), **device, **shares)
        for place, device in enumerate(devices)
    )


def settings_file(config: PeerConfig) -> str:
    """As a config.toml."""
    sections: dict[str, dict[str, Any]] = {}
    for setting in SETTINGS:
        value = setting.show(getattr(config, setting.name))
        sections.setdefault(setting.section, {})[setting.name] = value
    return render_toml(sections)


def _moved(config: PeerConfig, place: int) -> dict[str, Any]:
    """What two daemons on one machine cannot have in common."""
    if place == 0:
        return {}
    by, suffix = PORT_STEP * place, f"-{place + 1}"
    name = config.name
    return {
        "name": name and name[: NAME_CHARS_MAX - len(suffix)] + suffix,
        "listen": _host_port(config.listen, by),
        "port": config.port if config.listen is not None else _port(config.port, by),
        "bulk_port": None if config.bulk_port is None else _port(config.bulk_port, by),
        "announce": tuple(_announced(address, by) for address in config.announce),
        "web": _host_port(config.web, by),
        "metrics": _host_port(config.metrics, by),
        "run": None,
    }


def _share(value: float | None, of: int) -> float | None:
    if value is None:
        return None
    return value // of if isinstance(value, int) else value / of


def _port(port: int, by: int) -> int:
    """0: any free one."""
    return port + by if port and port + by <= 65_535 else 0


def _host_port(found: HostPort | None, by: int) -> HostPort | None:
    return None if found is None else HostPort(found.host, _port(found.port, by))


def _announced(address: str, by: int) -> str:
    host, port = address.rsplit("/", 1)
    return f"{host}/{min(int(port) + by, 65_535)}"
