"""PeerConfig: what is mine (device, limits, ports), and where each value comes from.

Precedence: flag > environment > config.toml of the home > /etc/swarmd/config.toml > built-in. What
must be equal in the swarm is the run's (run_config.py) and cannot be set here: trying ends with 2.
An unknown key or variable is a warning with the nearest known name; `config validate` makes it an
error.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from swarmd.errors import UserError
from swarmd.home import SYSTEM_CONFIG, Home
from swarmd.run_link import PeerAddress
from swarmd.settings import BY_KEY, BY_NAME, SECTIONS, SETTINGS, HostPort, Setting
from swarmd.toml_file import Document, bad_config, read_toml
from swarmd.units import BadValue, LinkShape

PREFIX = "SWARMD_"
OTHER_VARIABLES = ("SWARMD_HOME", "SWARMD_DEBUG", "SWARMD_VENV", "SWARMD_LIFELINE")
"""Known, and no settings."""
BUILT_IN = "built-in"
FLAG = "flag"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """Mine. Rates in bytes a second, sizes in bytes; None: not limited, or chosen when needed."""

    name: str | None = None
    peer: tuple[PeerAddress, ...] = ()
    listen: HostPort | None = None
    port: int = 4710
    bulk_port: int | None = None
    announce: tuple[str, ...] = ()
    """Without the /p2p part."""
    lan_discovery: bool = True
    shape: LinkShape | None = None
    metrics: HostPort | None = None
    web: HostPort | None = None
    stage: int | Literal["auto"] = "auto"
    observe: bool = False
    gpu: tuple[str, ...] = ()
    device: tuple[Literal["auto", "cpu", "mps"], ...] = ("auto",)
    threads: int | None = None
    micro_batch: int | Literal["auto"] = "auto"
    peak_flops: float | None = None
    """Operations a second; what MFU is a share of."""
    data_source: str | None = None
    limit_up: float | None = None
    limit_down: float | None = None
    quota_month: int | None = None
    disk_limit: int | None = None
    memory_limit: int | None = None
    only_idle: bool = False
    hours: tuple[int, int] | None = None
    """First and last hour; the last is not included."""
    on_battery: bool = True
    power_limit: int | None = None
    temp_limit: int | None = None
    log_format: Literal["text", "json"] = "text"
    run: str | None = None

    def __post_init__(self) -> None:
        if (
            self.listen is not None
            and self.listen.port
            and self.port
            not in (
                4710,
                self.listen.port,
            )
        ):
            raise _impossible("--listen names another port than --port")
        if self.observe and self.stage != "auto":
            raise _impossible("--observe holds no stage, --stage asks for one")
        if self.gpu and self.device != ("auto",):
            raise _impossible(f"--gpu and --device {self.device[0]} exclude each other")
        if len(self.device) > 1 and set(self.device) != {"cpu"}:
            raise _impossible("only --device cpu can be given several times")
        if self.bulk_port and self.bulk_port == self.libp2p_port:
            raise _impossible("--bulk-port and --port are the same")

    @property
    def wanted_stage(self) -> int | None:
        """None: as the swarm decides."""
        return self.stage if isinstance(self.stage, int) else None

    @property
    def libp2p_port(self) -> int:
        """Wanted; 0: any free one."""
        return self.listen.port if self.listen is not None else self.port

    @property
    def wanted_bulk_port(self) -> int:
        """The next port, unless named; 0: any free one."""
        if self.bulk_port is not None:
            return self.bulk_port
        return self.libp2p_port + 1 if 0 < self.libp2p_port < 65_535 else 0

    @property
    def announced_bulk(self) -> tuple[str, ...]:
        """Where others find the bulk port if we announce addresses: on the same hosts, at the next
        port, or at the one that --bulk-port names."""
        found = []
        for address in self.announce:
            host, port = address.rsplit("/", 1)
            found.append(f"{host}/{self.bulk_port or min(int(port) + 1, 65_535)}")
        return tuple(found)


assert {item.name for item in fields(PeerConfig)} == BY_NAME.keys()


@dataclass(frozen=True, slots=True)
class Effective:
    """The values that hold, where each comes from, and what was odd about the sources."""

    config: PeerConfig
    origins: Mapping[str, str]
    """Setting name to `flag`, a variable's name, a file, or `built-in`."""
    warnings: tuple[str, ...] = ()

    def shown(self) -> dict[str, tuple[Any, str]]:
        """Key to (value as config.toml has it, origin), section by section."""
        return {
            setting.key: (
                setting.show(getattr(self.config, setting.name)),
                self.origins[setting.name],
            )
            for setting in SETTINGS
        }


