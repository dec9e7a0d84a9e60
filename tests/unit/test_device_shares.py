"""Which settings the daemon of each device gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swarmd.device_shares import settings_file, split
from swarmd.errors import UserError
from swarmd.home import home_at
from swarmd.peer_config import PeerConfig, effective_config
from swarmd.run_link import ADDRESS_EXAMPLE, parse_peer_address
from swarmd.settings import NAME_CHARS_MAX, parse_host_port


@pytest.mark.parametrize(
    "given",
    [{}, {"gpu": ("0",)}, {"device": ("cpu",)}, {"observe": True, "gpu": ("0", "1")}],
    ids=["none", "gpu", "cpu", "observer"],
)
def test_one_device_or_none_changes_nothing(given: Any) -> None:
    config = PeerConfig(limit_up=1e6, announce=("/ip4/203.0.113.7/tcp/4710",), **given)
    assert split(config) == (config,)


def test_each_gpu_has_a_daemon_with_ports_that_are_ten_higher() -> None:
    config = PeerConfig(
        name="alder",
        gpu=("0", "GPU-1", "3"),
        announce=("/ip4/203.0.113.7/tcp/14710",),
        web=parse_host_port("127.0.0.1:4712"),
        metrics=parse_host_port("127.0.0.1:4713"),
        run="demo",
    )
    first, second, third = split(config)
    assert [one.gpu for one in (first, second, third)] == [("0",), ("GPU-1",), ("3",)]
    assert (first.port, first.web, first.run) == (4710, config.web, "demo")
    assert [one.name for one in (first, second, third)] == ["alder", "alder-2", "alder-3"]
    assert (third.libp2p_port, third.wanted_bulk_port) == (4730, 4731)
    assert third.announce == ("/ip4/203.0.113.7/tcp/14730",)
    assert third.announced_bulk == ("/ip4/203.0.113.7/tcp/14731",)
    assert [str(place) for place in (third.web, third.metrics)] == [
        "127.0.0.1:4732",
        "127.0.0.1:4733",
    ]
    assert third.run is None, "it is told which run"


def test_any_free_port_stays_any_free_port_and_a_long_name_stays_a_name() -> None:
    config = PeerConfig(
        name="a" * NAME_CHARS_MAX, device=("cpu", "cpu"), listen=parse_host_port("127.0.0.1:0")
    )
    _, second = split(config)
    assert (second.libp2p_port, second.wanted_bulk_port) == (0, 0)
    assert second.device == ("cpu",)
    assert second.name == "a" * (NAME_CHARS_MAX - 2) + "-2"
    (_, high) = split(PeerConfig(port=65_530, gpu=("0", "1")))
    assert high.port == 0


def test_what_is_limited_for_the_machine_is_shared_out() -> None:
    config = PeerConfig(
        gpu=("0", "1"),
        limit_up=3e6,
        limit_down=None,
        quota_month=1001,
        disk_limit=10_000,
        memory_limit=4_000,
        temp_limit=80,
    )
    for one in split(config):
        assert (one.limit_up, one.limit_down) == (1.5e6, None)
        assert (one.quota_month, one.disk_limit) == (500, 5_000)
        assert (one.memory_limit, one.temp_limit) == (4_000, 80), "of each device"


def test_settings_of_a_device_are_read_back_from_its_file(tmp_path: Path) -> None:
    config = PeerConfig(
        name="alder",
        gpu=("0", "1"),
        listen=parse_host_port("[::1]:4710"),
        peer=(parse_peer_address(ADDRESS_EXAMPLE),),
        hours=(22, 7),
        limit_up=2.5e6,
        only_idle=True,
    )
    home = home_at(tmp_path)
    home.create()
    for one in split(config):
        home.config_file.write_text(settings_file(one))
        assert effective_config(home, environ={}).config == one


@pytest.mark.parametrize(
    "given",
    [
        {"gpu": ("0", "1"), "device": ("cpu",)},
        {"device": ("mps", "mps")},
        {"device": ("auto", "cpu")},
    ],
)
def test_devices_that_cannot_be_meant_are_refused(given: Any) -> None:
    with pytest.raises(UserError) as caught:
        PeerConfig(**given)
    assert caught.value.exit_code == 2
