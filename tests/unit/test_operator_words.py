"""What one peer may tell another to do: the run says who."""

import random

import pytest
from gossip_helpers import RUN, membership, peer_id, record, signed
from lease_world import lease_shape, make_book

from swarmd.protocols import effects as fx
from swarmd.protocols.assignment import equal_needs
from swarmd.protocols.messages import control
from swarmd.protocols.peer import PeerMachine
from swarmd.protocols.peer_setup import PeerSetup

OPERATOR, STRANGER = peer_id("operator"), peer_id("stranger")


def machine() -> PeerMachine:
    """A peer that is linked to both."""
    shape = lease_shape(run_id=RUN)
    setup = PeerSetup(
        shape=shape, run_body=b"", needs=equal_needs(2), entries={}, operators=(OPERATOR,)
    )
    made = PeerMachine(setup, membership("me"), make_book("me", shape), random.Random(1), 0.0)
    made.handle(fx.Started(), 0.0)
    hello = control.Hello(run_id=RUN, incarnation=1, protocol_min=1, protocol_max=1)
    for peer in (OPERATOR, STRANGER):
        made.handle(fx.LinkUp(peer), 0.0)
        made.handle(fx.Arrived(peer, hello), 0.0)
    return made


@pytest.mark.parametrize(
    ("peer", "life", "phase", "rejected"),
    [
        (OPERATOR, 1, "draining", {}),
        (OPERATOR, 2, "active", {}),
        (STRANGER, 1, "active", {"not_the_owner": 1}),
    ],
)
def test_a_peer_drains_at_the_word_of_an_operator_and_of_nobody_else(peer, life, phase, rejected):
    told = machine()
    told.handle(fx.Arrived(peer, control.DrainAsked(incarnation=life)), 1.0)
    assert told.membership.record.phase == phase
    assert told.rejected_of(peer) == rejected


def test_an_operators_word_goes_to_the_present_life_of_the_peer_that_is_meant():
    asking = machine()
    asking.membership.learn(signed(record("stranger", incarnation=7)), STRANGER, 0.5)
    effects = asking.handle(fx.Command("ask_to_drain", {"id": STRANGER}), 1.0)
    assert fx.Send(STRANGER, control.DrainAsked(incarnation=7)) in effects
