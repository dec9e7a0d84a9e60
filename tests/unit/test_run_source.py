"""RUN: a link, a file, or a name; and BOOT-05: nobody founds a swarm by leaving something out."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.errors import UserError
from swarmd.home import Home, find_home
from swarmd.home_files import KnownPeer, forget_run, known_runs, remember_run, write_known_peers
from swarmd.run_config import RunConfig
from swarmd.run_file import RunFile, make_run
from swarmd.run_link import ADDRESS_EXAMPLE, RunLink, parse_peer_address
from swarmd.run_source import require_way_in, resolve_run

ENTRY = parse_peer_address(ADDRESS_EXAMPLE)
OTHER = parse_peer_address(ADDRESS_EXAMPLE.replace("203.0.113.7", "203.0.113.8"))
FILE = f'[run]\nname = "demo"\npreset = "tiny"\n[data]\ncontent_hash = "{"ab" * 32}"\n'


def run_named(name: str) -> RunConfig:
    return make_run(
        {"run": {"name": name, "preset": "tiny"}, "data": {"content_hash": "ab" * 32}},
        cache_dir=Path("/nonexistent"),
    )


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = find_home(str(tmp_path / "home"))
    found.create()
    return found


def test_link_gives_id_and_entries(home: Home) -> None:
    run = run_named("demo")
    source = resolve_run(home, str(RunLink(run.run_id, (ENTRY,))), [OTHER])
    assert (source.kind, source.run_id, source.entries) == ("link", run.run_id, (OTHER, ENTRY))
    assert source.load(home.cache) == RunLink(run.run_id, (OTHER, ENTRY))


def test_link_to_a_run_that_is_known_has_its_description(home: Home) -> None:
    run = run_named("demo")
    remember_run(home, run, [], used_at="2026")
    assert resolve_run(home, f"swarmd://{run.run_id}").config == run


def test_file_is_checked_at_once_and_measured_later(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "demo.toml"
    file.write_text(FILE)
    source = resolve_run(home, str(file), [ENTRY])
    assert (source.kind, source.run_id) == ("file", None)
    assert source.load(home.cache) == RunFile(run_named("demo"), (ENTRY,))
    file.write_text(FILE.replace("tiny", "tniy"))
    with pytest.raises(UserError, match=r"demo\.toml:3: run\.preset") as caught:
        resolve_run(home, str(file))
    assert caught.value.exit_code == 78


def test_name_and_prefix_find_a_known_run(home: Home) -> None:
    run = run_named("demo")
    remember_run(home, run, [ENTRY], used_at="2026")
    for text in ("demo", run.run_id, run.run_id[:6]):
        source = resolve_run(home, text)
        assert (source.kind, source.config, source.entries) == ("known", run, (ENTRY,))


def test_ambiguous_name_asks_for_more_digits(home: Home) -> None:
    first = run_named("demo")
    second = make_run(
        {"run": {"name": "demo", "preset": "small"}, "data": {"content_hash": "ab" * 32}},
        cache_dir=Path("/nonexistent"),
    )
    for run in (first, second):
        remember_run(home, run, [], used_at="2026")
    with pytest.raises(UserError, match="several") as caught:
        resolve_run(home, "demo")
    assert caught.value.exit_code == 2


def test_no_name_means_the_run_used_last(home: Home) -> None:
    old, new = run_named("old"), run_named("new")
    remember_run(home, new, [], used_at="2026-02")
    remember_run(home, old, [], used_at="2026-01")
    assert resolve_run(home, None).config == new
    remember_run(home, old, [], used_at="2026-03")
    assert resolve_run(home, None).config == old
    forget_run(known_runs(home)[0])
    assert resolve_run(home, None).config == new


def test_damaged_description_is_not_a_run(home: Home) -> None:
    file = remember_run(home, run_named("demo"), [], used_at="2026")
    file.write_bytes(file.read_bytes()[:-1])
    assert known_runs(home) == []
    file.write_bytes(run_named("other").canonical())
    assert known_runs(home) == []


@pytest.mark.parametrize(
    "text", ["nothing", "swarmd://7f3a", "https://example.org", "none.toml", "swarmd:/" + "a" * 64]
)
def test_boot_05_wrong_run_is_a_usage_error_and_touches_nothing(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve_run(find_home(str(tmp_path / "none")), text)
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_no_run_at_all_is_a_usage_error(home: Home) -> None:
    with pytest.raises(UserError, match="no run was named") as caught:
        resolve_run(home, None)
    assert caught.value.exit_code == 2


def test_boot_05_no_address_and_no_first_never_founds(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "demo.toml"
    file.write_text(FILE)
    source = resolve_run(home, str(file))
    with pytest.raises(UserError, match="no address") as caught:
        require_way_in(source, home, is_founder=False, has_lan=False)
    assert caught.value.exit_code == 2
    assert "--first" in caught.value.hint
    require_way_in(source, home, is_founder=True, has_lan=False)
    require_way_in(source, home, is_founder=False, has_lan=True)


def test_remembered_peers_are_a_way_in(home: Home) -> None:
    run = run_named("demo")
    source = resolve_run(home, f"swarmd://{run.run_id}")
    with pytest.raises(UserError, match="no address"):
        require_way_in(source, home, is_founder=False, has_lan=False)
    peer = KnownPeer(peer=ENTRY.peer, name="a", addresses=(ENTRY.base,), seen_at="2026")
    write_known_peers(home, run.run_id, [peer])
    require_way_in(source, home, is_founder=False, has_lan=False)
    assert source.all_entries(home, run.run_id) == (ENTRY,)


def test_founding_needs_a_description(home: Home) -> None:
    run = run_named("demo")
    source = resolve_run(home, str(RunLink(run.run_id, (ENTRY,))))
    with pytest.raises(UserError, match="description"):
        require_way_in(source, home, is_founder=True, has_lan=True)
