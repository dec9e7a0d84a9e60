"""`swarmd run`: descriptions of runs, and links to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swarmd.cli.framework import Session, argument, group, option
from swarmd.errors import UserError
from swarmd.home import absolute

if TYPE_CHECKING:
    from swarmd.cli.time_limit import TimeLimit
    from swarmd.run_config import RunConfig


@group(section="Runs and results")
def run(session: Session) -> None:
    """Runs: what must be equal on every peer. The hash of it is the run's id."""


@run.subcommand()
@argument("file", metavar="FILE")
@option("--init-from", metavar="HF_DIR", help="Start from this Llama. Dense boundaries only.")
def create(session: Session, file: str, init_from: str | None) -> None:
    """Check a run file, measure its data, and print the run id. Starts nothing.

    With --init-from this home then holds what the run starts from: found the swarm here, with
    `swarmd join NAME --first`.
    """
    from swarmd.cli.time_limit import TimeLimit
    from swarmd.home_files import remember_run
    from swarmd.json_record import utc
    from swarmd.run_file import read_run_file

    limit = TimeLimit(session.options.timeout_s, session.printer.say)
    plan = read_run_file(absolute(file))
    draft = plan.check()
    start = None if init_from is None else absolute(init_from)
    if start is not None:
        from swarmd.init_from import check_fits

        check_fits(start, draft)
    session.home.create()
    found = plan.measure(session.home.cache, lambda now: _tell(session, limit, now))
    config = found.config
    if start is not None:
        from swarmd.cli.init_from import take_in

        config = take_in(session.home, config, start, limit)
    remember_run(session.home, config, found.entries, used_at=utc())
    _show(session, config, _link(config, found.entries))


@run.subcommand()
@argument("name", metavar="[RUN]", required=False)
def show(session: Session, name: str | None) -> None:
    """The description, as a run file that means the same run. Default: the daemon's run."""
    from swarmd.local_api.client import NoDaemon
    from swarmd.run_source import resolve_run

    if name is None:
        try:
            found = session.ask("run")
        except NoDaemon:
            pass
        else:
            _show_record(session, found)
            return
    source = resolve_run(session.home, name)
    if source.plan is not None:
        session.home.create()
        config = source.plan.measure(session.home.cache).config
    elif source.config is not None:
        config = source.config
    else:
        raise UserError(
            "this home does not know the run, only its link",
            code="unknown_run",
            exit_code=1,
            hint="`swarmd join LINK` fetches it; `swarmd run show` then shows it",
        )
    _show(session, config, _link(config, source.entries))


@run.subcommand()
def link(session: Session) -> None:
    """The run link, with the addresses that work now."""
    found = session.ask("run")
    if session.is_json:
        session.printer.object(found)
        return
    if not found.get("link"):
        raise UserError("the daemon has no run yet", code="no_run", exit_code=1)
    session.printer.line(str(found["link"]))


@run.subcommand()
def ls(session: Session) -> None:
    """Runs this home knows, last used first."""
    from swarmd.cli import format as f
    from swarmd.cli.layout import table
    from swarmd.cli.output import harmless
    from swarmd.home_files import known_runs

    runs = known_runs(session.home)
    data = [
        {"id": known.config.run_id, "name": known.config.name, "used_at": known.used_at}
        for known in runs
    ]
    if session.is_json:
        session.done("", {"runs": data})
        return
    rows = [
        (
            known.config.run_id[:12],
            harmless(known.config.name),
            known.config.preset or f.UNKNOWN,
            str(known.config.stages),
            f.ago(known.used_at),
        )
        for known in runs
    ]
    if not rows:
        session.printer.say("this home knows no run")
        return
    for line in table(("ID", "NAME", "PRESET", "STAGES", "USED"), rows, right=[3]):
        session.printer.line(line)


@run.subcommand()
@argument("name", metavar="RUN")
def close(session: Session, name: str) -> None:
    """Forget a run. Its checkpoints stay."""
    from swarmd.home_files import find_run, forget_run

    known = find_run(session.home, name)
    if known is None:
        raise UserError(
            f"this home knows no run {name!r}",
            code="unknown_run",
            exit_code=2,
            hint="`swarmd run ls` lists them",
        )
    session.confirm(f"Forget the run {known.config.name!r}?")
    forget_run(known)
    session.done(f"{known.config.name} is forgotten", {"id": known.config.run_id})


def _tell(session: Session, limit: TimeLimit, now: Any) -> None:
    """How far the data are packed; small ones are, before it would be worth a word."""
    limit.check()
    if now.seconds >= 1:
        session.printer.say(f"packing the data: {now}")


def _link(config: RunConfig, entries: Any) -> str:
    from swarmd.run_link import RunLink

    return str(RunLink(config.run_id, tuple(entries)))


def _show(session: Session, config: RunConfig, link: str) -> None:
    from swarmd.json_record import plain, render
    from swarmd.records import Run
    from swarmd.run_file import run_document

    record = Run(
        id=config.run_id, name=config.name, link=link, description=plain(run_document(config))
    )
    _show_record(session, render(record))


def _show_record(session: Session, found: dict[str, Any]) -> None:
    from swarmd.toml_file import render_toml

    if session.is_json:
        session.printer.object(found)
        return
    session.printer.line(f"# run   {found.get('id')}")
    session.printer.line(f"# link  {found.get('link') or '-'}")
    session.printer.line()
    session.printer.line(render_toml(found.get("description") or {}))
