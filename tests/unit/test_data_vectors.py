"""Order and packing, to the byte, whatever the interpreter and its hash seed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from data_vectors import vectors

REPOSITORY = Path(__file__).parents[2]

PUBLISHED = {
    "content": "34cabc079c6e0fa853f606475016555b9e9fb5e91467c769b405158295e221a1",
    "tokens": "211096",
    "samples": "13089",
    "held_out": "103",
    "m0.0": "fa3de346a27cf048",
    "m3.7": "a19ccbfd8f3b3688",
    "m1048576.3": "7618de8e851cdcfe",
    "h0.0": "1ddb4729ddfadd95",
}


def test_order_and_packing_equal_the_published_vectors():
    assert vectors() == PUBLISHED


@pytest.mark.process
@pytest.mark.parametrize("seed", ["0", "1", "424242"])
def test_order_and_packing_do_not_depend_on_the_hash_seed(seed):
    paths = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "tests")))
    printed = subprocess.run(
        [sys.executable, "tests/data_vectors.py"],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths},
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    ).stdout
    assert json.loads(printed) == PUBLISHED
