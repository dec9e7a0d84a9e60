"""`swarmd eval`: how well a run's model foretells what it was never shown."""

from __future__ import annotations

import math

from swarmd.cli.framework import Session, command, option


@command("eval", section="Runs and results")
@option("--from", "where", metavar="DIR|RUN", help="An export, a home, a folder of homes, a run.")
@option("--data", metavar="SOURCE", help="Where its data are, if not where it says.")
@option("--threads", type=int, help="Of torch.")
def eval_(session: Session, where: str | None, data: str | None, threads: int | None) -> int:
    """Held-out loss and perplexity of a model. Default: the run that this home used last."""
    from swarmd.cli import format as f
    from swarmd.cli.model_process import look
    from swarmd.json_record import render
    from swarmd.result_records import Eval
    from swarmd.saved_models import find_model

    model = find_model(where, session.home)
    for note in model.notes:
        session.printer.warn(note)
    found = look("eval", model, {"data": data or "", "threads": threads})
    loss, tokens = found["loss"], found["tokens"]
    if session.is_json:
        told = Eval(
            from_=model.name,
            round=model.round,
            tokens=tokens,
            loss=loss,
            perplexity=math.exp(loss),
        )
        session.printer.object(render(told))
    else:
        session.printer.line(
            f"loss {loss:.4f}, perplexity {math.exp(loss):.2f}, "
            f"on {f.count(tokens)} tokens held out, round {model.round}"
        )
    return 0


eval = eval_
