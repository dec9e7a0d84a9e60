"""What is mine to set: every setting with its section, its grammar and its help, once.

The flag `--limit-up`, the variable SWARMD_LIMITS_LIMIT_UP and the key `limit_up` in [limits] of
config.toml are one setting; all three are read by the same parser. peer_config.py says which of
them wins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from swarmd import units
from swarmd.run_link import parse_peer_address
from swarmd.units import BadValue

SECTIONS = ("net", "device", "limits", "schedule", "log", "service")
NAME_CHARS_MAX = 32
SOURCE_KINDS = ("builtin", "text", "jsonl", "parquet", "hf", "tokens")
"""Of data, before the colon (swarmd/data/sources.py)."""


class HostPort(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Grammar:
    """How a value is read and written, and what it is called in help texts."""

    metavar: str
    parse: Callable[[str], Any]
    show: Callable[[Any], Any] = str
    """As config.toml and `config show` have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One thing that is mine to set."""

    name: str
    section: str
    grammar: Grammar
    help: str
    default: Any = None
    is_repeatable: bool = False
    is_switch: bool = False
    """A flag without a value; in files and variables `true` or `false`."""
    is_live: bool = False
    """May change while the daemon runs (SIGHUP)."""
    bare: str | None = None
    """What the flag means without a value; None: it must have one."""
    is_obeyed: bool = True
    """False: read and checked, but nothing in this build acts on it. Setting it is a warning."""

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return f"SWARMD_{self.section}_{self.name}".upper()

    def read(self, text: str) -> Any:
        """From a flag or a variable; a repeatable one takes a comma-separated list. BadValue."""
        if not text.strip():
            raise BadValue(text, "is empty; it never means the default", self.grammar.metavar)
        if self.is_repeatable:
            return tuple(self.grammar.parse(part.strip()) for part in text.split(","))
        return self.grammar.parse(text)

    def read_plain(self, value: Any) -> Any:
        """From a TOML value. Raises BadValue."""
        if self.is_repeatable:
            listed = value if isinstance(value, list) else [value]
            return tuple(self._read_one(item) for item in listed)
        return self._read_one(value)

    def show(self, value: Any) -> Any:
        """Plain and readable: as config.toml has it. None: not set."""
        if value is None:
            return None
        if self.is_repeatable:
            return [self.grammar.show(item) for item in value]
        return self.grammar.show(value)

    def _read_one(self, value: Any) -> Any:
        if isinstance(value, bool):
            value = "on" if value else "off"
        if not isinstance(value, (str, int, float)) or value == "":
            raise BadValue(value, "is no value for this key", self.grammar.metavar)
        return self.grammar.parse(str(value))


# ----------------------------------------------------------------------------------------- grammars


def _count(low: int, high: int, metavar: str = "N") -> Grammar:
    def parse(text: str) -> int:
        plain = text.strip()
        if not (plain.isascii() and plain.isdigit() and low <= int(plain[:12]) <= high):
            raise BadValue(text, f"is no whole number in {low}..{high}", str(max(low, 1)))
        return int(plain)

    return Grammar(metavar, parse, int)


def _auto(inner: Grammar) -> Grammar:
    """A number, or the word `auto`."""

    def parse(text: str) -> Any:
        return "auto" if text == "auto" else inner.parse(text)

    return Grammar(f"{inner.metavar}|auto", parse, lambda value: value)


def _choice(*words: str) -> Grammar:
    def parse(text: str) -> str:
        if text not in words:
            raise BadValue(text, f"is none of {', '.join(words)}", words[0])
        return text

    return Grammar("|".join(words), parse)


def _switch(text: str) -> bool:
    words = {"on": True, "yes": True, "true": True, "1": True}
    words |= {"off": False, "no": False, "false": False, "0": False}
    if text.lower() not in words:
        raise BadValue(text, "is neither on nor off", "on")
    return words[text.lower()]


def parse_host_port(text: str) -> HostPort:
    """IP:PORT, as in 0.0.0.0:4710 or [::]:4710. Raises BadValue."""
    import ipaddress

    example = "0.0.0.0:4710 or [::]:4710"
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        raise BadValue(text, "does not begin with an IP address and a port", example) from None
    if (address.version == 6) != host.startswith("["):
        raise BadValue(text, "needs brackets around an IPv6 address, and only there", example)
    if not (colon and port.isascii() and port.isdigit() and int(port[:6]) <= 65_535):
        raise BadValue(text, f"has the port {port!r}, which is not in 0..65535", example)
    return HostPort(bare, int(port))


def _announce(text: str) -> str:
    """A peer address; our own id may be left out, it is known."""
    from swarmd.run_link import ADDRESS_EXAMPLE

    base, _, peer = text.partition("/p2p/")
    bare_example = ADDRESS_EXAMPLE.partition("/p2p/")[0]
    try:
        example_peer = ADDRESS_EXAMPLE.rpartition("/")[2]
        return parse_peer_address(f"{base}/p2p/{peer or example_peer}").base
    except BadValue as error:
        raise BadValue(text, error.fault, bare_example) from None


def _name(text: str) -> str:
    if not 0 < len(text) <= NAME_CHARS_MAX or not text.isprintable() or text != text.strip():
        raise BadValue(text, f"is no name of 1 to {NAME_CHARS_MAX} printable characters", "alder")
    return text


def _hours(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    hours = [int(part) for part in (first, last) if part.isascii() and part.isdigit()]
    if not dash or len(hours) != 2 or max(hours) > 24 or hours[0] == hours[1]:
        raise BadValue(text, "is no span of hours", "22-07")
    return hours[0] % 24, hours[1] % 24


def _source(text: str) -> str:
    kind, _, what = text.partition(":")
    if kind not in SOURCE_KINDS or not what:
        raise BadValue(text, f"is none of {', '.join(SOURCE_KINDS)}", "text:corpus/**/*.txt")
    return text


def _text(text: str) -> str:
    return text


DURATION = Grammar("DUR", units.parse_duration, units.format_duration)
SIZE = Grammar("SIZE", units.parse_size, units.format_size)
RATE = Grammar("RATE", units.parse_rate, units.format_rate)
SHAPE = Grammar("RATE[,DELAY[,JITTER]]", units.parse_shape, units.format_shape)
FLOPS = Grammar("FLOPS", units.parse_flops, units.format_flops)
ON_OFF = Grammar("on|off", _switch, bool)
ADDRESS = Grammar("ADDR", parse_peer_address)
ANNOUNCE = Grammar("ADDR", _announce)
HOST_PORT = Grammar("IP:PORT", parse_host_port)
HOURS = Grammar("22-07", _hours, lambda hours: f"{hours[0]:02}-{hours[1]:02}")
NAME = Grammar("NAME", _name)

SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="name", section="net", grammar=NAME,
        help="What people call this peer; default: a word made from its id.",
    ),
    Setting(
        name="peer", section="net", grammar=ADDRESS, is_repeatable=True, default=(),
        help="A further entry address, /ip4/HOST/tcp/PORT/p2p/ID.",
    ),
    Setting(
        name="listen", section="net", grammar=HOST_PORT,
        help="Listen here only; default: every interface.",
    ),
    Setting(
        name="port", section="net", grammar=_count(0, 65_535), default=4710,
        help="TCP port of libp2p; 0: any free one.",
    ),
    Setting(
        name="bulk_port", section="net", grammar=_count(0, 65_535),
        help="TCP port for tensors; default: the one after --port.",
    ),
    Setting(
        name="announce", section="net", grammar=ANNOUNCE, is_repeatable=True, default=(),
        help="What others are told, for forwarded ports; tensors: the next port, or --bulk-port.",
    ),
    Setting(
        name="lan_discovery", section="net", grammar=ON_OFF, default=True,
        help="Look for peers of this run on the local network too.",
    ),
    Setting(
        name="shape", section="net", grammar=SHAPE,
        help="Make our own links that slow, for experiments.",
    ),
    Setting(
        name="metrics", section="net", grammar=HOST_PORT, bare="127.0.0.1:4713",
        help="Prometheus over HTTP here, default 127.0.0.1:4713; off without the flag.",
    ),
    Setting(
        name="web", section="net", grammar=HOST_PORT, bare="127.0.0.1:4712",
        help="The read-only web view here, default 127.0.0.1:4712; off without the flag.",
    ),
    Setting(
        name="stage", section="device", grammar=_auto(_count(0, 255)), default="auto",
        help="Ask for this stage.",
    ),
    Setting(
        name="observe", section="device", grammar=ON_OFF, is_switch=True, default=False,
        help="Hold no stage.",
    ),
    Setting(
        name="gpu", section="device", grammar=Grammar("INDEX|UUID|PCI", _text),
        is_repeatable=True, default=(),
        help="Compute here; one daemon and one stage for each. INDEX counts as nvidia-smi does.",
    ),
    Setting(
        name="device", section="device", grammar=_choice("auto", "cpu", "mps"),
        is_repeatable=True, default=("auto",),
        help="Kind of device where no --gpu is given; `cpu` several times: so many peers.",
    ),
    Setting(
        name="threads", section="device", grammar=_count(1, 1024),
        help="Threads of the compute worker; default: the library's choice.",
    ),
    Setting(
        name="micro_batch", section="device", grammar=_auto(_count(1, 65_536)), default="auto",
        help="Most sequences computed at a time; the size on the wire never changes.",
    ),
    Setting(
        name="peak_flops", section="device", grammar=FLOPS, is_live=True,
        help="What the device can do at best, as 82.6T; `bench device` measures it. For the MFU.",
    ),
    Setting(
        name="data_source", section="device", grammar=Grammar("SOURCE", _source),
        help="Where this machine has the run's data, if not where the run says: text:GLOB ...",
    ),
    Setting(
        name="limit_up", section="limits", grammar=RATE, is_live=True,
        help="Cap on what is sent.",
    ),
    Setting(
        name="limit_down", section="limits", grammar=RATE, is_live=True,
        help="Cap on what is received.",
    ),
    Setting(
        name="quota_month", section="limits", grammar=SIZE, is_live=True,
        help="Cap on traffic in a month.",
    ),
    Setting(
        name="disk_limit", section="limits", grammar=SIZE, is_live=True,
        help="Cap on cache, checkpoints and logs together.",
    ),
    Setting(
        name="memory_limit", section="limits", grammar=SIZE,
        help="Cap on memory for stage state and work in flight.",
    ),
    Setting(
        name="only_idle", section="schedule", grammar=ON_OFF, is_switch=True, default=False,
        is_live=True,
        help="Compute only while nobody uses this machine.",
    ),
    Setting(
        name="hours", section="schedule", grammar=HOURS, is_live=True,
        help="Compute only within these hours of the day, local time.",
    ),
    Setting(
        name="on_battery", section="schedule", grammar=ON_OFF, default=True, is_live=True,
        help="Compute on battery too.",
    ),
    Setting(
        name="power_limit", section="schedule", grammar=_count(1, 100_000, "W"), is_live=True,
        is_obeyed=False,
        help="Watts the device may draw.",
    ),
    Setting(
        name="temp_limit", section="schedule", grammar=_count(1, 150, "C"), is_live=True,
        help="Pause above this temperature of the device.",
    ),
    Setting(
        name="log_format", section="log", grammar=_choice("text", "json"), default="text",
        help="Of the log on standard error and in the file.",
    ),
    Setting(
        name="run", section="service", grammar=Grammar("RUN", _text),
        help="The run to join where the command line names none.",
    ),
)  # fmt: skip
"""Everything that is mine to set, section by section."""

BY_NAME = {setting.name: setting for setting in SETTINGS}
BY_KEY = {setting.key: setting for setting in SETTINGS}
