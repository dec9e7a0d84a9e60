"""A stage's state from several donors, with real bytes: STATE-01, STATE-02, STATE-03, STATE-04."""

from __future__ import annotations

from dataclasses import replace

import pytest
from state_world import JOINER, PIECE, STAGE, StateWorld, made_up

from swarmd.protocols import effects as fx
from swarmd.protocols.messages.state import Manifest, StateRequest
from swarmd.protocols.state_donor import HOLD_S, StateDonor, digest_of
from swarmd.protocols.state_fetch import AVOID_S, STALL_S
from swarmd.protocols.state_offers import why_not

PIECES = 12


@pytest.fixture
def world() -> StateWorld:
    return StateWorld()


def stop_halfway(world: StateWorld, act: object) -> None:
    """Call `act` once half of the pieces are there."""

    def look() -> None:
        if world.pieces_done >= PIECES // 2:
            world.before_chunk = lambda: None
            act()  # type: ignore[operator]

    world.before_chunk = look


def test_every_donor_gives_a_share_and_nothing_comes_twice(world: StateWorld) -> None:
    body = made_up(PIECES)
    for name in ("a", "b", "c"):
        world.add(name, body)
    world.join()
    world.run()
    assert world.fetched == body
    assert set(world.received.values()) == {1}
    assert min(world.gave().values()) >= PIECES // 6
    assert sum(world.gave().values()) == PIECES
    assert not world.slots, "every slot was given back"


def test_a_donor_killed_halfway_costs_nothing_that_had_come(world: StateWorld) -> None:
    body = made_up(PIECES)
    for name in ("a", "b"):
        world.add(name, body)
    stop_halfway(world, lambda: world.remove("a"))
    world.join()
    world.run()
    assert world.fetched == body
    came = [index for _, index in world.received.elements()]
    assert sorted(came) == list(range(PIECES)), "no piece came twice, none is missing"
    assert ("a", "gone") in world.codes("donor_changed")


def test_a_frozen_donor_is_left_after_the_stall_limit(world: StateWorld) -> None:
    body = made_up(PIECES)
    frozen = world.add("a", body)
    world.add("b", body)
    stop_halfway(world, lambda: setattr(frozen, "is_silent", True))
    world.join()
    began_s = world.now_s
    world.run()
    assert world.fetched == body
    assert ("a", "silent") in world.codes("donor_changed")
    assert STALL_S < world.now_s - began_s < 2 * STALL_S


def test_with_no_donor_left_what_was_fetched_is_kept_until_another_comes(
    world: StateWorld,
) -> None:
    body = made_up(PIECES)
    world.add("a", body)
    stop_halfway(world, lambda: world.remove("a"))
    fetch = world.join()
    world.run(30.0)
    assert fetch.reason(world.now_s).code == "state_no_donor"
    world.add("b", body)
    world.know()
    world.run()
    assert world.fetched == body
    assert len(world.received) == sum(world.received.values()) == PIECES


def test_a_flipped_byte_is_refused_its_sender_named_and_left(world: StateWorld) -> None:
    body = made_up(PIECES)
    liar = world.add("a", body)
    liar.spoils = set(range(PIECES))
    world.add("b", body)
    fetch = world.join()
    world.run()
    assert world.fetched == body
    assert world.codes("state/rejected") == [("a", "hash_mismatch")]
    assert fetch.donors["a"].avoid_until_s > world.now_s  # type: ignore[index]
    assert fetch.pieces is not None
    assert fetch.pieces.bytes_refetched >= PIECE


def test_a_wrong_manifest_is_outvoted_and_nothing_of_it_is_taken(world: StateWorld) -> None:
    body = made_up(PIECES)
    world.add("a", made_up(PIECES, "poison"), sketch=(-3.0, 4.0))
    world.add("b", body)
    world.add("c", body)
    world.join()
    world.run()
    assert world.fetched == body
    assert world.codes("state/rejected") == [("a", "outvoted")]
    assert "a" not in world.gave()


def test_wrong_bytes_under_a_right_sketch_lose_against_the_hash_that_most_have(
    world: StateWorld,
) -> None:
    body = made_up(PIECES)
    world.add("a", made_up(PIECES, "poison"))
    world.add("b", body)
    world.add("c", body)
    world.join()
    world.run()
    assert world.fetched == body
    assert "a" not in world.gave()


def test_replicas_that_differ_in_the_last_bits_give_pieces_that_stand_side_by_side(
    world: StateWorld,
) -> None:
    bodies = {name: made_up(PIECES, name) for name in ("a", "b", "c")}
    for place, (name, body) in enumerate(bodies.items()):
        world.add(name, body, sketch=(1.0 + place * 1e-4, -2.0))
    world.add("d", made_up(PIECES, "d"), sketch=(-1.0, 2.0))
    world.join()
    world.run()
    assert world.fetched is not None
    for (name, index), times in world.received.items():
        assert times == 1
        where = slice(index * PIECE, (index + 1) * PIECE)
        assert world.fetched[where] == bodies[name][where]
    assert set(world.gave()) == {"a", "b", "c"}
    assert world.codes("state/rejected") == [("d", "outvoted")]


