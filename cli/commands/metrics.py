"""`swarmd metrics`: Prometheus text, once."""

from __future__ import annotations

from swarmd.cli.framework import Session, command


@command(section="Looking")
def metrics(session: Session) -> None:
    """`status` and `peers` as Prometheus text."""
    from swarmd.metrics_text import metrics_text

    text = metrics_text(session.ask("status"), session.ask("peers"))
    session.done(text.rstrip("\n"), {"text": text})
