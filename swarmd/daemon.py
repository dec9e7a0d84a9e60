"""The composition root: everything of one peer is made, joined and taken down here.

Order of a start, once the caller holds the home's lock: the control socket answers, the transport
listens, the run is found (a file, this home's memory, or any peer of the run link), then the peer's
machine runs until it has ended or is told to. Nothing decides here: the machine does
(protocols/peer.py); this file hands it the world.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from swarmd.errors import UserError, code_and_hint
from swarmd.home import Home
from swarmd.home_files import (
    LastExit,
    clear_last_exit,
    find_run,
    raise_incarnation,
    remember_run,
    write_last_exit,
)
from swarmd.identity import Identity, load_or_create
from swarmd.json_record import utc
from swarmd.logs import start_logging, stop_logging
from swarmd.named_limits import NamedLimits, limits_of
from swarmd.node.companions import Companions
from swarmd.node.life import Life
from swarmd.node.peer_node import PeerNode
from swarmd.node.reload import reload
from swarmd.node.service_manager import ServiceManager
from swarmd.node.stopping import Watchdog, watch_lifeline, watch_other_signals, watch_signals
from swarmd.node.talk import Talk
from swarmd.peer_config import PeerConfig
from swarmd.peers_record import Peers
from swarmd.protocols.ids import RunId
from swarmd.run_config import InvalidRun, RunConfig, run_from_canonical
from swarmd.run_file import RunFile
from swarmd.run_link import PeerAddress, RunLink
from swarmd.run_source import RunSource, no_entry, require_stage
from swarmd.status import Status
from swarmd.store import refused_by_disk, store_error
from swarmd.tokeniser_files import NAME, cached_file, find, keep

log = logging.getLogger("swarmd.daemon")

SHOW_EVERY_S = 1.0
LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """What `swarmd join` asks for, parsed and checked."""

    home: Home
    config: PeerConfig
    run: RunSource
    is_first: bool = False
    timeout_s: float | None = None
    inject: tuple[str, ...] = ()
    stays: bool = False
    is_verbose: bool = False
    companions: tuple[PeerConfig, ...] = ()
    """Settings of the further devices' daemons."""
    reread: Callable[[], Sequence[PeerConfig]] | None = None
    """The settings as they are now, for SIGHUP: ours, then the companions'. Raises UserError."""
    show: Callable[[Status, Peers], None] | None = None
    """Told once a second how it stands, for a live picture. Must not wait."""
    tell: Callable[[dict[str, Any]], None] | None = None
    """Each event as it happens, for `--json`."""
    say: Callable[[str], None] = field(default=lambda line: None)
    """One line for people, on standard error."""


@dataclass(slots=True)
class End:
    """How the daemon ended. `code` as in docs/cli.md: a reason, or an error's."""

    code: str
    exit_code: int
    text: str = ""
    hint: str = ""


def run_daemon(request: JoinRequest) -> int:
    """Be this peer until it has ended. Returns the exit status of docs/cli.md section 6.

    Raises UserError for what is wrong before anything runs (a bad key ...).
    """
    os.umask(0o077)  # whatever is written below the home, by whomever, is the user's alone
    started_at = utc()
    identity = load_or_create(request.home)
    limits = _limits_before_the_run_is_known(request)
    handlers = start_logging(
        request.home,
        log_format=request.config.log_format,
        repeat_s=limits.log_repeat_s,
        to_stderr=request.is_verbose,
        is_verbose=request.is_verbose,
    )
    try:
        clear_last_exit(request.home)
        daemon = Daemon(request, identity, raise_incarnation(request.home), started_at)
        end = trio.run(daemon.main)
        daemon.write_last_words(end)
        return end.exit_code
    finally:
        stop_logging(handlers)


def _limits_before_the_run_is_known(request: JoinRequest) -> NamedLimits:
    known = request.run.config
    return limits_of("wan" if known is None else known.time_scale)


