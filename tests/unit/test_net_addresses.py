"""Addresses: what is read, what is refused, what is announced."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from swarmd.net.addresses import (
    BadAddress,
    announced_hosts,
    is_loopback,
    parse_address,
)

PEER = "12D3KooWGC8xfFjnnHnZeCVv1xZQ5PYvhDYQZ5GUJmZ3N2kFbG1S"


@pytest.mark.parametrize(
    "text",
    [
        "/ip4/203.0.113.7/tcp/4710",
        f"/ip4/203.0.113.7/tcp/4710/p2p/{PEER}",
        "/ip6/2001:db8::7/tcp/4710",
        f"/dns/peer.example/tcp/1/p2p/{PEER}",
        "/dns4/peer.example/tcp/65535",
        "/ip4/127.0.0.1/tcp/0",
        "/p2p/12D3KooW/p2p-circuit",
        "/p2p/12D3KooW/p2p-circuit/p2p/12D3KooX",
    ],
)
def test_a_good_address_is_written_as_it_was_read(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "203.0.113.7:4710",
        "/ip4/203.0.113.7",
        "/ip4/203.0.113.7/udp/4710",
        "/ip4/203.0.113.7/tcp/70000",
        "/ip4/203.0.113.7/tcp/-1",
        "/ip4/203.0.113.7/tcp/+1",
        "/ip4/203.0.113.7/tcp/",
        "/ip4/2001:db8::7/tcp/1",
        "/ip6/203.0.113.7/tcp/1",
        "/ip4/300.0.113.7/tcp/1",
        "/dns//tcp/1",
        "/ip4/203.0.113.7/tcp/1/p2p",
        "/ip4/203.0.113.7/tcp/1/p2p/",
        "/ip4/203.0.113.7/tcp/1/ipfs/x",
        " /ip4/203.0.113.7/tcp/1",
        "/ip4/203.0.113.7/tcp/1/quic/p2p/x",
        "/p2p/12D3KooW",
        "/p2p//p2p-circuit",
        "/p2p/12D3KooW/p2p-circuit/p2p/",
        "/p2p/12D3KooW/p2p-circuit/x/12D3KooX",
    ],
)
def test_a_bad_address_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(BadAddress, match=r".{10,}"):
        parse_address(text)


def interfaces(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Pretend that the machine has these."""
    entries = [
        SimpleNamespace(family=socket.AF_INET6 if ":" in host else socket.AF_INET, address=host)
        for host in hosts
    ]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": entries})


def test_a_wildcard_is_announced_as_what_it_means(monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces(monkeypatch, "127.0.0.1", "::1", "172.17.0.1", "1.2.3.4", "fe80::1%eth0", "2606::7")
    assert announced_hosts("0.0.0.0") == ["1.2.3.4", "172.17.0.1"]
    assert set(announced_hosts("::")) == {"1.2.3.4", "172.17.0.1", "2606::7"}


def test_loopback_is_announced_only_if_nothing_else_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interfaces(monkeypatch, "127.0.0.1", "::1")
    assert announced_hosts("0.0.0.0") == ["127.0.0.1"]
    assert announced_hosts("::") == ["::1"]


def test_a_named_interface_is_announced_as_it_is() -> None:
    assert announced_hosts("127.0.0.1") == ["127.0.0.1"]
    assert announced_hosts("192.0.2.5") == ["192.0.2.5"]


def test_loopback_is_recognised() -> None:
    assert is_loopback(f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}")
    assert is_loopback("/ip6/::1/tcp/1")
    assert not is_loopback("/ip4/203.0.113.7/tcp/1")
    assert not is_loopback("/dns/localhost/tcp/1")
