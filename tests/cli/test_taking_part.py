"""Commands that take part: join (up to the daemon), leave, drain, pause, inject ..."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio
from command_line import FakeDaemon, swarmd
from status_samples import RUN_ID

from swarmd.devices import DeviceTable
from swarmd.errors import UserError
from swarmd.home import Home
from swarmd.home_files import LastExit, write_last_exit
from swarmd.home_lock import acquire_lock
from swarmd.json_record import utc
from swarmd.records import Done, Leave
from swarmd.run_link import ADDRESS_EXAMPLE

LINK = f"swarmd://{RUN_ID}?peer={ADDRESS_EXAMPLE}"
RUN_FILE = f'[run]\nname = "demo"\npreset = "tiny"\n[data]\ncontent_hash = "{"ab" * 32}"\n'


# --------------------------------------------------------------------------------------------- join


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the daemon would be started with."""
    requests: list[Any] = []

    def run_daemon(request: Any) -> int:
        requests.append(request)
        return 5

    monkeypatch.setattr("swarmd.daemon.run_daemon", run_daemon)
    return requests


def test_flags_become_the_daemons_request_and_its_status_is_ours(
    home: Home, started: list[Any]
) -> None:
    found = swarmd(
        "join", LINK, "--name", "alder", "--port", "0", "--gpu", "GPU-1",
        "--limit-up", "20mbit", "--shape", "100mbit,40ms", "--lan-discovery", "off",
        "--announce", "/ip4/203.0.113.7/tcp/4710", "--inject", "slow=4", "--timeout", "20s",
        "--wait-lock", "--listen", "127.0.0.1:0", "--stage", "2", "--micro-batch", "auto",
        home=home,
    )  # fmt: skip
    assert found.code == 5
    (request,) = started
    config = request.config
    assert (config.name, config.port, config.gpu) == ("alder", 0, ("GPU-1",))
    assert request.companions == ()
    assert config.limit_up == 2_500_000
    assert config.shape == (12_500_000, 0.04, 0.0)
    assert config.announce == ("/ip4/203.0.113.7/tcp/4710",)
    assert (config.stage, config.micro_batch, config.lan_discovery) == (2, "auto", False)
    assert request.run.run_id == RUN_ID
    assert [str(entry) for entry in request.run.entries] == [ADDRESS_EXAMPLE]
    assert request.inject == ("slow=4",)
    assert (request.timeout_s, request.is_first) == (20.0, False)


def test_each_further_device_is_a_companion_s(home: Home, started: list[Any]) -> None:
    given = ("--device", "cpu", "--device", "cpu", "--name", "alder", "--limit-up", "20mbit")
    assert swarmd("join", LINK, *given, home=home).code == 5
    (request,) = started
    configs = [request.config, *request.companions]
    assert [config.name for config in configs] == ["alder", "alder-2"]
    assert [config.libp2p_port for config in configs] == [4710, 4720]
    assert [config.limit_up for config in configs] == [1_250_000, 1_250_000]
    assert list(request.reread()) == configs


