"""What every command shares: the flags of docs/cli.md 3.1, help, and the way to daemon and output.

A command is one file in cli/commands whose main object has the file's name:

    @command(section="Looking")
    @option("--all", "show_all", is_flag=True, help="...")
    def peers(session: Session, show_all: bool) -> int | None: ...

Add the file and the command is there. Its module may import only what is light; what is heavy (the
daemon, the numerical library) it imports inside the function, because `--help` reads every file.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

import click
from click.core import augment_usage_errors

from swarmd.cli.output import Printer
from swarmd.errors import UserError
from swarmd.home import Home, find_home
from swarmd.units import BadValue, parse_duration

STATUS_REPLY_S = 1.0
"""The named limit `status_reply_s`: any reading command."""
SCHEMA_VERSIONS = (1,)
"""Versions of the JSON objects that this build can serve."""
SECTIONS = ("Taking part", "Looking", "Checking", "Runs and results", "Keeping house")

Grammar = Callable[[str], Any]
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(slots=True)
class Options:
    """The flags every command takes."""

    home: str | None = None
    timeout_s: float | None = None
    no_input: bool = False
    yes: bool = False


class Session:
    """One run of one command: its flags, its home, its output, and the daemon it asks."""

    def __init__(
        self, argv: list[str], printer: Printer | None = None, *, is_program: bool = False
    ) -> None:
        self.argv = argv
        self.is_program = is_program
        self.started_unix_s = time.time()
        self.options = Options()
        self.printer = printer or Printer()

    @functools.cached_property
    def home(self) -> Home:
        return find_home(self.options.home)

    @property
    def is_json(self) -> bool:
        return self.printer.is_json

    def ask(
        self, request: str, args: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """One answer of the daemon. timeout_s: where `--timeout` is not given; else it holds."""
        from swarmd.local_api.client import Client, DaemonSilent

        client = Client(self.home, timeout_s=self.options.timeout_s or timeout_s or STATUS_REPLY_S)
        try:
            found = client.ask(request, args)
        except DaemonSilent as error:
            if self.options.timeout_s is not None:
                error.exit_code, error.code = 124, "timed_out"
            raise
        self.compare_versions(client.daemon_version)
        return found

    def stream(
        self,
        request: str,
        args: Mapping[str, Any] | None = None,
        *,
        every_s: float | None = None,
        silence_s: float | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Items of the daemon, until it ends. silence_s: where `--timeout` is not given; None waits
        for the next item for ever."""
        from swarmd.local_api.client import Client, DaemonSilent

        client = Client(self.home, timeout_s=self.options.timeout_s or STATUS_REPLY_S)
        wait_s = self.options.timeout_s if silence_s is None else silence_s
        try:
            for item in client.stream(request, args, every_s=every_s, silence_s=wait_s):
                self.compare_versions(client.daemon_version)
                yield item
        except DaemonSilent as error:
            if self.options.timeout_s is not None:
                error.exit_code, error.code = 124, "timed_out"
            raise

    def compare_versions(self, daemon_version: str | None) -> None:
        from swarmd import __version__

        if daemon_version is not None and daemon_version != __version__:
            self.printer.warn(
                f"the daemon is version {daemon_version}, this command {__version__}; "
                "what both know is shown"
            )

    def done(
        self,
        line: str,
        data: Mapping[str, Any] | None = None,
        *,
        outcome: str = "done",
        path: str | None = None,
    ) -> None:
        """The answer of a command without an object of its own: `line`, or `swarmd.done`."""
        if not self.is_json:
            return self.printer.line(line)
        from swarmd.json_record import render
        from swarmd.records import Done

        name = click.get_current_context().command_path.partition(" ")[2]
        done = Done(command=name, outcome=outcome, path=path, data=dict(data or {}))
        self.printer.object(render(done))

    def confirm(self, question: str) -> None:
        """Go on only if the user says yes. Nobody to ask: a usage error, never a guess."""
        if self.options.yes:
            return
        if self.options.no_input or not sys.stdin.isatty():
            raise UserError(
                f"{question} Nobody can be asked here",
                code="needs_confirmation",
                exit_code=2,
                hint="`--yes` answers it",
            )
        if not click.confirm(question, err=True):
            raise click.Abort


# --------------------------------------------------------------------------------- flags and values


class Parsed(click.ParamType[Any]):
    """A value read by one of swarmd's own grammars."""

    def __init__(self, metavar: str, parse: Grammar) -> None:
        self.name = metavar
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except BadValue as error:
            self.fail(str(error), param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self.name


DURATION = Parsed("DUR", parse_duration)


class _NotEmpty(click.Parameter):
    """An empty value (an unset shell variable, say) names the flag; it never means the default."""

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        given = value if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(item, str) and not item.strip() for item in given):
            text = "is empty; an empty value never means the default"
            raise click.BadParameter(text, ctx=ctx, param=self)
        return super().type_cast_value(ctx, value)


