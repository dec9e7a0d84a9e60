"""Whatever a peer sends causes a refusal and nothing else: a short run of tests/fuzz.py."""

from __future__ import annotations

import random

import pytest
from what_peers_send import READERS, examples, feed, mutated

FOUND: tuple[str, ...] = ()
"""Inputs, in hex, that once got through."""


@pytest.mark.parametrize("seed", range(3))
def test_mutations_of_good_inputs_are_refused_or_understood(seed: int) -> None:
    rng = random.Random(seed)
    good = list(examples(rng))
    for number in range(1500):
        data = mutated(rng.choice(good), rng)
        try:
            feed(data)
        except BaseException:
            pytest.fail(f"seed {seed}, input {number}: {data.hex()}")


def test_examples_are_understood_so_that_mutations_reach_deep() -> None:
    understood = {
        data[0]
        for data in examples(random.Random(7))
        if not _is_refused(READERS[data[0]], data[1:])
    }
    # A certificate of the examples is another peer's; it is refused for its name alone.
    assert understood >= set(range(len(READERS))) - {5}


def _is_refused(reader: object, body: bytes) -> bool:
    try:
        reader(body)  # type: ignore[operator]
    except Exception:
        return True
    return False


def test_what_was_once_found_is_refused() -> None:
    for found in FOUND:
        feed(bytes.fromhex(found))
