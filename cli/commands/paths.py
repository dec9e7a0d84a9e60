"""`swarmd paths`: where everything of this peer lies."""

from __future__ import annotations

from swarmd.cli.framework import Session, command


@command(section="Keeping house")
def paths(session: Session) -> None:
    """Directories and files of this home, whether they exist or not."""
    places = {name: str(path) for name, path in session.home.places().items()}
    text = "\n".join(f"{name:<12}{path}" for name, path in places.items())
    session.done(text, {"origin": session.home.origin, **places})
