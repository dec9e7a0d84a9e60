"""`swarmd generate`: text from what a run has learned."""

from __future__ import annotations

import sys

from swarmd.cli.framework import Session, command, option


@command(section="Runs and results")
@option("--from", "where", metavar="DIR|RUN", help="An export, a home, a folder of homes, a run.")
@option("--prompt", required=True, metavar="TEXT", help="What comes before.")
@option("--tokens", type=int, default=128, show_default=True, help="At most so many new ones.")
@option(
    "--temperature", type=float, default=0.0, show_default=True, help="0: always the likeliest."
)
@option("--seed", type=int, default=0, show_default=True, help="Of the draws.")
@option("--threads", type=int, help="Of torch.")
def generate(
    session: Session,
    where: str | None,
    prompt: str,
    tokens: int,
    temperature: float,
    seed: int,
    threads: int | None,
) -> int:
    """Continue a text, as it comes. Default: the run that this home used last."""
    from swarmd.cli.model_process import look
    from swarmd.cli.output import harmless
    from swarmd.errors import UserError
    from swarmd.saved_models import find_model

    if tokens < 1 or temperature < 0:
        raise UserError(
            "--tokens is at least 1, --temperature at least 0", code="usage", exit_code=2
        )
    model = find_model(where, session.home)
    for note in model.notes:
        session.printer.warn(note)
    heard: list[str] = []

    def on_text(text: str) -> None:
        heard.append(text)
        if not session.is_json:
            shown = "\n".join(harmless(line) for line in text.split("\n"))
            sys.stdout.write(shown)
            sys.stdout.flush()

    settings = {"prompt": prompt, "tokens": tokens, "temperature": temperature}
    settings |= {"seed": seed, "threads": threads}
    if not session.is_json:
        on_text(prompt)
        heard.clear()
    found = look("generate", model, settings, on_text=on_text)
    if session.is_json:
        data = {"text": "".join(heard), "tokens": found["tokens"], "round": model.round}
        session.done("", data, path=model.name)
    else:
        session.printer.line()
    return 0
