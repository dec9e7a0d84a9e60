"""What holds for every command: help, wrong flags, empty values, no daemon, light imports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from command_line import NEEDS_DAEMON, swarmd

from swarmd.cli.exits import failure_of
from swarmd.cli.framework import Group
from swarmd.cli.main import root
from swarmd.cli.output import OutputClosed
from swarmd.errors import LinkBroken
from swarmd.home import Home

READING = [
    "--help", "status", "status --json", "peers", "plan", "metrics", "events", "logs",
    "wait --for joined", "config show", "config validate", "identity show", "run ls", "run show",
    "schema status", "version", "paths", "ps", "join --help", "leave", "bugreport",
]  # fmt: skip
HEAVY = ("torch", "numpy", "libp2p", "trio", "rich", "multiaddr")


def every_command() -> Iterator[str]:
    context = click.Context(root)
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command is not None
        yield name
        if isinstance(command, Group):
            yield from (f"{name} {below}" for below in sorted(command.commands))


ALL = list(every_command())


@pytest.mark.parametrize("name", ALL)
def test_help_works_and_names_the_shared_flags(name: str) -> None:
    found = swarmd(*name.split(), "--help")
    assert found.code == 0
    text = found.out
    assert f"Usage: swarmd {name}" in text
    for flag in ("--home", "--json", "--quiet", "--verbose", "--no-color", "--no-input",
                 "--timeout", "--yes"):  # fmt: skip
        assert flag in text


def test_root_help_lists_every_command_in_its_section() -> None:
    found = swarmd("--help")
    assert found.code == 0
    text = found.out
    listed = [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
    for name in root.list_commands(click.Context(root)):
        assert name in listed
    assert not [line for line in text.splitlines()[1:] if line.endswith("...")]


@pytest.mark.parametrize("name", ALL)
def test_cli_01_unknown_flag_is_exit_2_and_one_line(name: str, home: Home) -> None:
    found = swarmd(*name.split(), "--no-such-flag", "--json", home=home)
    assert (found.code, found.error["code"]) == (2, "usage")
    assert "--no-such-flag" in found.err.splitlines()[0]


@pytest.mark.parametrize("flag", ["--home", "--timeout"])
@pytest.mark.parametrize("name", [name for name in ALL if name != "join"])
def test_empty_value_is_exit_2_and_names_the_flag(name: str, flag: str) -> None:
    found = swarmd(*name.split(), f"{flag}=")
    assert found.code == 2
    assert flag in found.err
    assert "empty" in found.err


@pytest.mark.parametrize("line", NEEDS_DAEMON)
def test_cli_01_without_a_daemon_it_is_3_and_the_home_is_untouched(
    line: str, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmd.cli.commands.wait.STARTS_S", 0.0)
    found = swarmd(*line.split(), home=home)
    assert (found.code, found.out) == (3, "")
    assert "swarmd join" in found.err
    assert "Traceback" not in found.err
    as_json = swarmd(*line.split(), "--json", home=home)
    assert as_json.error["code"] == "no_daemon"
    assert list(tmp_path.iterdir()) == []


def test_unknown_command_and_no_command_are_exit_2() -> None:
    assert (swarmd("statsu").code, swarmd().code, swarmd("config").code) == (2, 2, 2)
    assert swarmd("statsu", "--json").error["code"] == "usage"
    assert "did you mean `swarmd status`?" in swarmd("statsu").err


@pytest.mark.parametrize(
    "line",
    [
        "links --repeats 0", "links --seconds 0s", "links --transfer 0", "pipeline --steps 0",
        "pipeline --repeats -1", "mix --peers 0", "quality --jobs 0", "device --seconds 0s",
    ],
)  # fmt: skip
def test_a_benchmark_of_nothing_is_a_usage_error(line: str) -> None:
    assert swarmd("bench", *line.split()).code == 2


def test_bug_is_one_line_and_its_traceback_only_with_verbose(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **more: object) -> None:
        raise ZeroDivisionError("by accident")

    monkeypatch.setattr("swarmd.home_files.known_runs", broken)
    found = swarmd("run", "ls", home=home)
    assert (found.code, found.err.splitlines()[0]) == (
        1,
        "swarmd: error: ZeroDivisionError: by accident (internal_error)",
    )
    assert "Traceback" not in found.err
    assert "Traceback" in swarmd("run", "ls", "-v", home=home).err


def test_quiet_silences_talk_and_not_errors_or_data(home: Home) -> None:
    assert "knows no run" in swarmd("run", "ls", home=home).err
    assert swarmd("run", "ls", "-q", home=home).err == ""
    assert "no_daemon" in swarmd("status", "-q", home=home).err
    assert swarmd("version", "-q").out == swarmd("version", "-v").out


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (OutputClosed(), 0)], ids=["int", "pipe"]
)
def test_interrupt_is_130_and_a_closed_pipe_is_a_quiet_end(
    home: Home, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def end(*args: object) -> None:
        raise error

    monkeypatch.setattr("swarmd.home_files.known_runs", end)
    found = swarmd("run", "ls", home=home)
    assert found.code == code
    assert "Traceback" not in found.err
    assert code == 130 or found.err == ""


@pytest.mark.process
def test_reading_commands_and_help_load_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import json, sys\n"
        "from swarmd.cli.main import run\n"
        f"codes = [run(['--home', {str(tmp_path / 'h')!r}, *line.split()]) "
        f"for line in {READING!r}]\n"
        f"print(json.dumps([codes, [name for name in {HEAVY!r} if name in sys.modules]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    codes, loaded = json.loads(done.stdout.splitlines()[-1])
    assert loaded == []
    assert set(codes) == {0, 1, 2, 3}


@pytest.mark.process
def test_exit_status_of_the_process_is_the_code(tmp_path: Path) -> None:
    def status(*words: str) -> int:
        command = [sys.executable, "-m", "swarmd", "--home", str(tmp_path / "h"), *words]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode

    assert [status("version"), status("status"), status("status", "--x")] == [0, 3, 2]


@pytest.mark.process
def test_sigterm_is_143_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "h" / "state").mkdir(parents=True)
    (tmp_path / "h" / "state" / "swarmd.log").write_text("first\n")
    command = [sys.executable, "-m", "swarmd", "--home", str(tmp_path / "h"), "logs", "-f"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "first\n"
        child.terminate()
        out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (143, "")
    assert "Traceback" not in err


@pytest.mark.process
@pytest.mark.parametrize("words", [["schema", "status"], ["--help"], ["join", "--help"]])
def test_reader_that_goes_away_is_a_quiet_end(tmp_path: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "swarmd", "--home", str(tmp_path / "h"), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.close()
        assert child.stderr is not None
        assert child.stderr.read() == b""
        assert child.wait(20) == 0


@pytest.mark.process
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_full_output_is_one_line_and_exit_1_and_full_talk_changes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "swarmd", "--home", str(tmp_path / "h")]
    with Path("/dev/full").open("w") as full:
        data = subprocess.run(
            [*command, "version", "--json"], stdout=full, stderr=subprocess.PIPE, check=False
        )
        talk = subprocess.run([*command, "status"], stderr=full, check=False)
    assert (data.returncode, data.stderr.decode()) == (
        1,
        "swarmd: error: standard output cannot be written: No space left on device "
        "(output_failed)\n",
    )
    assert talk.returncode == 3


@pytest.mark.process
def test_command_without_any_open_stream_still_ends_with_its_code(tmp_path: Path) -> None:
    line = f'"{sys.executable}" -m swarmd --home "{tmp_path}/h" version <&- >&- 2>&-'
    assert subprocess.run(line, shell=True, check=False).returncode == 0


def test_an_error_that_nurseries_wrapped_is_told_as_itself() -> None:
    inner = LinkBroken("timeout", "the other process did not start")
    wrapped = BaseExceptionGroup("a", [ExceptionGroup("b", [inner])])
    assert failure_of(wrapped) == failure_of(inner)
    assert failure_of(wrapped).code == "timeout"
    assert failure_of(BaseExceptionGroup("a", [KeyboardInterrupt()])).code == "interrupted"
