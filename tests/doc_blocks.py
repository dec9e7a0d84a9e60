"""The parts of the documents that are made from the code, so that the two cannot disagree.

A document holds a block between two comments; `scripts/docs` writes what stands between them, and
tests/repo/test_documents.py fails while a block is not what the code says:

    <!-- made by scripts/docs: exit-codes -->
    ...
    <!-- end -->

Sentences are people's work and stand outside of blocks.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, get_args

import click

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(
    r"(?P<head><!-- made by scripts/docs: (?P<name>[a-z-]+) -->\n)"
    r"(?P<body>.*?)"
    r"(?P<tail><!-- end -->)",
    re.DOTALL,
)


def documents() -> list[Path]:
    """Every Markdown file of the project."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "protocols" / "README.md"]
    return sorted(path for path in found if path.exists())


def refreshed(text: str) -> str:
    """The document with every block made anew. KeyError names a block that nobody makes."""
    return BLOCK.sub(lambda m: f"{m['head']}\n{BLOCKS[m['name']]().rstrip()}\n\n{m['tail']}", text)


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [" | ".join(header), " | ".join("---" for _ in header)]
    lines += [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def code(text: object) -> str:
    return f"`{text}`"


def size_text(count: int) -> str:
    """1048576 as 1 MiB where that is exact."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor} {unit}"
    return f"{count} bytes"


def seconds_text(value: object) -> str:
    return "adaptive" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def number_text(value: float) -> str:
    """Large powers of two and ten as such: they are bounds and not measurements."""
    if isinstance(value, int) and value > 1 << 20:
        for shift in range(20, 64):
            for offset in (0, -1):
                if value == (1 << shift) + offset:
                    return f"2^{shift}{'' if not offset else ' - 1'}"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}".replace(",", " ")


# ----------------------------------------------------------------------------------------- the wire


def check_text(check: Any) -> str:
    """What a field's check (swarmd/protocols/schema.py) allows, read from the check itself."""
    bound = inspect.getclosurevars(check).nonlocals
    kind = check.__qualname__.partition(".")[0]
    match kind:
        case "_integer":
            return f"integer, {number_text(bound['low'])} to {number_text(bound['high'])}"
        case "_number":
            return f"number, {number_text(bound['low'])} to {number_text(bound['high'])}"
        case "_text":
            return f"text of at most {number_text(bound['chars_max'])} characters"
        case "_raw":
            return f"at most {size_text(bound['bytes_max'])}"
        case "_truth":
            return "boolean"
        case "optional_check":
            return f"{check_text(bound['inner'])}, or null"
        case "sequence_check":
            most = number_text(bound["items_max"])
            return f"list of at most {most}: {check_text(bound['inner'])}"
        case "nested_check":
            return f"fields of {bound['kind'].__name__}"
    raise AssertionError(f"no words for the check {kind}")


def default_text(item: Any) -> str:
    if item.default is not MISSING:
        value = item.default
        return {"": "empty", (): "empty", b"": "empty"}.get(value, str(value).lower())
    return "required" if item.default_factory is MISSING else "empty"


def messages() -> str:
    """One table a file of protocols/messages, in the order of the numbers."""
    from swarmd.protocols.messages import REGISTRY

    parts: list[str] = []
    module = ""
    rows: list[tuple[str, ...]] = []
    for number, kind in sorted(REGISTRY.items()):
        if kind.__module__ != module:
            parts += [table(_MESSAGE_HEADER, rows)] if rows else []
            module, rows = kind.__module__, []
            parts.append(f"### {module.rpartition('.')[2].capitalize()}")
        first = (str(number), f"**{kind.__name__}**" + " (in order)" * kind.IN_ORDER)
        listed = fields(kind)  # type: ignore[arg-type]
        for item in listed:
            check = check_text(item.metadata["check"])
            rows.append((*first, code(item.name), check, default_text(item)))
            first = ("", "")
        if not listed:
            rows.append((*first, "", "", ""))
    parts.append(table(_MESSAGE_HEADER, rows))
    return "\n\n".join(parts)


_MESSAGE_HEADER = ("No.", "message", "field", "what may stand in it", "default")


def wire_limits() -> str:
    """The constants of protocols/limits.py, with the first line of their reason."""
    from swarmd.protocols import limits

    rows = []
    for name, why in constants_with_reasons(ROOT / "protocols" / "limits.py"):
        value = getattr(limits, name)
        is_bytes = "BYTES" in name
        shown = size_text(value) if is_bytes else number_text(value)
        rows.append((code(name), shown, why))
    return table(("limit", "value", "why"), rows)


def constants_with_reasons(path: Path) -> Iterator[tuple[str, str]]:
    """(NAME, the string right after it, if any) of a module's constants."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = str(following.value.value)
        yield node.targets[0].id, " ".join(text.split())


def frame_kinds() -> str:
    from swarmd.net.frames import Kind

    return table(("kind", "name"), [(str(int(kind)), kind.name) for kind in Kind])


# --------------------------------------------------------------------------------- the command line


@cache
def command_tree() -> dict[str, click.Command]:
    """`swarmd run create` and so on, in order, groups included; the root is `swarmd`."""
    from swarmd.cli.main import root

    found: dict[str, click.Command] = {}

    def walk(path: str, command: click.Command) -> None:
        found[path] = command
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=path)
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                walk(f"{path} {name}", below)

    walk("swarmd", root)
    return found


def own_params(command: click.Command) -> list[click.Parameter]:
    """Without the flags that every command has."""
    shared = getattr(command, "_shared", [])
    return [param for param in command.params if param not in shared]


@cache
def requests_answered() -> set[str]:
    """What the daemon answers: the keys in swarmd/node/handlers.py."""
    tree = ast.parse((ROOT / "swarmd" / "node" / "handlers.py").read_text(encoding="utf-8"))
    return {
        key.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
        if isinstance(value, (ast.Call, ast.Attribute))
    }


@cache
def requests_made() -> dict[str, set[str]]:
    """`file.function` of each command to what it asks the daemon."""
    made: dict[str, set[str]] = {}
    for file in sorted((ROOT / "cli" / "commands").glob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                asked = {
                    argument.value
                    for call in ast.walk(node)
                    if isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Attribute)
                    and call.func.attr in ("ask", "stream")
                    for argument in call.args[:2]
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                }
                made[f"{file.stem}.{node.name.strip('_')}"] = asked
    return made


def unanswered(path: str) -> set[str]:
    """Requests of the command at `path` that no daemon of this version answers."""
    words = path.split()[1:]
    stem = words[0].replace("-", "_")
    name = words[-1].replace("-", "_")
    return requests_made().get(f"{stem}.{name}", set()) - requests_answered()


def commands() -> str:
    from swarmd.cli.framework import SECTIONS

    tree = command_tree()
    parts = []
    for section in SECTIONS:
        rows = []
        for path, command in tree.items():
            top = tree.get(" ".join(path.split()[:2]))
            if path == "swarmd" or getattr(top, "section", "") != section:
                continue
            if isinstance(command, click.Group) and not command.invoke_without_command:
                continue
            rows.append((code(usage(path, command)), first_sentences(command), today(path)))
        if rows:
            parts.append(f"**{section}**\n\n{table(('command', 'what it does', 'works'), rows)}")
    return "\n\n".join(parts)


def today(path: str) -> str:
    return "not yet" if unanswered(path) else "yes"


def usage(path: str, command: click.Command) -> str:
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    context = click.Context(command)
    return " ".join([path, *(param.make_metavar(context) for param in arguments)])


def first_sentences(command: click.Command) -> str:
    """The first paragraph of its help."""
    return " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())


def shared_flags() -> str:
    root = command_tree()["swarmd"]
    return _flags(getattr(root, "_shared", []), root)


def flags() -> str:
    """Every command's own flags but those of `join`, which are settings."""
    parts = []
    for path, command in command_tree().items():
        options = [p for p in own_params(command) if isinstance(p, click.Option) and not p.hidden]
        if options and path != "swarmd join":
            parts.append(f"**`{path}`**\n\n{_flags(options, command)}")
    return "\n\n".join(parts)


def _flags(options: list[Any], command: click.Command) -> str:
    context = click.Context(command)
    rows = []
    for option in options:
        record = None if option.hidden else option.get_help_record(context)
        if record is not None:
            rows.append((code(record[0]), " ".join(record[1].split())))
    return table(("flag", "meaning"), rows)


def settings() -> str:
    """What is mine to set, as a flag of `join`, a variable and a key."""
    from swarmd.settings import SETTINGS

    rows = []
    for item in SETTINGS:
        value = "" if item.is_switch else f" {item.grammar.metavar}"
        key = f"[{item.section}] {item.name}"
        now = "obeyed" if item.is_obeyed else "read, not obeyed yet"
        rows.append((code(item.flag + value), code(key), item.help, now))
    return table(("flag of `join`", "in config.toml", "meaning", "now"), rows)


def join_flags() -> str:
    """The flags of `join` that are no settings."""
    from swarmd.settings import SETTINGS

    names = {item.flag for item in SETTINGS}
    command = command_tree()["swarmd join"]
    options = [
        param
        for param in own_params(command)
        if isinstance(param, click.Option) and not names & set(param.opts)
    ]
    return _flags(options, command)


# -------------------------------------------------------------------------- states, limits, records


def reasons() -> str:
    from swarmd.protocols.reasons import STATE_OF_CODE

    return table(
        ("code", "state"), [(code(name), ", ".join(at)) for name, at in STATE_OF_CODE.items()]
    )


def health_codes() -> str:
    from swarmd.health import BAD, WARNINGS

    bad = ", ".join(code(name) for name in sorted(BAD))
    only = ", ".join(code(name) for name in sorted(WARNINGS))
    return f"Always `bad`: {bad}.\n\nHealth codes that are no reason codes: {only}."


def named_limits() -> str:
    from swarmd.named_limits import LOCAL, WAN

    rows = []
    local = LOCAL.shown()
    for name, value in WAN.shown().items():
        rows.append((code(name), seconds_text(value), seconds_text(local[name])))
    return table(("name", "default", '`time_scale = "local"`'), rows)


def objects() -> str:
    """The JSON objects, with their fields one level deep."""
    from swarmd.json_record import RECORDS
    from swarmd.schemas import names

    rows = []
    for name in names():
        kind = RECORDS[name]
        listed = ", ".join(code(item.name.rstrip("_")) for item in fields(kind))
        rows.append((code(f"swarmd.{name}"), str(kind.SCHEMA_VERSION), listed))
    return table(("object", "version", "fields"), rows)


def status_fields() -> str:
    """Every field of `swarmd.status`, by its dotted name, a line a part."""
    from swarmd.schemas import record_named, schema_of

    schema = schema_of(record_named("status"))
    rows = []
    for name, body in schema["properties"].items():
        if name in ("schema", "schema_version", "generated_at", "swarmd_version"):
            continue
        rows.append((code(name), ", ".join(_leaves(body, schema)) or "-"))
    return table(("part", "fields"), rows)


def _leaves(body: dict[str, Any], schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Field names below `body`; `name[]` for lists, dots between levels."""
    for option in body.get("anyOf", []):
        if option.get("type") != "null":
            yield from _leaves(option, schema, prefix)
    if "$ref" in body:
        yield from _leaves(schema["$defs"][body["$ref"].rpartition("/")[2]], schema, prefix)
    elif body.get("type") == "array":
        yield from _leaves(body.get("items", {}), schema, f"{prefix.removesuffix('.')}[].")
    for name, inner in body.get("properties", {}).items():
        below = list(_leaves(inner, schema, f"{prefix}{name}."))
        is_list = inner.get("type") == "array"
        yield from below or [code(f"{prefix}{name}{'[]' if is_list else ''}")]


def injections() -> str:
    from swarmd.injection import KINDS

    return table(("kind", "the peer ..."), [(code(k), text) for k, (_, _, text) in KINDS.items()])


def presets() -> str:
    from swarmd.run_file import preset_names, preset_sections

    rows = []
    for name in preset_names():
        plan = preset_sections(name)
        model, boundary, run = plan["model"], plan["boundary"], plan["run"]
        shape = f"{model['layers']} x {model['width']}, vocabulary {model['vocab_size']:,}"
        cut = f"{boundary['kind']}, k = {boundary['rank']}"
        rows.append((code(name), shape, str(run["stages"]), cut, str(run["inner_steps"])))
    return table(("preset", "layers x width", "stages", "boundary", "H"), rows)


def states() -> str:
    from swarmd.status import State

    return ", ".join(code(name) for name in get_args(State))


FAULT_ID = re.compile(r"\b(?:BOOT|IDEN|MEMB|STAG|RND|STATE|DATA|WIRE|RES|PROC|CLI|SEC)-\d\d\b")


def fault_tests() -> str:
    """Which files below tests/ and swarmd/sim/ name an entry of docs/faults.md."""
    faults = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    named: dict[str, list[str]] = {name: [] for name in FAULT_ID.findall(BLOCK.sub("", faults))}
    for folder in (ROOT / "tests", ROOT / "swarmd" / "sim"):
        for file in sorted(folder.rglob("*.py")):
            for name in sorted(set(FAULT_ID.findall(file.read_text(encoding="utf-8")))):
                if name in named and file.name != Path(__file__).name:
                    named[name].append(code(file.relative_to(ROOT).as_posix()))
    rows = [(name, ", ".join(files)) for name, files in named.items() if files]
    silent = ", ".join(name for name, files in named.items() if not files)
    return (
        f"{table(('id', 'named in'), rows)}\n\nNamed in none so far: {silent or 'every entry is'}."
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "fault-tests": fault_tests,
    "flags": flags,
    "frame-kinds": frame_kinds,
    "health-codes": health_codes,
    "injections": injections,
    "join-flags": join_flags,
    "messages": messages,
    "named-limits": named_limits,
    "objects": objects,
    "presets": presets,
    "reasons": reasons,
    "settings": settings,
    "shared-flags": shared_flags,
    "states": states,
    "status-fields": status_fields,
    "wire-limits": wire_limits,
}


def main() -> int:
    """Write every block. Prints what changed."""
    for path in documents():
        before = path.read_text(encoding="utf-8")
        after = refreshed(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
