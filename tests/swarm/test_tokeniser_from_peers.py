"""A newcomer with an empty cache gets the run's tokeniser from a peer, and trains with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus_helpers import write_texts
from daemons import Daemons

from swarmd.data.sources import parse_source
from swarmd.data.tokeniser_training import train_tokeniser
from swarmd.home import home_at
from swarmd.tokeniser_files import TOKENISERS

pytestmark = [pytest.mark.process, pytest.mark.swarm, pytest.mark.slow]

RUN_FILE = """\
[run]
name = "words"
preset = "tiny"
data = "{source}"
time_scale = "local"
stages = 1
peers_min = 2
inner_steps = 2
total_steps = 6
sequence_tokens = 16
micro_batch_tokens = 32
batch_tokens = 64

[model]
vocab_size = 300

[data]
tokeniser = "{tokeniser}"
held_out_sequences = 3
"""


def test_a_newcomer_gets_the_tokeniser_from_a_peer_and_trains(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "in")
    file = tmp_path / "tokenizer.json"
    file.write_bytes(train_tokeniser(parse_source(source), 300, 1 << 20).body)
    swarm = Daemons(tmp_path, RUN_FILE.format(source=source, tokeniser=file))
    try:
        swarm.start("p0", first=True)
        swarm.link("p0")
        file.unlink()
        swarm.start("p1", via="p0")
        for name in ("p0", "p1"):
            code, output = swarm.peers[name].ended()
            assert code == 0, output
    finally:
        swarm.close()
    kept = [
        path.read_bytes()
        for name in ("p0", "p1")
        for path in (home_at(swarm.peers[name].home).cache / TOKENISERS).iterdir()
    ]
    assert len(kept) == 2
    assert kept[0] == kept[1]
