"""What a peer can write on a carrier: frames, or RemoteProtocolError. Nothing else, ever."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.net.frames import (
    FRAME_BODY_BYTES_MAX,
    GOODBYE_BYTES_MAX,
    HEADER,
    HELLO_BYTES_MAX,
    Hello,
    Kind,
    decode_hello,
    frame,
    goodbye,
    parse_header,
)
from swarmd.protocols.errors import RemoteProtocolError

HELLO = Hello(plane="control", nonce=b"12345678", window_bytes=1 << 20)


@given(st.binary(min_size=HEADER.size, max_size=HEADER.size))
def test_any_eight_bytes_are_a_bounded_frame_or_a_broken_rule(head: bytes) -> None:
    try:
        _, lane, length = parse_header(head)
    except RemoteProtocolError as error:
        assert error.code in ("malformed", "too_large")  # noqa: PT017
    else:
        assert lane < 4
        assert length <= FRAME_BODY_BYTES_MAX


@given(st.binary(max_size=400))
def test_any_bytes_are_a_hello_or_a_broken_rule(body: bytes) -> None:
    try:
        decode_hello(body)
    except RemoteProtocolError as error:
        assert error.code in ("malformed", "too_large")  # noqa: PT017


FIELDS = ["v", "plane", "nonce", "window", "yours", "bulk", "certificate", "observed", "shape"]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=5,
)


@given(st.sampled_from(FIELDS), VALUES)
def test_a_hello_with_any_one_field_changed_is_sound_or_refused(name: str, value: object) -> None:
    plain = msgpack.unpackb(HELLO.encode()[HEADER.size :])
    try:
        body = msgpack.packb(plain | {name: value})
    except OverflowError:
        return
    try:
        said = decode_hello(body)
    except RemoteProtocolError:
        return
    assert said.plane in ("control", "bulk")
    assert len(said.nonce) == 8
    assert all(0 <= part < 1e15 for part in said.shape)


def test_a_hello_comes_back_as_it_was_said_and_unknown_fields_are_ignored() -> None:
    said = Hello(
        plane="bulk",
        nonce=b"abcdefgh",
        yours=b"ABCDEFGH",
        window_bytes=123,
        bulk=("/ip4/192.0.2.1/tcp/1",),
        certificate=b"\x30\x82",
        observed="192.0.2.7:9",
        shape=(1e6, 0.04, 0.005),
    )
    body = said.encode()[HEADER.size :]
    assert decode_hello(body) == said
    newer = msgpack.packb(msgpack.unpackb(body) | {"something_new": [1, 2]})
    assert decode_hello(newer) == said


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (HEADER.pack(0, 0, 0, 0), "malformed"),
        (HEADER.pack(99, 0, 0, 0), "malformed"),
        (HEADER.pack(Kind.DATA, 4, 0, 0), "malformed"),
        (HEADER.pack(Kind.DATA, 0, 1, 0), "malformed"),
        (HEADER.pack(Kind.DATA, 0, 0, FRAME_BODY_BYTES_MAX + 1), "too_large"),
        (HEADER.pack(Kind.DATA, 0, 0, 1 << 31), "too_large"),
        (HEADER.pack(Kind.HELLO, 0, 0, HELLO_BYTES_MAX + 1), "too_large"),
        (HEADER.pack(Kind.GOODBYE, 0, 0, GOODBYE_BYTES_MAX + 1), "too_large"),
        (HEADER.pack(Kind.BEAT, 0, 0, 7), "malformed"),
        (HEADER.pack(Kind.ACK, 0, 0, 17), "malformed"),
        (HEADER.pack(Kind.OPEN, 0, 0, 20), "malformed"),
        (HEADER.pack(Kind.RESUME, 0, 0, 0), "malformed"),
    ],
)
def test_a_bad_header_is_refused_before_its_body_is_read(head: bytes, code: str) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        parse_header(head)
    assert refused.value.code == code


def test_a_goodbye_is_cut_to_its_bound() -> None:
    assert len(goodbye("x" * 10_000)) == HEADER.size + GOODBYE_BYTES_MAX
    assert parse_header(frame(Kind.BEAT, bytes(20))[: HEADER.size]) == (Kind.BEAT, 0, 20)