def test_a_joiner_that_was_killed_goes_on_with_what_it_had(world: StateWorld) -> None:
    body = made_up(PIECES)
    donors = [world.add(name, body) for name in ("a", "b")]
    stop_halfway(world, world.kill_joiner)
    world.join()
    world.run()
    assert world.fetched is None
    for donor in donors:  # the swarm has gone on meanwhile, with other parameters
        donor.machine.round, donor.body = 5, made_up(PIECES, "later")
    before = sum(world.received.values())
    world.join(partial_round=3)
    world.run()
    assert world.fetched == body
    (verified,) = [e for e in world.told if e.name == "transfer_verified"]
    kept = -(-verified.fields["bytes_kept"] // PIECE)
    assert kept >= PIECES // 2
    after = sum(world.received.values()) - before
    assert kept + after == PIECES, "what was written is not fetched again"


def test_spoilt_pieces_of_an_interrupted_transfer_are_fetched_again(world: StateWorld) -> None:
    body = made_up(PIECES)
    world.add("a", body)
    world.disk["fetch-01-000003.safetensors"] = bytearray(body[: 10 * PIECE + 5])
    world.disk["fetch-01-000003.safetensors"][4 * PIECE] ^= 1
    world.join(partial_round=3)
    world.run()
    assert world.fetched == body
    assert sorted(index for _, index in world.received) == [4, *range(10, PIECES)]


def test_a_full_disk_keeps_what_is_good_and_goes_on_when_there_is_room(world: StateWorld) -> None:
    body = made_up(PIECES)
    world.add("a", body)
    stop_halfway(world, lambda: setattr(world, "is_full", True))
    fetch = world.join()
    world.run(20.0)
    assert world.fetched is None
    assert fetch.reason(world.now_s).code == "disk_full"
    done = world.pieces_done
    assert done >= PIECES // 2
    world.is_full = False
    world.run()
    assert world.fetched == body


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"hashes": ()}, "malformed"),
        ({"hashes": (b"1" * 32,)}, "malformed"),
        ({"hashes": (b"1" * 32, b"2" * 31)}, "malformed"),
        ({"hashes": (b"1" * 32, b"2" * 32)}, "hash_mismatch"),
        ({"stage": STAGE + 1}, "wrong_stage"),
    ],
)
def test_a_manifest_that_cannot_be_right_is_refused_by_name(
    change: dict[str, object], code: str
) -> None:
    hashes = (b"a" * 32, b"b" * 32)
    right = Manifest(
        stage=STAGE,
        round=3,
        step=7,
        size_bytes=PIECE + 1,
        chunk_bytes=PIECE,
        hashes=hashes,
        digest=digest_of(hashes),
    )
    assert why_not(right, STAGE) is None
    assert why_not(replace(right, **change), STAGE) == code  # type: ignore[arg-type]


def test_a_state_that_the_worker_refuses_is_never_asked_of_the_same_donor_again(
    world: StateWorld,
) -> None:
    world.add("a", made_up(2, "poison"))
    fetch = world.join()
    world.run()
    assert fetch.is_done
    world.add("b", made_up(2))
    world.know()
    world._do(JOINER, fetch.begin_again(world.now_s))
    world.know()
    world.run(AVOID_S / 2)
    assert world.fetched == made_up(2)
    assert world.codes("state/rejected") == [("a", "refused_by_worker")]


def test_a_donor_serves_no_faster_than_its_cap(world: StateWorld) -> None:
    body = made_up(PIECES)
    world.add("a", body, serve_bytes_per_s=4.0 * PIECE)
    world.join()
    began_s = world.now_s
    world.run()
    assert world.fetched == body
    took_s = world.now_s - began_s
    assert took_s >= (PIECES - 4 - 1) / 4.0, "what may come at once is a second's worth"
    assert set(world.received.values()) == {1}, "refused is not sent twice"


def test_a_donor_keeps_an_old_round_as_long_as_somebody_may_go_on_with_it(
    world: StateWorld,
) -> None:
    donor = world.add("a", made_up(2))
    world.join()
    world.run()
    assert len(donor.files) == 1
    world.kill_joiner()
    donor.machine.round, donor.body = 4, made_up(2, "later")
    world.now_s += HOLD_S + 1.0
    world.join()
    world.run()
    assert world.fetched == made_up(2, "later")
    assert len(donor.files) == 1, "the old file is gone"


def test_a_stage_that_is_not_held_is_refused() -> None:
    donor = StateDonor(lambda: 1)
    ask = fx.Arrived(JOINER, StateRequest(stage=STAGE))
    (refusal,) = donor.handle(ask, 0.0)
    assert isinstance(refusal, fx.Send)
    assert refusal.message.code == "no_state"  # type: ignore[attr-defined]
    donor.stage = 0
    (refusal,) = donor.handle(ask, 0.0)
    assert refusal.message.code == "wrong_stage"  # type: ignore[attr-defined, union-attr]
