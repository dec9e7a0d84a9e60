"""Who lacks a run's data, and what a peer does that finds out when it has taken a first stage."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from corpus_helpers import data_run, write_texts
from gossip_helpers import peer_id, record, view_of

from swarmd.data.at_hand import is_at_hand
from swarmd.data.corpus import open_corpus
from swarmd.protocols import effects as fx
from swarmd.protocols.assignment import AssignmentLimits, equal_needs
from swarmd.protocols.coverage import SwarmView, coverage_of
from swarmd.protocols.messages.gossip import PeerRecord
from swarmd.protocols.placement import Placement
from swarmd.protocols.seat import Seat

STAGES = 2


@pytest.mark.parametrize("form", ["text:{}/*.txt", "jsonl:{}/*.txt#text", "tokens:{}"])
def test_data_are_at_hand_where_the_run_or_this_machine_says(tmp_path: Path, form: str) -> None:
    write_texts(tmp_path / "here", count=1)
    here, gone = form.format(tmp_path / "here"), form.format(tmp_path / "gone")
    assert is_at_hand(data_run(here), tmp_path)
    assert not is_at_hand(data_run(gone), tmp_path)
    assert is_at_hand(data_run(gone), tmp_path, here)
    assert not is_at_hand(data_run(here), tmp_path, gone)


def test_data_in_the_cache_are_at_hand_without_their_source(tmp_path: Path) -> None:
    source, cache = write_texts(tmp_path / "in"), tmp_path / "cache"
    run = data_run(source)
    content = open_corpus(run, cache).content_hash
    for path in (tmp_path / "in").iterdir():
        path.unlink()
    run = replace(run, data=replace(run.data, content_hash=content))
    assert is_at_hand(run, cache)
    assert not is_at_hand(run, tmp_path / "other")


class Alone:
    """A seat, and the roster that its own words make."""

    def __init__(self, own: PeerRecord, wanted: int | None = None) -> None:
        numbers = count(1)
        peer = peer_id("a")
        placement = Placement(peer, equal_needs(STAGES), 7, AssignmentLimits())
        self.record = own
        self.now_s = 0.0
        self.seat = Seat(
            peer,
            placement,
            wanted=wanted,
            is_observer=False,
            is_founder=True,
            next_token=lambda: next(numbers),
        )

    def until_load(self) -> int:
        """The stage that it loads next."""
        for _ in range(20):
            self.now_s += 1.0
            view = view_of(self.record)
            swarm = SwarmView(view, coverage_of(view, STAGES), frozenset(), False)
            effects = self.seat.review(swarm, self.now_s)
            self.record = replace(self.record, **self.seat.take())
            for effect in effects:
                if isinstance(effect, fx.LoadStage):
                    return effect.stage
        raise AssertionError(f"no stage is loaded: {self.record}")

    def lose(self, code: str) -> None:
        assert self.seat.lost(code, self.now_s) == []
        self.record = replace(self.record, **self.seat.take())


@pytest.mark.parametrize("wanted", [None, 0])
def test_a_first_stage_whose_data_are_missing_is_left_for_another(wanted: int | None) -> None:
    """Also one that was pinned: the pin asked for what cannot be."""
    peer = Alone(record("a", stage=0, phase="syncing"), wanted)
    assert peer.until_load() == 0
    peer.lose("data_missing")
    assert (peer.record.stage, peer.record.phase) == (None, "joining")
    assert (peer.record.lacks_data, peer.record.pinned) == (True, False)
    assert peer.until_load() == 1
