"""`swarmd schema`: the JSON Schema of each object."""

from __future__ import annotations

from swarmd.cli.framework import Session, argument, command


@command(section="Keeping house")
@argument("name", required=False)
def schema(session: Session, name: str | None) -> None:
    """JSON Schema of one object, or the names of all."""
    from swarmd.json_record import to_json
    from swarmd.schemas import names, record_named, schema_of

    if name is None:
        session.done("\n".join(f"swarmd.{known}" for known in names()), {"names": names()})
        return
    found = schema_of(record_named(name))
    if session.is_json:
        session.printer.object(found)
    else:
        session.printer.line(to_json(found, indent=2))