class Option(_NotEmpty, click.Option):
    """bare: what the flag means where no value follows. A word that is no value of it is another
    argument's, so `join --web LINK` means what it seems to."""

    def __init__(self, *args: Any, bare: str | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.bare = bare

    def is_value(self, word: str) -> bool:
        try:
            self.type.convert(word, None, None)
        except click.BadParameter:
            return False
        return True


class Argument(_NotEmpty, click.Argument):
    pass


def option(*names: str, **settings: Any) -> Callable[[_F], _F]:
    return click.option(*names, cls=Option, **settings)


def argument(*names: str, **settings: Any) -> Callable[[_F], _F]:
    return click.argument(*names, cls=Argument, **settings)


def _store(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Takes effect before the command does. The later of `swarmd FLAG cmd FLAG` wins."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value is None or value is False:
            return
        session = ctx.find_object(Session)
        assert session is not None
        if name in ("is_json", "is_quiet", "is_verbose"):
            setattr(session.printer, name, True)
        elif name == "has_color":
            session.printer.has_color = False
        elif name == "json_version":
            _serve_version(value)
            session.printer.is_json = True
        else:
            setattr(session.options, name, value)

    return callback


def _show_help(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        session = ctx.find_object(Session)
        assert session is not None
        session.printer.line(ctx.get_help())
        ctx.exit()


def _serve_version(version: int) -> None:
    if version not in SCHEMA_VERSIONS:
        served = ", ".join(str(known) for known in SCHEMA_VERSIONS)
        raise UserError(
            f"--json={version}: this build serves version {served}",
            code="schema_version",
            exit_code=2,
            hint="`swarmd schema` shows the objects",
        )


def _shared_options() -> list[click.Parameter]:
    def shared(*names: str, store: str, **settings: Any) -> Option:
        return Option(names, expose_value=False, callback=_store(store), is_eager=True, **settings)

    return [
        shared("--home", metavar="DIR", store="home", help="Everything of this peer lives here."),
        shared("--json", is_flag=True, store="is_json", help="JSON on standard output."),
        shared("--json-version", type=int, hidden=True, store="json_version"),
        shared("-q", "--quiet", is_flag=True, store="is_quiet", help="Less talk."),
        shared("-v", "--verbose", is_flag=True, store="is_verbose", help="More talk."),
        shared("--no-color", is_flag=True, store="has_color", help="No colour."),
        shared("--no-input", is_flag=True, store="no_input", help="Never ask."),
        shared("--timeout", type=DURATION, store="timeout_s", help="Longest time to wait."),
        shared("--yes", is_flag=True, store="yes", help="Answer every question with yes."),
    ]


# ------------------------------------------------------------------------------ commands and groups


class _Shared(click.Command):
    """Adds the shared flags, and shows them in help below the command's own."""

    section = ""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._shared = _shared_options()
        self.params += self._shared

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`--json=N` names a schema version; `--json` takes no value, so that no word is eaten."""
        end = args.index("--") if "--" in args else len(args)
        renamed = [
            arg.replace("--json=", "--json-version=", 1) if arg.startswith("--json=") else arg
            for arg in args[:end]
        ]
        with augment_usage_errors(ctx):  # their hint names this command
            return super().parse_args(ctx, self._with_bare_values(renamed) + args[end:])

    def _with_bare_values(self, args: list[str]) -> list[str]:
        """`--web` without a value becomes `--web=...`."""
        bare = {
            name: param
            for param in self.params
            if isinstance(param, Option) and param.bare is not None
            for name in param.opts
        }
        given = []
        for arg, following in zip_longest(args, args[1:], fillvalue=""):
            param = bare.get(arg)
            is_bare = param is not None and not param.is_value(following)
            given.append(f"{arg}={param.bare}" if param is not None and is_bare else arg)
        return given

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Help goes through the printer: a reader that goes away is no failure."""
        found = super().get_help_option(ctx)
        if found is not None:
            found.callback = _show_help
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                is_shared = param in self._shared or param is self.get_help_option(ctx)
                (shared if is_shared else own).append(record)
        if own:
            with formatter.section("Options"):
                formatter.write_dl(own)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        with formatter.section("On every command"):
            formatter.write_dl(shared)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from swarmd.cli.examples import EXAMPLES

        example = EXAMPLES.get(ctx.command_path.partition(" ")[2])
        if example is not None:
            with formatter.section("Example"):
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")


class Command(_Shared):
    pass


class Group(_Shared, click.Group):
    def subcommand(self, name: str | None = None, **settings: Any) -> Callable[[_F], Command]:
        """Another word below this one."""

        def wrap(function: _F) -> Command:
            made = _make(Command, function, name, settings)
            self.add_command(made)
            return made

        return wrap


def command(
    name: str | None = None, *, section: str, **settings: Any
) -> Callable[[Callable[..., Any]], Command]:
    """Make a command of a function whose first argument is the Session."""
    assert section in SECTIONS, section

    def wrap(function: Callable[..., Any]) -> Command:
        made = _make(Command, function, name, settings)
        made.section = section
        return made

    return wrap


def group(
    name: str | None = None, *, section: str, **settings: Any
) -> Callable[[Callable[..., Any]], Group]:
    """As `command`, with words below it (Group.subcommand)."""
    assert section in SECTIONS, section

    def wrap(function: Callable[..., Any]) -> Group:
        made = _make(Group, function, name, settings)
        made.section = section
        return made

    return wrap


_C = TypeVar("_C", Command, Group)


def _make(
    kind: type[_C], function: Callable[..., Any], name: str | None, settings: dict[str, Any]
) -> _C:
    params = list(reversed(function.__dict__.pop("__click_params__", [])))
    return kind(
        name=name or function.__name__.strip("_").replace("_", "-"),
        callback=click.pass_obj(function),
        params=params,
        help=function.__doc__,
        **settings,
    )
