"""`swarmd generate`: text from what a run has learned."""

from __future__ import annotations

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
    from swarmd.cli.time_limit import TimeLimit
    from swarmd.errors import UserError
    from swarmd.saved_models import find_model

    if tokens < 1 or temperature < 0:
        raise UserError(
            "--tokens is at least 1, --temperature at least 0", code="usage", exit_code=2
        )
    limit = TimeLimit(session.options.timeout_s, session.printer.say)
    settings = {"prompt": prompt, "tokens": tokens, "temperature": temperature}
    settings |= {"seed": seed, "threads": threads}
    with find_model(where, session.home, limit.reading) as model:
        for note in model.notes:
            session.printer.warn(note)
        text = _Text(session, prompt)
        try:
            found = look("generate", model, settings, limit=limit, on_text=text.add)
        except BaseException:
            text.end_line()
            raise
    if session.is_json:
        data = {"text": text.new, "tokens": found["tokens"], "round": model.round}
        data["rounds"] = model.rounds_by_stage
        session.done("", data, path=model.name)
    else:
        text.add("")
        text.end_line()
    return 0


class _Text:
    """Shown as it comes; the prompt with the first of it, so that nothing is shown of a failure."""

    def __init__(self, session: Session, prompt: str) -> None:
        self._session, self._prompt = session, prompt
        self._has_begun = False
        self.new = ""

    def add(self, text: str) -> None:
        self.new += text
        if not self._session.is_json:
            self._session.printer.part(text if self._has_begun else self._prompt + text)
            self._has_begun = True

    def end_line(self) -> None:
        if self._has_begun:
            self._session.printer.line()
