"""Bytes to messages and back: strict msgpack with bounds checked before a message is built.

A message is `[number, {field: value}]`. What a peer sends can cause one thing only:
RemoteProtocolError, with `too_large` or `malformed`. Framing (who delimits messages on a stream)
belongs to the transport; see README.md.
"""

from __future__ import annotations

import msgpack

from swarmd.protocols import limits
from swarmd.protocols.errors import LocalProtocolError, RemoteProtocolError
from swarmd.protocols.messages import REGISTRY, Message
from swarmd.protocols.schema import from_fields, to_fields


def encode(message: Message) -> bytes:
    """Raises LocalProtocolError if the message breaks its own bounds."""
    plain = to_fields(message)
    try:
        from_fields(type(message), plain)
    except ValueError as error:
        raise LocalProtocolError("malformed", str(error)) from None
    body: bytes = msgpack.packb([message.NUMBER, plain], use_bin_type=True)
    if len(body) > limits.CONTROL_MESSAGE_BYTES_MAX:
        raise LocalProtocolError("too_large", f"{type(message).__name__} of {len(body)} bytes")
    return body


def decode(body: bytes | bytearray | memoryview) -> Message:
    """Raises RemoteProtocolError: too_large, or malformed."""
    outer = unpack(body)
    if not isinstance(outer, list) or len(outer) != 2 or type(outer[0]) is not int:
        raise RemoteProtocolError("malformed", "not a numbered message")
    kind = REGISTRY.get(outer[0])
    if kind is None:
        raise RemoteProtocolError("malformed", f"unknown message number {outer[0]}")
    try:
        return from_fields(kind, outer[1])
    except ValueError as error:
        raise RemoteProtocolError("malformed", str(error)) from None


def unpack(body: bytes | bytearray | memoryview) -> object:
    """Plain values from untrusted msgpack: no extension types, string keys, bounded everywhere."""
    if len(body) > limits.CONTROL_MESSAGE_BYTES_MAX:
        raise RemoteProtocolError("too_large", f"message of {len(body)} bytes")
    try:
        value: object = msgpack.unpackb(
            body,
            raw=False,
            strict_map_key=True,
            max_str_len=limits.CONTROL_MESSAGE_BYTES_MAX,
            max_bin_len=limits.CONTROL_MESSAGE_BYTES_MAX,
            max_array_len=limits.ITEMS_MAX,
            max_map_len=limits.ITEMS_MAX,
            max_ext_len=0,
        )
    except Exception as error:  # msgpack raises ValueError, its own types and UnicodeDecodeError
        raise RemoteProtocolError("malformed", f"{type(error).__name__}: {error}") from None
    if _is_deeper_than(value, limits.DEPTH_MAX):
        raise RemoteProtocolError("malformed", "nested too deeply")
    return value


def _is_deeper_than(value: object, depth_max: int) -> bool:
    layer = [value]
    for _ in range(depth_max):
        inner: list[object] = []
        for item in layer:
            if isinstance(item, list):
                inner.extend(item)
            elif isinstance(item, dict):
                inner.extend(item.values())
        if not inner:
            return False
        layer = inner
    return any(isinstance(item, (list, dict)) for item in layer)
