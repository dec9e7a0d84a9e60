"""`swarmd join [RUN]`: be a peer.

Everything that can be wrong on the command line is found before anything is touched. The daemon
itself (swarmd/daemon.py) is loaded only then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from swarmd.cli import exits
from swarmd.cli.framework import Parsed, Session, argument, command, option
from swarmd.errors import UserError
from swarmd.settings import SETTINGS, Setting

if TYPE_CHECKING:
    from swarmd.drop_writer import DropWriter
    from swarmd.home import Home
    from swarmd.home_lock import HomeLock
    from swarmd.peer_config import PeerConfig
    from swarmd.run_source import RunSource

_F = TypeVar("_F", bound=Callable[..., Any])

FAREWELLS = {"drained": "left the swarm in order", "run_complete": "the run is complete"}
"""By the code of an end that was a good one."""


def _spec(text: str) -> str:
    from swarmd.injection import parse_injection

    return parse_injection(text).text


def _settings(function: _F) -> _F:
    """A flag for every setting (swarmd/settings.py), in its order."""
    for setting in reversed(SETTINGS):
        if setting.name != "run":  # the argument RUN
            function = _flag(setting)(function)
    return function


def _flag(setting: Setting) -> Callable[[_F], _F]:
    if setting.is_switch:
        return option(setting.flag, setting.name, is_flag=True, default=None, help=setting.help)
    return option(
        setting.flag,
        setting.name,
        type=Parsed(setting.grammar.metavar, setting.grammar.parse),
        multiple=setting.is_repeatable,
        bare=setting.bare,
        help=setting.help,
    )


@command(section="Taking part")
@argument("run", metavar="[RUN]", required=False)
@option("--first", is_flag=True, help="Found the swarm. Without it a peer never founds one.")
@_settings
@option("--detach", is_flag=True, help="Return once the daemon answers.")
@option("--wait-lock", is_flag=True, help="Wait for a busy home rather than fail with 75.")
@option("--stay", is_flag=True, hidden=True, help="Stay when the run is complete.")
@option(
    "--inject", metavar="SPEC", multiple=True, type=Parsed("SPEC", _spec),
    help="A fault on purpose, in runs that allow it.",
)  # fmt: skip
def join(
    session: Session,
    run: str | None,
    first: bool,
    detach: bool,
    wait_lock: bool,
    stay: bool,
    inject: tuple[str, ...],
    **flags: Any,
) -> int:
    """Start the daemon and take part in a run.

    It stays in the foreground. RUN is a run link, a run file, or the name of a run this home
    knows; default: the last one. --timeout is how long to try to join. Drains and ends at Ctrl-C or
    SIGTERM; a second one ends it at once.
    """
    from swarmd import early_signals

    given = {name: value for name, value in flags.items() if value not in (None, ())}
    until_exit = session.is_program  # once it has said how it ended, no signal says otherwise
    with nullcontext() if detach else early_signals.noted(until_exit=until_exit):
        config = _config(session, given)
        source = _source(session, run or config.run, config, first)
        if detach:
            from swarmd.cli.detach import join_detached

            return join_detached(session, source if run else None)
        return _run_daemon(session, source, config, given, first, wait_lock, stay, inject)


def _config(session: Session, given: dict[str, Any]) -> PeerConfig:
    from swarmd.peer_config import effective_config

    effective = effective_config(session.home, flags=given)
    for warning in effective.warnings:
        session.printer.warn(warning)
    return effective.config


def _source(session: Session, run: str | None, config: PeerConfig, first: bool) -> RunSource:
    from swarmd.run_source import require_stage, require_way_in, resolve_run

    try:
        source = resolve_run(session.home, run, config.peer)
    except UserError as error:
        if error.code != "no_run" or not config.lan_discovery:
            raise
        from swarmd.cli.runs_nearby import tell_runs_nearby

        tell_runs_nearby(session, config, error)
    if source.stages is not None:
        require_stage(source.stages, config.wanted_stage)
    require_way_in(source, session.home, is_founder=first, has_lan=config.lan_discovery)
    return source


def _run_daemon(
    session: Session,
    source: RunSource,
    config: PeerConfig,
    given: dict[str, Any],
    first: bool,
    wait_lock: bool,
    stay: bool,
    inject: tuple[str, ...],
) -> int:
    from swarmd.cli.live_picture import LivePicture
    from swarmd.device_shares import split
    from swarmd.drop_writer import DropWriter
    from swarmd.peer_config import effective_config

    config, *further = split(config)
    if further:
        _check_devices(config, further)
    lock = _take_home(session.home, wait_lock)
    if lock is None:
        return exits.OK
    talk, data = DropWriter(2), DropWriter(1)
    say, show = _nothing if session.printer.is_quiet else talk.write_line, None
    if LivePicture.is_possible(session.printer):
        picture = LivePicture(session.printer, talk.write)
        say, show = picture.say, picture.show
    try:
        try:
            from swarmd.daemon import JoinRequest, run_daemon

            request = JoinRequest(
                home=session.home,
                config=config,
                companions=tuple(further),
                run=source,
                is_first=first,
                timeout_s=session.options.timeout_s,
                inject=inject,
                stays=stay,
                is_verbose=session.printer.is_verbose,
                reread=lambda: split(effective_config(session.home, flags=given).config),
                show=show,
                tell=_as_lines(data) if session.is_json else None,
                say=say,
            )
            code = run_daemon(request)
            if code == exits.OK and not session.printer.is_quiet:
                talk.write_line(_farewell(session.home))
        finally:
            lock.release()
    except Exception as error:
        _note_crash(session.home, error)
        raise
    finally:
        talk.close()
        data.close()
    _tell_end(session.home, code)
    return code


def _check_devices(first: PeerConfig, further: Sequence[PeerConfig]) -> None:
    """Each GPU exists, can be used, and is named once: before any of them works. UserError."""
    from swarmd.device_probe import probe_devices
    from swarmd.devices import choose_devices

    gpus = [gpu for config in (first, *further) for gpu in config.gpu]
    if gpus:
        choose_devices(probe_devices(), gpus, "auto")


def _take_home(home: Home, wait: bool) -> HomeLock | None:
    """Before the second or more that the daemon takes to load: whoever asks meanwhile learns that
    one is starting. None: told to stop while it waited."""
    from swarmd import __version__, early_signals
    from swarmd.home_lock import acquire_lock
    from swarmd.json_record import utc

    home.create()
    try:
        return acquire_lock(
            home,
            started_at=utc(),
            version=__version__,
            wait=wait,
            gives_up=early_signals.were_seen,
        )
    except UserError:
        if early_signals.were_seen():
            return None
        raise


def _as_lines(data: DropWriter) -> Callable[[dict[str, Any]], None]:
    """Events as JSON Lines on standard output; what nobody reads is dropped."""
    from swarmd.json_record import to_json

    return lambda event: data.write_line(to_json(event))


def _nothing(line: str) -> None:
    """With --quiet."""


def _farewell(home: Home) -> str:
    """The last line: on a terminal the picture above it still shows a peer that trains."""
    from swarmd.home_files import read_last_exit

    last = read_last_exit(home)
    code = "drained" if last is None else last.code
    return f"{FAREWELLS.get(code, 'ended in order')} ({code})"


def _tell_end(home: Home, code: int) -> None:
    """Any end but a good one is an error line (an object with --json), as the daemon put it."""
    from swarmd.errors import UserError
    from swarmd.home_files import read_last_exit

    last = read_last_exit(home)
    if code and last is not None and last.exit_code == code:
        raise UserError(last.text or last.code, code=last.code, exit_code=code, hint=last.hint)


def _note_crash(home: Home, error: Exception) -> None:
    """A bug that ended the daemon: into the log and the last exit, since nobody may see stderr."""
    from swarmd.home_files import LastExit, write_last_exit
    from swarmd.home_lock import is_held
    from swarmd.json_record import utc

    failure = exits.failure_of(error)
    if not failure.is_ours or is_held(home):
        return
    with home.log_file.open("a", encoding="utf-8") as log:
        log.write(f"{utc()} ERROR   swarmd.cli {failure.message}\n")
        log.write("\n".join(exits.traceback_of(error)) + "\n")
    write_last_exit(
        home,
        LastExit(
            code=failure.code,
            exit_code=failure.exit_code,
            text=failure.message,
            at=utc(),
            pid=os.getpid(),
        ),
    )
