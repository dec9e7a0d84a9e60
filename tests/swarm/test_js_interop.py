"""A js-libp2p node is served: it pings a peer of ours and is told who that is.

Versions are pinned in tests/js; they are installed there once, and the test says why if they cannot
be.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import trio
from transport_contract import loopback_pair

pytestmark = pytest.mark.process

JS = Path(__file__).parents[1] / "js"
NODE_VERSION_MIN = 20
INSTALL_S = 180
PROBE_S = 60


@pytest.fixture(scope="module")
def node() -> str:
    """The program, with the packages in place."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Node is not installed")
    said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=PROBE_S)
    if int(said.stdout.strip().removeprefix("v").partition(".")[0]) < NODE_VERSION_MIN:
        pytest.skip(f"Node {said.stdout.strip()} is older than {NODE_VERSION_MIN}")
    if not (JS / "node_modules" / "libp2p").is_dir():
        words = [npm, "ci", "--no-audit", "--no-fund", "--fetch-retries", "0"]
        try:
            done = subprocess.run(words, cwd=JS, capture_output=True, text=True, timeout=INSTALL_S)
        except subprocess.TimeoutExpired:
            pytest.skip("js-libp2p could not be installed in time")
        if done.returncode:
            pytest.skip(f"js-libp2p could not be installed: {done.stderr[-200:]}")
    return node


async def test_a_js_node_pings_us_and_is_served_on_identify(node: str) -> None:
    async with loopback_pair() as pair:
        peer = pair.a
        address = peer.transport.addresses()[0]
        with trio.fail_after(PROBE_S):
            done = await trio.run_process(
                [node, "probe.mjs", address],
                cwd=JS,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        assert done.returncode == 0, done.stderr.decode()
        found = json.loads(done.stdout)
        assert found["peer"] == peer.peer_id
        assert found["rtt_ms"] >= 0
        assert {"/swarmd/control/1", "/ipfs/ping/1.0.0"} <= set(found["protocols"])
        assert found["addresses"] == [address.partition("/p2p/")[0]]
        await pair.link()
