"""`swarmd config`: what is mine to set, and where each value comes from."""

from __future__ import annotations

from typing import Any

from swarmd.cli.framework import Session, argument, group, option
from swarmd.errors import UserError
from swarmd.home import absolute


@group(section="Keeping house")
def config(session: Session) -> None:
    """Settings of this peer. Those of the run are in its run file and equal everywhere."""


@config.subcommand()
@option("--origin", is_flag=True, help="Also where each value comes from.")
def show(session: Session, origin: bool) -> None:
    """Every setting and its effective value."""
    values = _effective(session)
    if session.is_json:
        _render(session, values)
        return
    width = max(map(len, values))
    for key, (value, source) in values.items():
        tail = f"   # {source}" if origin else ""
        session.printer.line(f"{key:<{width}} = {_text(value)}{tail}")


@config.subcommand()
@argument("key", metavar="KEY")
def get(session: Session, key: str) -> None:
    """One effective value."""
    values = _effective(session)
    found = _key(key)
    if session.is_json:
        _render(session, {found: values[found]})
    else:
        session.printer.line(_text(values[found][0]))


@config.subcommand("set")
@argument("key", metavar="KEY")
@argument("value", metavar="VALUE")
def set_command(session: Session, key: str, value: str) -> None:
    """Write one value into config.toml of this home; everything else in it stays."""
    from swarmd.peer_config import check_file
    from swarmd.settings import BY_KEY
    from swarmd.store import write_bytes
    from swarmd.toml_file import literal, parse_toml, read_toml, set_value
    from swarmd.units import BadValue

    setting = BY_KEY[_key(key)]
    try:
        shown = setting.show(setting.read(value))
    except BadValue as error:
        raise UserError(f"{setting.key}: {error}", code="usage", exit_code=2) from None
    file = session.home.config_file
    before = read_toml(file)
    try:
        text = set_value(
            before.text if before else "", setting.section, setting.name, literal(shown)
        )
    except ValueError as error:
        raise UserError(
            f"{file}: {setting.key} on {error}",
            code="usage",
            exit_code=2,
            hint="change it in the file itself",
        ) from None
    check_file(parse_toml(file, text.encode()))
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_bytes(file, text.encode())
    live = "" if setting.is_live else "; a running daemon takes it at its next start"
    session.done(
        f"{setting.key} = {_text(shown)}{live}",
        {"key": setting.key, "value": shown},
        path=str(file),
    )


@config.subcommand()
@argument("file", metavar="[FILE]", required=False)
def validate(session: Session, file: str | None) -> None:
    """Check a config file, or a run file; default: config.toml of this home.

    Unknown keys are errors here. Ends with 78 if anything is wrong, naming file, line and key.
    """
    from swarmd.toml_file import read_toml

    path = session.home.config_file if file is None else absolute(file)
    document = read_toml(path)
    if document is None:
        if file is not None:
            raise UserError(f"there is no file {path}", code="no_file", exit_code=2)
        session.done(f"{path} does not exist, so every value is built in", path=str(path))
        return
    if "run" in document.values:
        from swarmd.run_file import read_run_file

        read_run_file(path).check()
        session.done(f"{path} is a valid run file", {"kind": "run"}, path=str(path))
        return
    from swarmd.peer_config import check_file
    from swarmd.toml_file import bad_config

    unknown = check_file(document)
    if unknown:
        raise bad_config(unknown[0], "is an error here", "\n".join(unknown[1:]))
    session.done(f"{path} is valid", {"kind": "config"}, path=str(path))


def _effective(session: Session) -> dict[str, tuple[Any, str]]:
    from swarmd.peer_config import effective_config

    effective = effective_config(session.home)
    for warning in effective.warnings:
        session.printer.warn(warning)
    return effective.shown()


def _render(session: Session, values: dict[str, tuple[Any, str]]) -> None:
    from swarmd.json_record import render
    from swarmd.records import Config, ConfigValue

    shown = {
        key: ConfigValue(value=value, origin=origin) for key, (value, origin) in values.items()
    }
    session.printer.object(render(Config(values=shown)))


def _key(key: str) -> str:
    """Full, or the name alone. Raises UserError with the nearest one."""
    import difflib

    from swarmd.peer_config import is_run_key
    from swarmd.settings import BY_KEY, BY_NAME

    if key in BY_KEY:
        return key
    if key in BY_NAME:
        return BY_NAME[key].key
    if is_run_key(key.rpartition(".")[2]):
        raise UserError(
            f"{key!r} belongs to the run, which is equal on every peer",
            code="belongs_to_run",
            exit_code=2,
            hint="`swarmd run show` shows it; another value is another run",
        )
    near = difflib.get_close_matches(key, [*BY_KEY, *BY_NAME], n=1)
    raise UserError(
        f"there is no setting {key!r}",
        code="unknown_key",
        exit_code=2,
        hint=f"did you mean `{near[0]}`?" if near else "`swarmd config show` lists all",
    )


def _text(value: Any) -> str:
    from swarmd.toml_file import literal

    return "-" if value is None else literal(value)
