"""The web view and the metrics: who may look, what they get, and that nothing can be done there."""

from __future__ import annotations

import http.client
import json
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from status_samples import peer_rows, training_status

from swarmd.errors import UserError
from swarmd.home import find_home
from swarmd.peers_record import Peers
from swarmd.settings import HostPort
from swarmd.web.access import Access, load_or_make_token
from swarmd.web.history import History
from swarmd.web.serve import Shown, WebServers

LOOPBACK = HostPort("127.0.0.1", 0)
EVERYWHERE = HostPort("0.0.0.0", 0)


class Answer:
    def __init__(self, found: http.client.HTTPResponse) -> None:
        self.status, self.body = found.status, found.read().decode()
        self.headers = {name.lower(): value for name, value in found.getheaders()}


def request(
    address: str, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
) -> Answer:
    port = int(address.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        return Answer(connection.getresponse())
    finally:
        connection.close()


async def get(address: str, path: str, **more: Any) -> Answer:
    return await trio.to_thread.run_sync(partial(request, address, path, **more))


@asynccontextmanager
async def serving(
    folder: Path, *, level: str = "ok", **wanted: HostPort
) -> AsyncIterator[tuple[WebServers, list[str]]]:
    home = find_home(str(folder / "home"))
    home.create()
    said: list[str] = []
    status = training_status()
    status = replace(status, health=replace(status.health, level=level))  # type: ignore[arg-type]
    shown = Shown(
        status=lambda: status,
        peers=lambda: Peers(peers=peer_rows()),
        events=lambda count: [{"seq": 1, "event": "started"}][:count],
    )
    servers = WebServers(home, shown, say=said.append)
    servers.open(web=wanted.get("web"), metrics=wanted.get("metrics"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(servers.run)
        with trio.fail_after(30):
            yield servers, said
        nursery.cancel_scope.cancel()


# ------------------------------------------------------------------------------------------ answers


async def test_page_and_its_files_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    async with serving(tmp_path, web=LOOPBACK) as (servers, said):
        address = servers.addresses["web"]
        page = await get(address, "/")
        script = await get(address, "/page.js")
        style = await get(address, "/page.css")
    assert [found.status for found in (page, script, style)] == [200, 200, 200]
    assert said == [f"web view http://{address}/"]
    for found in (page, script, style):
        assert "default-src 'none'" in found.headers["content-security-policy"]
        assert "access-control-allow-origin" not in found.headers
        urls = [word for word in found.body.split('"') if "://" in word]
        assert urls in ([], ["http://www.w3.org/2000/svg"]), urls
    assert "innerHTML" not in script.body, "names of strangers are text, never HTML"


async def test_page_is_fed_with_the_records_that_commands_show(tmp_path: Path) -> None:
    async with serving(tmp_path, web=LOOPBACK) as (servers, _):
        address = servers.addresses["web"]
        found = {
            name: json.loads((await get(address, f"/api/{name}")).body)
            for name in ("status", "peers", "history", "events")
        }
    assert found["status"]["schema"] == "swarmd.status"
    assert found["peers"]["schema"] == "swarmd.peers"
    assert found["history"]["points"][0]["loss"] == found["status"]["progress"]["loss"]
    assert found["events"]["events"] == [{"seq": 1, "event": "started"}]


async def test_metrics_are_what_prometheus_reads(tmp_path: Path) -> None:
    async with serving(tmp_path, metrics=LOOPBACK) as (servers, _):
        found = await get(servers.addresses["metrics"], "/metrics")
    assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(found.body)}
    (loss,) = families["swarmd_progress_loss"].samples
    assert loss.value == training_status().progress.loss
    booked = families["swarmd_seconds"].samples
    assert {sample.labels["reason"] for sample in booked} == set(training_status().time.by_reason)


@pytest.mark.parametrize(("level", "status"), [("ok", 200), ("warn", 200), ("bad", 503)])
async def test_health_is_a_status_of_its_own(tmp_path: Path, level: str, status: int) -> None:
    async with serving(tmp_path, level=level, metrics=LOOPBACK) as (servers, _):
        found = await get(servers.addresses["metrics"], "/healthz")
    assert (found.status, found.body) == (status, f"{level}\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_nothing_can_be_done_here(tmp_path: Path, method: str) -> None:
    async with serving(tmp_path, web=LOOPBACK, metrics=LOOPBACK) as (servers, _):
        for name, path in (("web", "/"), ("web", "/api/status"), ("metrics", "/metrics")):
            assert (await get(servers.addresses[name], path, method=method)).status == 405
        assert (await get(servers.addresses["web"], "/api/leave")).status == 404
        assert (await get(servers.addresses["web"], "/../app.py")).status == 404


async def test_rubbish_is_refused_and_the_next_one_is_served(tmp_path: Path) -> None:
    async with serving(tmp_path, web=LOOPBACK) as (servers, _):
        address = servers.addresses["web"]
        port = int(address.rpartition(":")[2])
        for rubbish in (b"\x00\xff\x16\x03 rubbish\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a" * 70_000):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            try:
                await stream.send_all(rubbish)
                await stream.receive_some(100)
            except trio.BrokenResourceError:
                pass
            await stream.aclose()
        assert (await get(address, "/")).status == 200


# ----------------------------------------------------------------------------------- who may look


async def test_beyond_loopback_a_token_is_needed_and_printed_once(tmp_path: Path) -> None:
    async with serving(tmp_path, web=EVERYWHERE) as (servers, said):
        address = servers.addresses["web"]
        token = said[0].partition("?token=")[2].split()[0]
        assert (await get(address, "/")).status == 403
        assert (await get(address, "/api/status?token=wrong")).status == 403
        first = await get(address, f"/?token={token}")
        assert (first.status, first.headers["location"]) == (303, "/")
        cookie = first.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        kept = {"Cookie": cookie.partition(";")[0]}
        assert (await get(address, "/api/status", headers=kept)).status == 200
        bearer = {"Authorization": f"Bearer {token}"}
        assert (await get(address, "/api/status", headers=bearer)).status == 200
    file = tmp_path / "home" / "state" / "web.token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    async with serving(tmp_path, web=EVERYWHERE) as (_, said_again):
        assert token not in "".join(said_again)
        assert str(file) in "".join(said_again)
    assert load_or_make_token(file) == (token, False)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:4712"},
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "null"},
    ],
)
async def test_page_of_another_origin_learns_nothing(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with serving(tmp_path, web=LOOPBACK, metrics=LOOPBACK) as (servers, _):
        for name, path in (("web", "/api/status"), ("metrics", "/metrics")):
            assert (await get(servers.addresses[name], path, headers=headers)).status == 403


def test_loopback_goes_by_its_usual_names() -> None:
    access = Access(is_loopback=True)
    for host in ("localhost:4712", "127.0.0.1:1", "[::1]:4712", "LOCALHOST"):
        assert access.why_not({"host": host}, {}, {}) is None


async def test_address_that_is_taken_is_an_error_of_the_start(tmp_path: Path) -> None:
    async with serving(tmp_path, metrics=LOOPBACK) as (servers, _):
        port = int(servers.addresses["metrics"].rpartition(":")[2])
        with pytest.raises(UserError) as caught:
            async with serving(tmp_path / "other", metrics=HostPort("127.0.0.1", port)):
                pass
    assert (caught.value.code, caught.value.exit_code) == ("address_in_use", 75)


# -------------------------------------------------------------------------------------- the past


def test_history_of_any_length_fits_and_keeps_both_ends() -> None:
    history = History(points_max=8, interval_s=1.0)
    for second in range(1000):
        history.add({"progress": {"loss": float(second)}}, float(second))
    points = history.points()
    assert len(points) <= 8
    assert points[0]["loss"] == 0.0
    assert points[-1]["loss"] >= 999 - history.interval_s
    gaps = {b["t_s"] - a["t_s"] for a, b in pairwise(points)}
    assert max(gaps) - min(gaps) <= 0.02 * history.interval_s


def test_what_is_not_known_is_no_point_of_a_curve() -> None:
    history = History()
    assert history.add({"progress": {}}, 0.0)
    assert history.points()[0]["loss"] is None
    assert not history.add({}, 0.5), "too young"
