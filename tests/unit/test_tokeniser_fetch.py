"""A tokeniser comes from any peer that has it, whole and right, or not at all."""

from __future__ import annotations

import random

import pytest
from compute_helpers import small_run

from swarmd.protocols import effects as fx
from swarmd.protocols import wire
from swarmd.protocols.greeting import Greeting
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.control import (
    TOKENISER_PART_BYTES,
    TokeniserPart,
    TokeniserRequest,
)
from swarmd.protocols.tokeniser_fetch import TIMER, TokeniserFetch, TokeniserLimits
from swarmd.tokeniser_files import find, keep, name_of

BODY = random.Random(3).randbytes(2 * TOKENISER_PART_BYTES + 77)
NAME = name_of(BODY)
ALDER, BIRCH = PeerId("alder"), PeerId("birch")


def fetch(*entries: PeerId) -> TokeniserFetch:
    places = {peer: ("/ip4/127.0.0.1/tcp/1",) for peer in entries}
    return TokeniserFetch(NAME, places, hash_of=name_of, limits=TokeniserLimits())


def donor(body: bytes, name: str = NAME) -> Greeting:
    return Greeting(small_run().shape, b"", 1, "test", (name, body))


NOBODYS = Greeting(small_run().shape, b"", 1, "test")


def converse(
    machine: TokeniserFetch, donors: dict[PeerId, Greeting], effects: list[fx.Effect]
) -> list[fx.Emit]:
    """Requests reach their peer and the answers the machine, over the wire."""
    told: list[fx.Emit] = []
    waiting = list(effects)
    while waiting:
        effect = waiting.pop(0)
        if isinstance(effect, fx.Emit):
            told.append(effect)
        if isinstance(effect, fx.Send) and effect.peer in donors:
            request = wire.decode(wire.encode(effect.message))
            assert isinstance(request, TokeniserRequest)
            for sent in donors[effect.peer].heard_tokeniser_request(ALDER, request):
                assert isinstance(sent, fx.Send)
                part = wire.decode(wire.encode(sent.message))
                waiting += machine.handle(fx.Arrived(effect.peer, part), 1.0)
    return told


def test_a_file_of_several_pieces_arrives_and_is_what_its_name_says(tmp_path) -> None:
    machine = fetch(ALDER)
    dials = [e.peer for e in machine.handle(fx.Started(), 0.0) if isinstance(e, fx.Dial)]
    assert dials == [ALDER]
    (told,) = converse(machine, {ALDER: donor(BODY)}, machine.handle(fx.LinkUp(ALDER), 0.1))
    assert (told.name, told.fields["body"]) == ("tokeniser_fetched", BODY)
    keep(told.fields["body"], tmp_path)
    assert find(NAME, tmp_path) == BODY
    assert machine.handle(fx.LinkUp(BIRCH), 2.0) == []


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (donor(BODY[:-1] + b"?"), "hash_mismatch"),
        (donor(BODY[:100]), "hash_mismatch"),
        (donor(BODY, "ab" * 32), "missing"),
        (NOBODYS, "missing"),
    ],
)
def test_whoever_has_none_or_another_is_left_for_the_next(first: Greeting, why: str) -> None:
    machine = fetch(ALDER, BIRCH)
    machine.handle(fx.Started(), 0.0)
    effects = machine.handle(fx.LinkUp(ALDER), 0.1) + machine.handle(fx.LinkUp(BIRCH), 0.1)
    (told,) = converse(machine, {ALDER: first, BIRCH: donor(BODY)}, effects)
    assert told.fields["body"] == BODY
    assert machine.left == {ALDER: why}


def test_whoever_is_silent_or_gone_is_left_for_the_next() -> None:
    machine = fetch(ALDER, BIRCH)
    machine.handle(fx.Started(), 0.0)
    machine.handle(fx.LinkUp(ALDER), 0.1)
    machine.handle(fx.LinkUp(BIRCH), 0.1)
    (asked, _) = machine.handle(fx.TimerFired(TIMER), 5.1)
    assert isinstance(asked, fx.Send)
    assert asked.peer == BIRCH
    (told,) = [
        effect
        for effect in machine.handle(fx.LinkDown(BIRCH, "lost"), 5.2)
        if isinstance(effect, fx.Emit)
    ]
    assert told.name == "tokeniser_not_found"
    assert machine.left == {ALDER: "silent", BIRCH: "lost"}


def test_nobody_who_answers_is_waited_for_no_longer_than_the_limit() -> None:
    machine = fetch(ALDER)
    (_, timer) = machine.handle(fx.Started(), 0.0)
    assert timer == fx.SetTimer(TIMER, TokeniserLimits().answer_s)
    effects = machine.handle(fx.TimerFired(TIMER), 5.0)
    assert [e.name for e in effects if isinstance(e, fx.Emit)] == ["tokeniser_not_found"]


@pytest.mark.parametrize(
    "part",
    [
        TokeniserPart(name="cd" * 32, offset=0, size_bytes=10, body=b"x"),
        TokeniserPart(name=NAME, offset=3, size_bytes=10, body=b"x"),
        TokeniserPart(name=NAME, offset=0, size_bytes=10, body=b""),
        TokeniserPart(name=NAME, offset=0, size_bytes=10, body=b"x" * 11),
    ],
)
def test_a_piece_that_does_not_fit_ends_with_its_sender(part: TokeniserPart) -> None:
    machine = fetch(ALDER)
    machine.handle(fx.Started(), 0.0)
    machine.handle(fx.LinkUp(ALDER), 0.1)
    assert machine.handle(fx.Arrived(BIRCH, part), 0.2) == []  # it was not asked
    machine.handle(fx.Arrived(ALDER, part), 0.3)
    assert machine.left == {ALDER: "malformed"}
