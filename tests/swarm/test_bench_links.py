"""`swarmd bench links` measures what it says, between two real processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from json_schema_check import assert_valid

pytestmark = pytest.mark.process

SIZES = (1 << 10, 64 << 10, 1 << 20, 64 << 20)


@pytest.mark.slow
def test_every_plane_is_measured_at_every_size_in_one_run() -> None:
    words = ["--repeats", "1", "--seconds", "10ms", "--transfer", "256MiB"]
    done = subprocess.run(
        [sys.executable, "-m", "swarmd", "bench", "links", "--json", *words],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert_valid(found)
    rows = {(row["plane"], row["message_bytes"]): row for row in found["rows"]}
    assert set(rows) == {(p, s) for p in ("raw_tcp", "bulk", "libp2p") for s in SIZES}
    for row in rows.values():
        assert row["mb_per_s"] > 0
        assert row["cpu_s_per_gb_sender"] >= 0
        assert 0 < row["rtt_p50_ms"] <= row["rtt_p99_ms"]
    # Processor time says the same on a busy machine; rates do not.
    bulk, stock = rows["bulk", 1 << 20], rows["libp2p", 1 << 20]
    assert bulk["cpu_s_per_gb_receiver"] < stock["cpu_s_per_gb_receiver"]
    grown = (
        found["transfer"]["rss_growth_bytes_sender"],
        found["transfer"]["rss_growth_bytes_receiver"],
    )
    assert max(grown) < 64 << 20
