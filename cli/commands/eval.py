"""`swarmd eval`: how well a run's model foretells what it was never shown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from swarmd.cli.framework import Session, command, option

if TYPE_CHECKING:
    from swarmd.saved_models import SavedModel

LOSS_MAX = 700.0
"""The perplexity of a higher one is no number of 64 bits."""


@command("eval", section="Runs and results")
@option("--from", "where", metavar="DIR|RUN", help="An export, a home, a folder of homes, a run.")
@option("--data", metavar="SOURCE", help="Where its data are, if not where it says.")
@option("--threads", type=int, help="Of torch.")
def eval_(session: Session, where: str | None, data: str | None, threads: int | None) -> int:
    """Held-out loss and perplexity of a model. Default: the run that this home used last."""
    from swarmd.cli.model_process import look
    from swarmd.cli.time_limit import TimeLimit
    from swarmd.saved_models import find_model

    limit = TimeLimit(session.options.timeout_s, session.printer.say)
    with find_model(where, session.home, limit.reading) as model:
        for note in model.notes:
            session.printer.warn(note)
        settings = {"data": data or "", "threads": threads}
        found = look("eval", model, settings, limit=limit)
    _tell(session, model, found["loss"], found["tokens"])
    return 0


def _tell(session: Session, model: SavedModel, loss: float, tokens: int) -> None:
    from swarmd.cli import format as f
    from swarmd.json_record import render
    from swarmd.result_records import Eval

    perplexity = math.exp(loss) if loss < LOSS_MAX else None
    if session.is_json:
        told = Eval(
            from_=model.name,
            round=model.round,
            rounds=model.rounds_by_stage,
            tokens=tokens,
            loss=loss,
            perplexity=perplexity,
        )
        session.printer.object(render(told))
        return
    shown = f.UNKNOWN if perplexity is None else f"{perplexity:.2f}"
    session.printer.line(
        f"loss {loss:.4f}, perplexity {shown}, "
        f"on {f.count(tokens)} tokens held out, {model.rounds_shown}"
    )


eval = eval_
