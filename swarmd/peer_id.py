"""Peer ids: a libp2p identity multihash of an ed25519 key, in base58 (`12D3KooW...`).

    00 24               multihash: identity, 36 bytes follow
    08 01 12 20 <key>   libp2p's protobuf of a public key: type 1 (ed25519), 32 bytes

So an id holds its key, and a signature can be checked with nothing but the id. Any other kind of
id (RSA, secp256k1, a hash) is refused: swarmd makes and accepts ed25519 only. Standard library
only, because addresses are checked by commands that must start at once.
"""

from __future__ import annotations

from swarmd.protocols.ids import PeerId

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}
_PREFIX = bytes.fromhex("0024080112") + b"\x20"
_ID_CHARS_MAX = 64


def peer_id_of(public_key: bytes) -> PeerId:
    """The id of an ed25519 public key of 32 bytes."""
    assert len(public_key) == 32
    return PeerId(_base58(_PREFIX + public_key))


def public_key_of(peer_id: str) -> bytes:
    """The 32 bytes inside an id. Raises ValueError for anything but an ed25519 peer id."""
    raw = _from_base58(peer_id)
    if len(raw) != len(_PREFIX) + 32 or not raw.startswith(_PREFIX):
        raise ValueError("is not an ed25519 peer id")
    return raw[len(_PREFIX) :]


def _base58(raw: bytes) -> str:
    number = int.from_bytes(raw, "big")
    letters = []
    while number:
        number, digit = divmod(number, 58)
        letters.append(_ALPHABET[digit])
    zeros = len(raw) - len(raw.lstrip(b"\0"))
    return "1" * zeros + "".join(reversed(letters))


def _from_base58(text: str) -> bytes:
    if not 0 < len(text) <= _ID_CHARS_MAX:
        raise ValueError(f"has {len(text)} characters, a peer id has 52")
    number = 0
    for letter in text:
        if letter not in _VALUES:
            raise ValueError(f"has the character {letter!r}, which no peer id has")
        number = number * 58 + _VALUES[letter]
    zeros = len(text) - len(text.lstrip("1"))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")
