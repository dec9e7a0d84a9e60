"""What is mine: one precedence, an origin for every value, and nothing of the run's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swarmd.errors import UserError
from swarmd.home import Home, find_home
from swarmd.peer_config import Effective, check_file, effective_config
from swarmd.run_link import ADDRESS_EXAMPLE
from swarmd.settings import BY_NAME, SETTINGS, HostPort
from swarmd.toml_file import parse_toml, render_toml
from swarmd.units import BadValue


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = find_home(str(tmp_path / "home"))
    found.create()
    return found


def effective(home: Home, file: str = "", system: str = "", **more: Any) -> Effective:
    home.config_file.write_text(file)
    system_file = home.root / "etc.toml"
    system_file.write_text(system)
    return effective_config(home, environ=more.pop("environ", {}), system_file=system_file, **more)


def test_flag_wins_over_variable_over_home_over_system_over_built_in(home: Home) -> None:
    sources: dict[str, Any] = {
        "system": "[net]\nport = 1\nname = 'a'\n[limits]\nlimit_up = '1mbit'\ndisk_limit = '1G'\n",
        "file": "[net]\nport = 2\nname = 'b'\n[limits]\nlimit_up = '2mbit'\n",
        "environ": {"SWARMD_NET_PORT": "3", "SWARMD_NET_NAME": "c", "UNRELATED": "x"},
        "flags": {"port": 4},
    }
    found = effective(home, **sources)
    assert found.config.port == 4
    assert found.config.name == "c"
    assert found.config.limit_up == 250_000
    assert found.config.disk_limit == 10**9
    assert found.origins["port"] == "flag"
    assert found.origins["name"] == "SWARMD_NET_NAME"
    assert found.origins["limit_up"] == str(home.config_file)
    assert found.origins["disk_limit"] == str(home.root / "etc.toml")
    assert found.origins["threads"] == "built-in"
    assert not [line for line in found.warnings if "unknown" in line]


def test_setting_that_nothing_obeys_says_so_where_it_is_set(home: Home) -> None:
    idle = next(setting for setting in SETTINGS if setting.name == "temp_limit")
    assert effective(home).warnings == ()
    found = effective(home, "[schedule]\ntemp_limit = 80\n")
    expected = f"schedule.temp_limit ({home.config_file}) has no effect in this version"
    assert found.warnings == (() if idle.is_obeyed else (expected,))


def test_every_setting_can_be_written_shown_and_read_back(home: Home) -> None:
    written = {
        "name": "alder", "peer": [ADDRESS_EXAMPLE], "listen": "127.0.0.1:0", "port": 0,
        "bulk_port": 5, "announce": ["/ip4/203.0.113.7/tcp/4710"], "lan_discovery": False,
        "shape": "100mbit,40ms", "metrics": "127.0.0.1:9100", "web": "[::1]:80", "stage": 2,
        "observe": False, "gpu": ["0", "GPU-12"], "device": ["auto"], "threads": 3,
        "micro_batch": "auto", "peak_flops": "82.6T", "data_source": "text:copy/*",
        "limit_up": "20mbit", "limit_down": "256KiB/s", "quota_month": "2TiB", "disk_limit": "50G",
        "memory_limit": "8GiB", "only_idle": True, "hours": "22-07", "on_battery": False,
        "power_limit": 200, "temp_limit": 80,
        "log_format": "json", "run": "demo",
    }  # fmt: skip
    assert written.keys() == BY_NAME.keys()
    sections: dict[str, dict[str, Any]] = {}
    for setting in SETTINGS:
        sections.setdefault(setting.section, {})[setting.name] = written[setting.name]
    found = effective(home, render_toml(sections))
    assert {key: value for key, (value, _) in found.shown().items()} == {
        BY_NAME[name].key: value for name, value in written.items()
    }


def test_unknown_key_is_a_warning_with_the_nearest_name(home: Home) -> None:
    found = effective(
        home,
        "[net]\nprot = 1\nlimit_up = '1mbit'\n[nett]\n",
        environ={"SWARMD_NET_PROT": "1", "SWARMD_HOME": "/x"},
    )
    prot, wrong_section, nett, variable = found.warnings
    assert prot.endswith("config.toml:2: unknown key net.prot; did you mean net.port?")
    assert wrong_section.endswith(":3: unknown key net.limit_up; it stands in [limits]")
    assert nett.endswith(":4: unknown section [nett]; did you mean net?")
    assert variable == "unknown variable SWARMD_NET_PROT; did you mean SWARMD_NET_PORT?"


@pytest.mark.parametrize(
    ("file", "environ"),
    [
        ("[run]\nseed = 3\n", {}),
        ("[model]\nwidth = 3\n", {}),
        ("[limits]\ninner_steps = 3\n", {}),
        ("", {"SWARMD_RUN_SEED": "3"}),
        ("", {"SWARMD_INNER_LR": "3"}),
        ("", {"SWARMD_LIMITS_BATCH_TOKENS": "3"}),
    ],
)
def test_setting_one_of_the_runs_is_refused(home: Home, file: str, environ: Any) -> None:
    with pytest.raises(UserError, match="belongs to the run") as caught:
        effective(home, file, environ=environ)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("file", "where"),
    [
        ("[net]\nport = 70000\n", "config.toml:2: net.port"),
        ("[net]\n\nport = 'x'\n", "config.toml:3: net.port"),
        ("[net]\nport = true\n", "config.toml:2: net.port"),
        ("[net]\nname = ''\n", "config.toml:2: net.name"),
        ("[net]\npeer = ['x']\n", "config.toml:2: net.peer"),
        ("[net]\nlisten = '::1:80'\n", "config.toml:2: net.listen"),
        ("[net]\nlisten = 'example:80'\n", "config.toml:2: net.listen"),
        ("[limits]\nlimit_up = { a = 1 }\n", "config.toml:2: limits.limit_up"),
        ("[limits]\nlimit_up = '20 parsecs'\n", "config.toml:2: limits.limit_up"),
        ("[schedule]\nhours = '22'\n", "config.toml:2: schedule.hours"),
        ("[net]\nname = \n", "config.toml:2"),
    ],
)
def test_cli_01_bad_file_is_78_with_file_line_and_key(home: Home, file: str, where: str) -> None:
    with pytest.raises(UserError) as caught:
        effective(home, file)
    assert caught.value.exit_code == 78
    assert where in str(caught.value)


@pytest.mark.parametrize("value", ["", " ", "x", "70000"])
def test_bad_variable_is_a_usage_error_that_names_it(home: Home, value: str) -> None:
    with pytest.raises(UserError, match="SWARMD_NET_PORT") as caught:
        effective(home, environ={"SWARMD_NET_PORT": value})
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "flags",
    [
        {"observe": True, "stage": 1},
        {"gpu": ("0",), "device": "cpu"},
        {"port": 80, "bulk_port": 80},
        {"listen": HostPort("127.0.0.1", 80), "port": 81},
    ],
)
def test_impossible_combination_is_a_usage_error(home: Home, flags: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        effective(home, flags=flags)
    assert caught.value.exit_code == 2


def test_bulk_port_is_the_next_one_unless_named(home: Home) -> None:
    def ports(**flags: Any) -> tuple[int, int]:
        config = effective(home, flags=flags).config
        return config.libp2p_port, config.wanted_bulk_port

    assert ports() == (4710, 4711)
    assert ports(port=0) == (0, 0)
    assert ports(port=65_535) == (65_535, 0)
    assert ports(port=80, bulk_port=90) == (80, 90)
    assert ports(listen=HostPort("127.0.0.1", 7)) == (7, 8)


def test_repeatable_variable_is_a_list(home: Home) -> None:
    found = effective(home, environ={"SWARMD_DEVICE_GPU": "0, 1"})
    assert found.config.gpu == ("0", "1")


def test_own_id_may_be_left_out_of_an_announced_address() -> None:
    read = BY_NAME["announce"].read
    assert read("/ip4/203.0.113.7/tcp/4710") == ("/ip4/203.0.113.7/tcp/4710",)
    assert read(ADDRESS_EXAMPLE) == ("/ip4/203.0.113.7/tcp/4710",)
    for wrong in ("203.0.113.7:4710", "/ip4/203.0.113.7/tcp/0", "/ip4/203.0.113.7/tcp/1/p2p/x"):
        with pytest.raises(BadValue):
            read(wrong)


def test_checking_a_file_lists_every_unknown_key() -> None:
    document = parse_toml(Path("c.toml"), b"[net]\nprot = 1\nnmae = 'x'\n")
    assert len(check_file(document)) == 2
    with pytest.raises(UserError, match=r"c\.toml") as caught:
        check_file(parse_toml(Path("c.toml"), b"[device]\nobserve = true\nstage = 1\n"))
    assert caught.value.exit_code == 78
