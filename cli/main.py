"""`swarmd`: finds the command, runs it, and turns whatever happens into an exit status.

Commands are the files of cli/commands; each is loaded when it is named. Reading commands load
neither torch nor libp2p nor trio, so that they answer in a fraction of a second.
"""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
from typing import Any, NoReturn

import click

from swarmd.cli import commands, exits
from swarmd.cli.framework import SECTIONS, Group, Session
from swarmd.cli.output import OutputClosed, OutputFailed, Printer


class Root(Group):
    """Every file in cli/commands is a command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        files = (name for folder in commands.__path__ for name in os.listdir(folder))
        stems = (name.removesuffix(".py") for name in files if name.endswith(".py"))
        return sorted(stem.replace("_", "-") for stem in stems if not stem.startswith("_"))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's; a word that is no command is told with the one that was meant."""
        word = args[0]
        if self.get_command(ctx, word) is None and word[:1].isalnum():
            near = difflib.get_close_matches(word, self.list_commands(ctx), n=1)
            guess = f"; did you mean `swarmd {near[0]}`?" if near else ""
            raise click.UsageError(f"there is no command {word!r}{guess}", ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        stem = cmd_name.replace("-", "_")
        module = importlib.import_module(f"swarmd.cli.commands.{stem}")
        found: click.Command = getattr(module, stem)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        known = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        for section in SECTIONS:
            rows = [
                (command.name or "", command.get_short_help_str(90))
                for command in known
                if command is not None and getattr(command, "section", "") == section
            ]
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)


def _root(session: Session) -> None:
    """A peer daemon for permissionless swarm training of language models.

    `swarmd local` tries everything on this machine; `swarmd join LINK` takes part in a run.
    """
    if session.is_program:
        _take_signals()


root = Root(
    name="swarmd",
    callback=click.pass_obj(_root),
    help=_root.__doc__,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
)


def run(argv: list[str], printer: Printer | None = None, *, is_program: bool = False) -> int:
    """One command line, in this process. Returns the exit status; raises nothing.

    is_program: the process is there for this, so its signals are ours.
    """
    session = Session(argv, printer, is_program=is_program)
    try:
        result: Any = root.main(argv, prog_name="swarmd", obj=session, standalone_mode=False)
        return result if isinstance(result, int) else exits.OK
    except OutputClosed:
        exits.drop_output()
        return exits.OK
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else exits.FAILED
    except BaseException as error:  # everything ends here, as one line and a status
        return _report(session, error)


def _report(session: Session, error: BaseException) -> int:
    failure = exits.failure_of(error)
    printer = session.printer
    is_json = printer.is_json or any(arg.split("=")[0] == "--json" for arg in session.argv)
    try:
        if is_json and not isinstance(error, OutputFailed):
            printer.object(_error_object(failure))
        printer.error(failure.lines())
        if printer.is_verbose and failure.code not in ("interrupted", "terminated"):
            printer.error(exits.traceback_of(error))
    except (OutputClosed, OutputFailed):
        exits.drop_output()
    if isinstance(error, OutputFailed):
        exits.drop_output()
    return failure.exit_code


def _error_object(failure: exits.Failure) -> dict[str, Any]:
    from swarmd.json_record import plain, render
    from swarmd.records import ErrorPart, ErrorRecord

    return render(
        ErrorRecord(
            error=ErrorPart(
                code=failure.code,
                exit_code=failure.exit_code,
                message=failure.message,
                hint=failure.hint or None,
                details=plain(failure.details),
            )
        )
    )


def _take_signals() -> None:
    """Signals become exceptions once the command is loaded: in the middle of an import they may get
    lost. The daemon puts handlers of its own in their place."""
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # by swarmd/__main__.py
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _terminate(number: int, frame: object) -> NoReturn:
    raise exits.Terminated


def main() -> NoReturn:
    """The console script."""
    sys.exit(run(sys.argv[1:], is_program=True))