@pytest.mark.process
def test_several_gpus_are_looked_at_before_anything_starts(
    home: Home, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = DeviceTable(torch_version="2.13.0", cpu_name="a processor")
    monkeypatch.setattr("swarmd.device_probe.probe_devices", lambda: table)
    found = swarmd("join", LINK, "--gpu", "998", "--gpu", "999", "--json", home=home)
    assert (found.code, found.error["code"]) == (2, "device_missing")
    assert "--device cpu" in found.error["hint"]
    assert started == []


@pytest.mark.parametrize(
    ("words", "web"),
    [
        (("--web", LINK), ("127.0.0.1", 4712)),
        ((LINK, "--web"), ("127.0.0.1", 4712)),
        ((LINK, "--web", "--name", "alder"), ("127.0.0.1", 4712)),
        (("--web", "0.0.0.0:80", LINK), ("0.0.0.0", 80)),
        (("--web=[::1]:0", LINK), ("::1", 0)),
        ((LINK,), None),
    ],
)
def test_web_needs_no_address_and_eats_no_link(
    home: Home, started: list[Any], words: tuple[str, ...], web: tuple[str, int] | None
) -> None:
    swarmd("join", *words, home=home)
    (request,) = started
    assert request.config.web == web
    assert request.run.run_id == RUN_ID


def test_peer_flags_are_entries_and_tried_first(home: Home, started: list[Any]) -> None:
    other = ADDRESS_EXAMPLE.replace("203.0.113.7", "203.0.113.8")
    assert swarmd("join", LINK, "--peer", other, home=home).code == 5
    assert [str(entry) for entry in started[0].run.entries] == [other, ADDRESS_EXAMPLE]


def test_run_file_founds_a_swarm_with_first(
    home: Home, started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo.toml").write_text(RUN_FILE)
    assert swarmd("join", "demo.toml", "--first", home=home).code == 5
    monkeypatch.chdir("/")
    assert started[0].is_first
    assert started[0].run.load(home.cache).config.name == "demo"


def test_run_of_the_config_is_the_default(home: Home, started: list[Any]) -> None:
    home.create()
    home.config_file.write_text(f'[service]\nrun = "{LINK}"\n')
    assert swarmd("join", home=home).code == 5
    assert started[0].run.run_id == RUN_ID


@pytest.mark.parametrize("mode", ["lines", "json", "off"])
def test_a_home_without_a_run_is_told_which_runs_are_nearby_and_joins_none(
    home: Home, started: list[Any], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    async def seen(host: str, within_s: float) -> dict[str, dict[str, tuple[str, ...]]]:
        peer = ADDRESS_EXAMPLE.rpartition("/")[2]
        return {RUN_ID: {peer: (ADDRESS_EXAMPLE,)}, "no run id": {peer: (ADDRESS_EXAMPLE,)}}

    monkeypatch.setattr("swarmd.net.lan_discovery.runs_nearby", seen)
    flags = {"lines": [], "json": ["--json"], "off": ["--lan-discovery", "off"]}[mode]
    found = swarmd("join", *flags, home=home)
    assert (found.code, started) == (2, [])
    link = f"swarmd://{RUN_ID}?peer={ADDRESS_EXAMPLE}"
    if mode == "lines":
        assert found.out == f"{link}   1 peer on the local network\n"
        assert "links above" in found.err
    elif mode == "json":
        assert found.error["details"] == {"runs_nearby": [{"link": link, "peers": 1}]}
    else:
        assert found.out == ""


BAD_PEERS = [
    "", " ", "203.0.113.7:4710", ADDRESS_EXAMPLE.partition("/p2p")[0], f"{ADDRESS_EXAMPLE} ",
    ADDRESS_EXAMPLE.replace("ip4", "ipv4"), ADDRESS_EXAMPLE.replace("4710", "70000"),
    ADDRESS_EXAMPLE[:-3], ADDRESS_EXAMPLE.replace("tcp", "udp"), f"swarmd://{RUN_ID[:9]}",
    "/ip4//tcp/4710/p2p/", "https://example.org",
]  # fmt: skip


@pytest.mark.parametrize("peer", BAD_PEERS)
def test_boot_05_broken_peer_is_exit_2_and_the_home_is_untouched(
    home: Home, started: list[Any], peer: str, tmp_path: Path
) -> None:
    found = swarmd("join", LINK, "--peer", peer, home=home)
    assert found.code == 2
    assert "--peer" in found.err
    assert found.err.count("error:") == 1
    assert started == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("run", ["", "swarmd://7f3a", "https://example.org/x", "nothing"])
def test_boot_05_broken_run_is_exit_2_with_a_right_example(
    home: Home, started: list[Any], run: str, tmp_path: Path
) -> None:
    found = swarmd("join", run, "--json", home=home)
    assert (found.code, found.error["exit_code"]) == (2, 2)
    if run:
        assert "swarmd://7f3a7f3a" in found.err
    assert started == []
    assert list(tmp_path.iterdir()) == []


def test_boot_05_nobody_founds_a_swarm_by_leaving_something_out(
    home: Home, started: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "demo.toml").write_text(RUN_FILE)
    for run in ([], [tmp_path / "demo.toml"], [f"swarmd://{RUN_ID}"]):
        found = swarmd("join", *run, "--lan-discovery", "off", home=home)
        assert found.code == 2, run
        assert "hint:" in found.err
    assert started == []
    assert not home.root.exists()


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--port", "70000"], "--port"),
        (["--port", ""], "--port"),
        (["--limit-up", "fast"], "--limit-up"),
        (["--limit-up="], "--limit-up"),
        (["--device", "tpu"], "--device"),
        (["--observe", "--stage", "1"], "--observe"),
        (["--gpu", "0", "--device", "cpu"], "--gpu"),
        (["--inject", "nan_updat"], "did you mean nan_update"),
        (["--inner-steps", "5"], "belongs to the run"),
        (["--seed", "5"], "belongs to the run"),
        (["--data", "text:here/*"], "--data-source"),
        (["--data-source", "here"], "text:corpus/**/*.txt"),
        (["--no-such-thing"], "--no-such-thing"),
        (["--shape", "1mbit,1s,2s"], "--shape"),
        (["--timeout", "soon"], "--timeout"),
    ],
)
def test_wrong_flag_is_exit_2_and_named(
    home: Home, started: list[Any], flags: list[str], what: str
) -> None:
    found = swarmd("join", LINK, *flags, home=home)
    assert found.code == 2
    assert what in found.err
    assert found.err.count("\n") <= 2
    assert started == []
    assert not home.root.exists()


def test_stage_that_the_run_does_not_have_is_exit_2_and_the_home_is_untouched(
    home: Home, started: list[Any], tmp_path: Path
) -> None:
    file = tmp_path / "demo.toml"
    file.write_text(RUN_FILE.replace("[data]", "stages = 2\n[data]"))
    found = swarmd("join", file, "--first", "--stage", "9", home=home)
    assert found.code == 2
    assert "no stage 9: the run has stages 0 to 1" in found.err
    assert started == []
    assert not home.root.exists()
    assert swarmd("join", file, "--first", "--stage", "1", home=home).code == 5


def test_iden_02_second_join_is_told_who_holds_the_home(home: Home) -> None:
    home.create()
    lock = acquire_lock(home, started_at=utc(), version="1")
    found = swarmd("join", LINK, home=home)
    assert found.code == 75
    assert "with pid" in found.err
    lock.release()


def test_error_of_the_daemons_start_is_ours(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_daemon(request: Any) -> int:
        raise UserError("no GPU 7", code="no_device", exit_code=2, hint="there are 0 and 1")

    monkeypatch.setattr("swarmd.daemon.run_daemon", run_daemon)
    found = swarmd("join", LINK, "--json", home=home)
    assert (found.code, found.error["code"], found.error["hint"]) == (
        2,
        "no_device",
        "there are 0 and 1",
    )


# ------------------------------------------------------------------------------------------- detach


def test_detach_says_so_if_a_daemon_is_in_that_run(daemon: FakeDaemon) -> None:
    daemon.status["peer"]["addresses"] = [
        {"addr": ADDRESS_EXAMPLE, "origin": "listen", "reachable": "yes"}
    ]
    record = swarmd("join", LINK, "--detach", "--json", home=daemon.home).object
    assert (record["already_running"], record["pid"], record["port"]) == (True, 41210, 4710)
    found = swarmd("join", LINK, "--detach", home=daemon.home)
    assert (found.code, "already" in found.err) == (0, True)
    assert found.lines[0] == "pid      41210"


def test_detach_into_another_run_finds_the_home_busy(daemon: FakeDaemon) -> None:
    other = LINK.replace(RUN_ID, "0" * 64)
    assert swarmd("join", other, "--detach", home=daemon.home).code == 75


@pytest.mark.process
def test_detached_daemon_that_ends_at_once_gives_us_its_words_and_status(home: Home) -> None:
    home.create()
    home.identity_key.write_bytes(b"broken")
    home.identity_key.chmod(0o600)
    found = swarmd("join", LINK, "--detach", "--port", "0", "--timeout", "2m", "--json", home=home)
    assert (found.code, found.error["code"]) == (78, "identity_unusable")
    assert "identity restore" in found.error["hint"]


# ------------------------------------------------------------------------------------- leave, drain


def leaving(home: Home, exit_code: int = 0, **more: Any) -> FakeDaemon:
    """A daemon that drains and ends."""
    daemon = FakeDaemon(home)
    code = "drained" if exit_code == 0 else "drain_incomplete"

    async def leave(args: dict[str, Any]) -> Any:
        daemon.end(code, exit_code)
        return Leave(outcome=code, exit_code=exit_code, drain_s=2.5, **more)  # type: ignore[arg-type]

    daemon.answers["leave"] = leave
    return daemon


def test_leave_tells_what_was_handed_over_and_ends_as_the_daemon_did(home: Home) -> None:
    with leaving(home, micro_batches_finished=1, leases_returned=3).running() as daemon:
        found = swarmd("leave", "--deadline", "30s", home=home)
    assert found.out == "drained · finished 1 micro-batch · returned 3 leases · in 2.5 s\n"
    assert found.code == 0
    assert daemon.asked[1:] == [("leave", {"deadline_s": 30.0, "now": False})]


def test_last_holder_of_a_stage_is_warned_before_it_leaves(home: Home) -> None:
    with leaving(home).running() as daemon:
        own = daemon.status["peer"]["id"]
        daemon.status["stage_map"][2] |= {"peers": [own]}
        daemon.status["peers"] |= {"active": 4}
        found = swarmd("leave", home=home)
    assert found.code == 0
    assert "nobody else holds stage 2: 3 peers that train wait" in found.err
    with leaving(home).running() as daemon:
        daemon.status["stage_map"][2] |= {"peers": ["another, while this one still fetches it"]}
        assert swarmd("leave", home=home).err == ""


def test_one_timeout_is_for_all_that_leave_does_and_the_request_stays(home: Home) -> None:
    daemon = FakeDaemon(home)

    async def silent(args: dict[str, Any]) -> Any:
        await trio.sleep_forever()

    daemon.answers |= {"status": silent, "leave": silent}
    with daemon.running():
        found = swarmd("leave", "--timeout", "0.4s", home=home)
    assert (found.code, "timed_out" in found.err) == (124, True)
    assert "it has the request" in found.err
    waited = re.search(r"does not answer within ([\d.]+) s", found.err)
    assert waited is not None, found.err
    assert float(waited[1]) <= 0.2, "what the warning left of it"


def test_incomplete_drain_is_5_and_says_what_was_dropped(home: Home) -> None:
    with leaving(home, 5, dropped={"micro_batches": 2, "leases": 0}).running():
        found = swarmd("leave", home=home)
    assert (found.code, found.lines[-1]) == (5, "dropped 2 micro_batches")
    with leaving(home, 5, dropped={"micro_batches": 2}).running():
        record = swarmd("leave", "--json", home=home).object
    assert (record["schema"], record["exit_code"]) == ("swarmd.leave", 5)


def test_daemon_that_ends_before_it_answers_left_its_exit_behind(home: Home) -> None:
    daemon = FakeDaemon(home)

    async def leave(args: dict[str, Any]) -> Any:
        daemon.end("drained")
        await trio.sleep_forever()

    daemon.answers["leave"] = leave
    with daemon.running():
        found = swarmd("leave", "--json", home=home)
    assert (found.code, found.object["outcome"]) == (0, "drained")


def test_daemon_that_dies_without_a_word_is_told_apart(home: Home) -> None:
    daemon = FakeDaemon(home)

    async def leave(args: dict[str, Any]) -> Any:
        daemon.stop()
        await trio.sleep_forever()

    daemon.answers["leave"] = leave
    with daemon.running():
        found = swarmd("leave", "--json", home=home)
    assert (found.code, found.error["code"]) == (1, "daemon_died")


def test_daemon_that_crashes_while_it_leaves_is_told_with_its_own_words(home: Home) -> None:
    daemon = FakeDaemon(home)

    async def leave(args: dict[str, Any]) -> Any:
        daemon.end("internal_error", 1, "by accident")
        await trio.sleep_forever()

    daemon.answers["leave"] = leave
    with daemon.running():
        found = swarmd("leave", "--json", home=home)
    assert (found.code, found.error["code"]) == (1, "internal_error")
    assert "by accident" in found.err


def test_leave_without_a_daemon_is_3_whatever_ended_before(home: Home) -> None:
    home.create()
    write_last_exit(home, LastExit(code="drained", exit_code=0, text="", at="2020-11-30T11:40Z"))
    assert swarmd("leave", home=home).code == 3


def test_leave_now_has_no_deadline(home: Home) -> None:
    found = swarmd("leave", "--now", "--deadline", "3s", home=home)
    assert (found.code, "--now" in found.err) == (2, True)


def test_drain_of_another_peer_is_passed_on_with_its_refusal(home: Home) -> None:
    daemon = FakeDaemon(home)
    daemon.replies("drain", UserError("no operator key", code="refused", exit_code=77))
    with daemon.running():
        found = swarmd("drain", "elm", "--json", home=home)
    assert (found.code, found.error["code"]) == (77, "refused")
    assert daemon.asked == [("drain", {"deadline_s": None, "id": "elm"})]


@pytest.mark.parametrize(
    ("words", "request_name", "args"),
    [
        (["pause"], "pause", {"for_s": None}),
        (["pause", "--for", "1h"], "pause", {"for_s": 3600.0}),
        (["resume"], "resume", {}),
        (["cordon"], "cordon", {}),
        (["uncordon"], "uncordon", {}),
        (["pin", "3"], "pin", {"stage": 3}),
        (["unpin"], "unpin", {}),
        (["debug", "inject", "slow=4@after=10s", "oom"], "inject",
         {"specs": ["slow=4@after=10s", "oom"]}),
        (["debug", "inject", "--clear"], "inject", {"clear": True}),
        (["debug", "dump"], "dump", {}),
    ],
)  # fmt: skip
def test_word_to_the_daemon_arrives(
    home: Home, words: list[str], request_name: str, args: dict[str, Any]
) -> None:
    daemon = FakeDaemon(home)
    daemon.replies(request_name, Done(command=" ".join(words)))
    with daemon.running():
        assert swarmd(*words, home=home).code == 0
        assert swarmd(*words, "--json", home=home).object["schema"] == "swarmd.done"
    assert daemon.asked == [(request_name, args)] * 2


def test_injection_where_it_is_not_allowed_is_77(home: Home) -> None:
    from swarmd.injection import not_allowed

    daemon = FakeDaemon(home)
    daemon.replies("inject", not_allowed())
    with daemon.running():
        assert swarmd("debug", "inject", "oom", home=home).code == 77


def test_kinds_of_faults_are_listed_with_and_without_a_daemon(home: Home) -> None:
    assert "nan_update" in swarmd("debug", "inject", "--list", home=home).out
    daemon = FakeDaemon(home)
    daemon.status["injection"] = ["slow=4"]
    with daemon.running():
        assert swarmd("debug", "inject", "--list", home=home).lines[-1] == "active: slow=4"


@pytest.mark.parametrize("words", [[], ["oom", "--clear"], ["dance"], ["slow=0.5"]])
def test_wrong_injection_is_a_usage_error(home: Home, words: list[str]) -> None:
    assert swarmd("debug", "inject", *words, home=home).code == 2
