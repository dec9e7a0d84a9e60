"""Peer ids, peer addresses and run links."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.peer_id import peer_id_of, public_key_of
from swarmd.protocols.ids import RunId
from swarmd.run_link import (
    ADDRESS_EXAMPLE,
    LINK_EXAMPLE,
    PEERS_MAX,
    PeerAddress,
    RunLink,
    by_peer,
    parse_peer_address,
    parse_run_link,
)
from swarmd.units import BadValue

ID = ADDRESS_EXAMPLE.rsplit("/", 1)[1]
OTHER_ID = peer_id_of(bytes(range(32)))
RUN = "7f3a" * 16


@given(st.binary(min_size=32, max_size=32))
def test_peer_id_holds_its_key(key: bytes) -> None:
    peer = peer_id_of(key)
    assert peer.startswith("12D3KooW")
    assert public_key_of(peer) == key


def test_peer_id_equals_that_of_libp2p() -> None:
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.peer.id import ID as LibraryId

    public = create_new_key_pair(b"k" * 32).public_key
    assert peer_id_of(public.to_bytes()) == LibraryId.from_pubkey(public).to_base58()


def test_examples_are_right() -> None:
    assert str(parse_peer_address(ADDRESS_EXAMPLE)) == ADDRESS_EXAMPLE
    assert str(parse_run_link(LINK_EXAMPLE)) == LINK_EXAMPLE


@pytest.mark.parametrize(
    "base",
    [
        "/ip4/127.0.0.1/tcp/1",
        "/ip6/2001:db8::1/tcp/65535",
        "/dns/peer.example.org/tcp/4710",
        "/dns4/a/tcp/4710",
    ],
)
def test_address_is_split_into_peer_and_base(base: str) -> None:
    assert parse_peer_address(f"{base}/p2p/{ID}") == PeerAddress(ID, base)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is empty"),
        (f" /ip4/127.0.0.1/tcp/1/p2p/{ID}", "has a space"),
        (f"/ip4/127.0.0.1/tcp/1 /p2p/{ID}", "has a space"),
        ("127.0.0.1:4710", "does not have the form"),
        ("/ip4/127.0.0.1/tcp/4710", "has no /p2p/ID"),
        (f"/ip4/127.0.0.1/p2p/{ID}", "parts between slashes"),
        (f"/ipv4/127.0.0.1/tcp/1/p2p/{ID}", "begins with 'ipv4'"),
        (f"/ip4/300.0.0.1/tcp/1/p2p/{ID}", "no ip4 address"),
        (f"/ip4/::1/tcp/1/p2p/{ID}", "no ip4 address"),
        (f"/dns/-x-/tcp/1/p2p/{ID}", "no host name"),
        (f"/dns/{'a' * 300}/tcp/1/p2p/{ID}", "no host name"),
        (f"/ip4/127.0.0.1/udp/1/p2p/{ID}", "goes over 'udp'"),
        (f"/ip4/127.0.0.1/tcp/70000/p2p/{ID}", "not in 1..65535"),
        (f"/ip4/127.0.0.1/tcp/0/p2p/{ID}", "not in 1..65535"),
        (f"/ip4/127.0.0.1/tcp/x/p2p/{ID}", "not in 1..65535"),
        (f"/ip4/127.0.0.1/tcp/1/p2p/{ID[:-1]}", "is not an ed25519 peer id"),
        ("/ip4/127.0.0.1/tcp/1/p2p/QmNLei78zWmzUdbeRB3CiUfAizWUrbeeZh5K1rhAQKCh51", "ed25519"),
        ("/ip4/127.0.0.1/tcp/1/p2p/", "has 0 characters"),
        (f"/ip4/127.0.0.1/tcp/1/p2p/{ID.replace('W', '0')}", "which no peer id has"),
    ],
)
def test_wrong_address_is_named_with_its_fault_and_a_right_one(text: str, fault: str) -> None:
    with pytest.raises(BadValue) as caught:
        parse_peer_address(text)
    assert fault in str(caught.value)
    assert ADDRESS_EXAMPLE in str(caught.value)
    assert "\n" not in str(caught.value)


def test_link_reads_back() -> None:
    link = RunLink(
        RunId(RUN),
        (parse_peer_address(ADDRESS_EXAMPLE), PeerAddress(OTHER_ID, "/ip4/1.2.3.4/tcp/5")),
    )
    assert parse_run_link(str(link)) == link
    assert parse_run_link(f"swarmd://{RUN}") == RunLink(RunId(RUN))


def test_link_may_be_percent_encoded_and_repeat_itself() -> None:
    encoded = ADDRESS_EXAMPLE.replace("/", "%2F")
    link = parse_run_link(f"swarmd://{RUN}/?peer={encoded}&peer={ADDRESS_EXAMPLE}")
    assert link.entries == (parse_peer_address(ADDRESS_EXAMPLE),)


def test_link_holds_no_more_entries_than_help() -> None:
    many = "&".join(f"peer=/ip4/10.0.0.1/tcp/{port}/p2p/{ID}" for port in range(1, 100))
    assert len(parse_run_link(f"swarmd://{RUN}?{many}").entries) == PEERS_MAX


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"https://{RUN}", "does not begin with swarmd://"),
        ("swarmd://7f3a", "64 digits"),
        (f"swarmd://{RUN.upper()}", "64 digits"),
        (f"swarmd://{RUN}?peer=", "is empty"),
        (f"swarmd://{RUN}?peers={ADDRESS_EXAMPLE}", "where peer=ADDR belongs"),
        (f"swarmd://{RUN}?peer=/ip4/127.0.0.1", "has no /p2p/ID"),
        (f"swarmd://{RUN}?peer={'x' * 20_000}", "characters"),
    ],
)
def test_wrong_link_is_named_with_its_fault_and_a_right_one(text: str, fault: str) -> None:
    with pytest.raises(BadValue) as caught:
        parse_run_link(text)
    assert fault in str(caught.value)
    assert LINK_EXAMPLE in str(caught.value)


@given(st.text(max_size=80))
def test_any_text_is_a_link_or_a_bad_value(text: str) -> None:
    for candidate in (text, f"swarmd://{text}", f"swarmd://{RUN}?peer={text}"):
        try:
            parse_run_link(candidate)
        except BadValue:
            pass


def test_entries_are_gathered_by_peer() -> None:
    entries = [
        PeerAddress(ID, "/ip4/1.1.1.1/tcp/1"),
        PeerAddress(OTHER_ID, "/ip4/2.2.2.2/tcp/2"),
        PeerAddress(ID, "/ip4/3.3.3.3/tcp/3"),
        PeerAddress(ID, "/ip4/1.1.1.1/tcp/1"),
    ]
    assert by_peer(entries) == {
        ID: ("/ip4/1.1.1.1/tcp/1", "/ip4/3.3.3.3/tcp/3"),
        OTHER_ID: ("/ip4/2.2.2.2/tcp/2",),
    }
