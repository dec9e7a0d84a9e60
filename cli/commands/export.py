"""`swarmd export`: the whole model, in the format that everybody uses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarmd.cli.framework import Parsed, Session, command, option
from swarmd.units import parse_size

if TYPE_CHECKING:
    from swarmd.result_records import ExportedFile
    from swarmd.saved_models import SavedModel

FORMATS = ("hf-safetensors",)
COLLECT_S = 600.0
"""For the stages that others train."""


@command(section="Runs and results")
@option(
    "--to",
    "target",
    nargs=2,
    required=True,
    metavar="FORMAT DIR",
    help="hf-safetensors, and the folder to make.",
)
@option("--from", "where", metavar="RUN|DIR", help="A run, a home, or a folder of homes.")
@option(
    "--shard",
    type=Parsed("SIZE", parse_size),
    default="5GB",
    show_default=True,
    help="Weights above that size go into several files.",
)
def export(session: Session, target: tuple[str, str], where: str | None, shard: int) -> int:
    """Write a run's whole model as a folder that transformers and llama.cpp's tools read.

    From the newest round of which this home, or the homes below --from, have every stage. Without
    --from, the daemon of this home first fetches the stages that others train. Training goes on
    meanwhile. The folder appears complete or not at all, and nothing is overwritten.
    """
    from swarmd.cli.model_process import look
    from swarmd.cli.time_limit import TimeLimit
    from swarmd.new_folder import check_is_free, new_folder
    from swarmd.result_records import ExportedFile
    from swarmd.saved_models import find_model

    limit = TimeLimit(session.options.timeout_s, session.printer.say)
    kind, folder = target[0], Path(os.path.realpath(target[1]))
    if kind not in FORMATS:
        raise click.BadParameter(f"{kind!r} is no format; there is {FORMATS[0]}")
    check_is_free(folder)
    if where is None:
        where = _collected(session)
    with find_model(where, session.home, limit.reading) as model:
        if model.export is not None:
            raise click.BadParameter(f"{where} is an export already; copy it")
        for note in model.notes:
            session.printer.warn(note)
        with new_folder(folder) as made:
            settings = {"to": str(made), "shard_bytes": shard}
            found = look("export", model, settings, limit=limit)
        _tell(session, model, folder, [ExportedFile(**file) for file in found["files"]])
    return 0


def _tell(session: Session, model: SavedModel, folder: Path, files: Sequence[ExportedFile]) -> None:
    from swarmd.cli import format as f
    from swarmd.json_record import render
    from swarmd.result_records import Export

    if session.is_json:
        told = Export(
            dir=str(folder),
            round=model.round,
            rounds=model.rounds_by_stage,
            files=list(files),
            complete=True,
        )
        session.printer.object(render(told))
        return
    for file in files:
        session.printer.line(f"{f.size(file.bytes):>9}  {file.hash[:16]}  {file.name}")
    session.printer.line(f"{folder}: {model.run.name}, {model.rounds_shown}")
    if model.run.boundary.kind == "anchored":
        session.printer.say("its stages have tables of their own: load it with trust_remote_code")


def _collected(session: Session) -> str | None:
    """Have the daemon, if one runs, fetch what this home lacks. Returns its run."""
    from swarmd.errors import UserError
    from swarmd.local_api.client import NoDaemon

    try:
        found = session.ask("collect", {"deadline_s": COLLECT_S}, timeout_s=COLLECT_S + 10.0)
    except NoDaemon:
        return None
    except UserError as error:
        if error.code not in ("not_ready", "no_daemon"):
            raise
        return None
    data = found.get("data") or {}
    for stage in data.get("missing") or []:
        session.printer.warn(f"nobody gave stage {stage}: taken from the disk, if it is there")
    return data.get("run")