class Daemon:
    """One life of one peer."""

    def __init__(
        self, request: JoinRequest, identity: Identity, incarnation: int, started_at: str
    ) -> None:
        self.request = request
        self.node = PeerNode(
            Life(
                home=request.home,
                config=request.config,
                identity=identity,
                incarnation=incarnation,
                started_at=started_at,
                is_founder=request.is_first,
                stays=request.stays,
                injection=request.inject,
            )
        )
        self.node.on_leave = self.leave
        self._companions = Companions(self.node, request.companions, request.say)
        self.node.companions = self._companions
        if request.tell is not None:
            self.node.feed.on_event = request.tell
        self._talk = Talk(self.node, request.say)
        self.node.on_change = self._talk.changed
        self._end: End | None = None
        self._scope = trio.CancelScope()
        self._watchdog = Watchdog()
        self._manager = ServiceManager()
        self._turns = 0

    async def main(self) -> End:
        """From the control socket's first answer to the last goodbye."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.node.serve_control)
                await nursery.start(watch_signals, self._first_signal, self._second_signal)
                await nursery.start(watch_other_signals, self._hung_up, self.node.log_dump)
                self._manager.tell(READY="1")
                nursery.start_soon(self._manager.keep_told, self.node.reason, self._beats)
                nursery.start_soon(watch_lifeline, self._lifeline_ended)
                nursery.start_soon(self._keep_shown)
                nursery.start_soon(self._companions.run)
                nursery.start_soon(self._talk.tell_slow_start)
                nursery.start_soon(self._give_up_joining)
                nursery.start_soon(self._live)
        assert self._end is not None
        return self._end

    async def _live(self) -> None:
        try:
            run, entries = await self._find_run()
            goes_on = self.node.has_been_in(run)
            self._talk.knows_run(run, len(entries), goes_on=goes_on and self.request.is_first)
            code, exit_code, text = await self.node.train(run, entries)
            await self._companions.gone(
                self.node.limits.drain_deadline_s, by_themselves=code == "run_complete"
            )
            self.finish(End(code, exit_code, text))
        except* UserError as group:
            error = _only(group)
            log.error("failed code=%s text=%s hint=%s", error.code, error, error.hint)
            self.finish(End(error.code, error.exit_code, str(error), error.hint))
        except* Exception as group:
            log.exception("daemon_failed")
            self.finish(_end_of(_only(group)))

    async def _give_up_joining(self) -> None:
        """After `--timeout`, unless it is in by then. The start before has no limit."""
        timeout_s, node = self.request.timeout_s, self.node
        if timeout_s is None:
            return
        await self._started()
        await trio.sleep(timeout_s)
        await self._started()
        reason = node.reason()
        has_met_others = node.machine is not None and node.machine.was_with_others
        if reason.state == "joining" and not has_met_others:
            text = f"no peer of the run was reached within {timeout_s:g} s: {reason.text}"
            self.finish(End("bootstrap_unreachable", 69, text, reason.hint or ""))

    async def _started(self) -> None:
        while self.node.reason().state == "starting":
            await trio.sleep(LOOK_S)

    async def _keep_shown(self) -> None:
        show = self.request.show
        while show is not None:
            if self.node.machine is not None:
                show(self.node.reporter.status(), self.node.reporter.peers())
            await trio.sleep(SHOW_EVERY_S)

    def finish(self, end: End) -> None:
        """The first reason to end counts."""
        if self._end is None:
            self._end = end
            level = "info" if end.exit_code == 0 else "error"
            told = {"exit_code": end.exit_code, "text": end.text}
            self.node.feed.publish("ended", code=end.code, level=level, data=told)
        self._scope.cancel()

    # ------------------------------------------------------------------------------------- the run

    async def _find_run(self) -> tuple[RunConfig, tuple[PeerAddress, ...]]:
        """The run, and where its peers may be. May wait for peers that describe it."""
        source, home = self.request.run, self.request.home
        await self.node.serve_web(self.request.say)
        await self.node.start_transport()
        self._talk.listens(self.node.ports_changed)
        if source.run_id is not None:
            await self._look_nearby(source.run_id)
        elif not (source.entries or self.request.is_first):
            self._talk.knows_nobody()
        self.node.start_book.is_at(2, "reading the run and its data")
        found = await trio.to_thread.run_sync(source.load, home.cache)
        if isinstance(found, RunFile):
            run = found.config
        else:
            run = await self._described_run(found, source.all_entries(home, found.run_id))
        self.node.start_book.is_at(3, "looking for peers of the run")
        require_stage(run.stages, self.request.config.wanted_stage)
        await self._look_nearby(run.run_id)
        entries = source.all_entries(home, run.run_id)
        remember_run(home, run, entries, used_at=utc())
        await self._fetch_tokeniser(run, entries)
        return run, entries

    async def _fetch_tokeniser(self, run: RunConfig, entries: Sequence[PeerAddress]) -> None:
        """Have the run's tokeniser in the cache, if peers have it and we do not."""
        name, cache = run.data.tokeniser, self.request.home.cache
        if not entries or not NAME.fullmatch(name) or run.data.source.startswith("tokens:"):
            return
        if await trio.to_thread.run_sync(find, name, cache) is not None:
            return
        body = await self.node.fetch_tokeniser(name, entries)
        if body is None:
            log.warning("tokeniser_not_found name=%s", name)
            return
        try:
            await trio.to_thread.run_sync(keep, body, cache)
        except OSError as error:
            raise store_error(cached_file(name, cache), error) from None
        log.info("tokeniser_fetched name=%s bytes=%d", name, len(body))

    async def _look_nearby(self, run_id: RunId) -> None:
        """Start to look on the local network; the only way in for whoever knows no address.

        Raises UserError if that one leads nowhere.
        """
        self.node.look_on_lan(run_id)
        if self.request.is_first or self.request.run.all_entries(self.request.home, run_id):
            return
        if not await self.node.anybody_nearby(self.node.limits.bootstrap_report_s):
            raise no_entry()

    async def _described_run(self, link: RunLink, entries: Sequence[PeerAddress]) -> RunConfig:
        known = find_run(self.request.home, link.run_id)
        if known is not None:
            return known.config
        self._talk.asks(link.run_id, len(entries))
        return _checked_run(await self.node.fetch_run(link.run_id, entries), link.run_id)

    # ------------------------------------------------------------------------------------ stopping

    def _hung_up(self) -> None:
        """SIGHUP: settings may have changed. If it is the terminal that is gone, work goes on."""
        reread, configs = self.request.reread, []
        if reread is None:
            return

        def ours() -> PeerConfig:
            configs.extend(reread())
            return configs[0]

        reload(self.node, ours)
        self._companions.hung_up(configs[1:])

    def _beats(self) -> int:
        """Rises while the work goes on; before there is any, while the loop turns."""
        driver = self.node.driver
        self._turns += 1
        return self._turns if driver is None else driver.events_handled

    def _first_signal(self, number: int) -> None:
        log.info("signal number=%d drains", number)
        if self.leave(None, now=False):
            self.node.start_soon(self._talk.tell_drain)

    def leave(self, deadline_s: float | None, *, now: bool) -> bool:
        """Drain and end, at the latest after the deadline; `now`: goodbye and end, without a drain.

        False: nothing is held yet, so it ends at once.
        """
        self._manager.tell(STOPPING="1")
        self._companions.leave(now=now)
        if not self.node.begin_leave(now=now):
            self.finish(End("stopped_now", 0, "stopped before anything was held"))
            return False
        if deadline_s is None:
            deadline_s = self.node.limits.drain_deadline_s
        end = End("drain_incomplete", 5, f"the drain took longer than {deadline_s:g} s")
        self._watchdog.arm(
            deadline_s + self.node.limits.stop_grace_s, 5, lambda: self.write_last_words(end)
        )
        self.node.call_after(deadline_s, lambda: self.finish(end))
        return True

    def _second_signal(self, number: int) -> None:
        code = 130 if number == signal.SIGINT else 143
        end = End("stopped_now", code, "a second signal")
        self._watchdog.arm(2.0, code, lambda: self.write_last_words(end))
        self._end = None
        self._manager.tell(STOPPING="1")
        self.finish(end)

    def _lifeline_ended(self) -> None:
        self._watchdog.arm(2.0, 143, lambda: None)
        self.finish(End("stopped_now", 143, "whoever started this peer is gone"))

    def write_last_words(self, end: End) -> None:
        """The last status and last_exit.json, as the last act."""
        self.node.write_last_status()
        write_last_exit(
            self.request.home,
            LastExit(
                code=end.code,
                exit_code=end.exit_code,
                text=end.text,
                at=utc(),
                pid=os.getpid(),
                run_id=self.node.run_id,
                hint=end.hint,
            ),
        )
        log.info("stopped code=%s exit_code=%d text=%s", end.code, end.exit_code, end.text)


def _checked_run(body: bytes, run_id: str) -> RunConfig:
    try:
        return run_from_canonical(body)
    except InvalidRun as error:
        raise UserError(
            f"the run {run_id[:8]} cannot be used: {error}", code="bad_config", exit_code=78
        ) from None


def _end_of(error: Exception) -> End:
    """Of a daemon that failed with what nobody expected."""
    refused = refused_by_disk(error)
    if refused is None:
        return End("internal_error", 1, f"{type(error).__name__}: {error}")
    code, hint = code_and_hint(refused)
    return End(code, 1, str(refused), hint)


def _only(group: BaseExceptionGroup[Any]) -> Any:
    """The first error of a group: nurseries wrap what passes them."""
    error: Any = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
