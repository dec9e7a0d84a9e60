"""Two forms of a message: by the names of its fields, and in their order."""

import msgpack
import pytest

from swarmd.protocols import wire
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.messages.control import Refusal
from swarmd.protocols.messages.ledger import LedgerDigest, RoundDigest


def plain_of(message):
    return msgpack.unpackb(wire.encode(message))[1]


def decode(message, plain):
    return wire.decode(msgpack.packb([message.NUMBER, plain]))


def test_ledger_messages_travel_without_the_names_of_their_fields():
    digest = LedgerDigest(settled=7, rounds=(RoundDigest(round=8, fingerprint=b"12345678"),))
    assert plain_of(digest) == [7, [[8, b"12345678"]]]
    assert wire.decode(wire.encode(digest)) == digest


def test_what_is_left_out_at_the_end_is_filled_in_and_what_comes_later_still_counts():
    assert decode(LedgerDigest, [7]) == LedgerDigest(settled=7)
    not_whole = LedgerDigest(settled=7, whole=False)
    assert plain_of(not_whole) == [7, [], False, False]
    assert wire.decode(wire.encode(not_whole)) == not_whole


def test_fields_in_order_may_come_by_name_and_unknown_ones_are_ignored():
    assert decode(LedgerDigest, {"settled": 7, "colour": 1}) == LedgerDigest(settled=7)
    assert decode(LedgerDigest, [7, [], False, True, "colour"]) == LedgerDigest(settled=7)


@pytest.mark.parametrize(
    ("message", "plain"),
    [(LedgerDigest, []), (LedgerDigest, [7, 8]), (LedgerDigest, 7), (Refusal, ["code", "text"])],
)
def test_too_few_values_wrong_ones_and_order_where_names_belong_are_malformed(message, plain):
    with pytest.raises(RemoteProtocolError, match=r"not |missing"):
        decode(message, plain)