@dataclass(slots=True)
class _Layers:
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def put(self, setting: Setting, value: Any, origin: str) -> None:
        self.values[setting.name] = value
        self.origins[setting.name] = origin


def effective_config(
    home: Home,
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    system_file: Path | None = None,
) -> Effective:
    """What holds for this home. `flags`: setting name to parsed value, only those that were given.

    Raises UserError: 78 for a file, 2 for a flag, a variable, or an attempt to set the run's.
    """
    layers = _Layers()
    for setting in SETTINGS:
        layers.put(setting, setting.default, BUILT_IN)
    for path in dict.fromkeys((system_file or SYSTEM_CONFIG, home.config_file)):
        document = read_toml(path)
        if document is not None:
            _take_file(layers, document)
    _take_environment(layers, os.environ if environ is None else environ)
    for name, value in (flags or {}).items():
        layers.put(BY_NAME[name], value, FLAG)
    idle = [
        f"{setting.key} ({layers.origins[setting.name]}) has no effect in this version"
        for setting in SETTINGS
        if not setting.is_obeyed and layers.origins[setting.name] != BUILT_IN
    ]
    return Effective(PeerConfig(**layers.values), layers.origins, (*layers.warnings, *idle))


def check_file(document: Document) -> list[str]:
    """Every unknown key, as a line for people. Raises UserError for what cannot be read."""
    layers = _Layers()
    _take_file(layers, document)
    try:
        PeerConfig(**layers.values)
    except UserError as error:
        raise bad_config(str(document.path), str(error)) from None
    return layers.warnings


def _take_file(layers: _Layers, document: Document) -> None:
    for section, values in document.values.items():
        if is_run_section(section):
            raise _belongs_to_run(section, document.where(section))
        if section not in SECTIONS or not isinstance(values, dict):
            layers.warnings.append(
                f"{document.where(section)}: unknown section [{section}]{_near(section, SECTIONS)}"
            )
            continue
        for name, value in values.items():
            key = f"{section}.{name}"
            setting = BY_KEY.get(key)
            if setting is None:
                if is_run_key(name):
                    raise _belongs_to_run(name, document.where(key))
                layers.warnings.append(f"{document.where(key)}: unknown key {key}{_nearest(name)}")
                continue
            try:
                layers.put(setting, setting.read_plain(value), str(document.path))
            except BadValue as error:
                raise bad_config(document.where(key), f"{key}: {error}") from None


def _take_environment(layers: _Layers, environ: Mapping[str, str]) -> None:
    variables = {setting.variable: setting for setting in SETTINGS}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in OTHER_VARIABLES:
            continue
        setting = variables.get(name)
        if setting is None:
            section, _, key = name.removeprefix(PREFIX).lower().partition("_")
            if is_run_section(section) or (section in SECTIONS and is_run_key(key)):
                raise _belongs_to_run(key, name)
            near = _near(name, [*variables, *OTHER_VARIABLES])
            layers.warnings.append(f"unknown variable {name}{near}")
            continue
        try:
            layers.put(setting, setting.read(environ[name]), name)
        except BadValue as error:
            raise UserError(f"{name}: {error}", code="usage", exit_code=2) from None


def is_run_section(name: str) -> bool:
    from swarmd.run_file import KEYS

    return name in KEYS


def is_run_key(name: str) -> bool:
    """Whether a key is one of a run file, and so the same on every peer."""
    from swarmd.run_file import KEYS

    return name not in BY_NAME and any(name in keys for keys in KEYS.values())


def _belongs_to_run(name: str, where: str) -> UserError:
    return UserError(
        f"{where}: {name!r} belongs to the run, which is equal on every peer",
        code="belongs_to_run",
        exit_code=2,
        hint="set it in the run file; another value is another run",
    )


def _near(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _nearest(name: str) -> str:
    """Across sections: a right key in the wrong one is named with its own."""
    if name in BY_NAME:
        return f"; it stands in [{BY_NAME[name].section}]"
    near = difflib.get_close_matches(name, list(BY_NAME), n=1)
    return f"; did you mean {BY_NAME[near[0]].key}?" if near else ""


def _impossible(text: str) -> UserError:
    return UserError(text, code="usage", exit_code=2)
