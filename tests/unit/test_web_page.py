"""The page in a real browser, where one is installed: what it shows, and that names cannot run."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from status_samples import peer_rows, training_status

from swarmd.home import find_home
from swarmd.peers_record import Peers
from swarmd.settings import HostPort
from swarmd.status import Refusals
from swarmd.web.serve import Shown, WebServers

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
HOSTILE = "<img src=x onerror=document.title='owned'>"

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine"),
]


def dom_of(url: str, profile: Path) -> tuple[str, str]:
    """(the page after two seconds of its own time, what the browser complained of)."""
    assert BROWSER is not None
    done = subprocess.run(
        [
            BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            f"--user-data-dir={profile}", "--virtual-time-budget=2000", "--dump-dom", url,
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )  # fmt: skip
    return done.stdout, done.stderr


def text_of(dom: str, element_id: str) -> str:
    """The text inside, without its tags."""
    inside = re.search(
        rf'id="{element_id}"[^>]*>(.*?)</(?:section|tbody|h1|h2|p|dl|ol)>', dom, re.S
    )
    assert inside, element_id
    return re.sub(r"<[^>]+>", " ", inside[1])


async def test_page_shows_the_swarm_and_a_name_is_only_a_name(tmp_path: Path) -> None:
    home = find_home(str(tmp_path / "home"))
    home.create()
    rows = peer_rows()
    rows = [replace(row, name=HOSTILE) if row.name == "birch" else row for row in rows]
    refused = Refusals(total=12, by_code={"half_open_evicted": 3, "bad_certificate": 9})
    status = replace(training_status(), refused=refused)
    shown = Shown(status=lambda: status, peers=lambda: Peers(peers=rows), events=lambda count: [])
    servers = WebServers(home, shown, say=lambda line: None)
    servers.open(web=HostPort("127.0.0.1", 0), metrics=None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(servers.run)
        url = f"http://{servers.addresses['web']}/"
        dom, complaints = await trio.to_thread.run_sync(dom_of, url, tmp_path / "profile")
        nursery.cancel_scope.cancel()
    assert 'data-ready="yes"' in dom, complaints
    assert "alder" in text_of(dom, "peer")
    assert "training" in text_of(dom, "state")
    for name in ("elm", "fir", "hazel", "oak"):
        assert name in text_of(dom, "peers")
    assert "3.412" in text_of(dom, "figures")
    told = "12 at our ports: 9 bad certificate, 3 half open evicted"
    assert told in text_of(dom, "figures")
    assert "&lt;img src=x" in dom
    assert "<img" not in dom
    assert "owned" not in re.findall(r"<title>(.*?)</title>", dom)[0]
    assert "Content Security Policy" not in complaints
    assert "Uncaught" not in complaints
