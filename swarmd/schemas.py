"""JSON Schema (2020-12) of each object, made from the dataclasses of status.py and records.py.

So a schema cannot disagree with what is printed. Every field is required; enums list the values of
this version, and readers must tolerate others, as docs/cli.md section 5 says.
"""

from __future__ import annotations

import difflib
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from swarmd import peers_record, records, result_records, status  # noqa: F401  (they register)
from swarmd.errors import UserError
from swarmd.json_record import RECORDS, Record, hints_of, json_name, union_members

_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Any: {},
}
_MARKS: dict[str, dict[str, Any]] = {
    "date-time": {"format": "date-time"},
    "ratio": {"minimum": 0, "maximum": 1},
}


def names() -> list[str]:
    return sorted(RECORDS)


def record_named(name: str) -> type[Record]:
    """`status` or `swarmd.status`. Raises UserError with the nearest name."""
    found = RECORDS.get(name.removeprefix("swarmd."))
    if found is None:
        near = difflib.get_close_matches(name.removeprefix("swarmd."), names(), n=1)
        raise UserError(
            f"there is no schema {name!r}",
            code="unknown_schema",
            exit_code=2,
            hint=f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(names())}",
        )
    return found


def schema_of(kind: type[Record]) -> dict[str, Any]:
    """The schema of a whole object, the four leading fields included."""
    definitions: dict[str, Any] = {}
    body = _object(kind, definitions)
    leading = {
        "schema": {"const": f"swarmd.{kind.SCHEMA}"},
        "schema_version": {"const": kind.SCHEMA_VERSION},
        "generated_at": {"type": "string", "format": "date-time"},
        "swarmd_version": {"type": "string"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"swarmd.{kind.SCHEMA}",
        **({"description": body["description"]} if "description" in body else {}),
        "type": "object",
        "properties": leading | body["properties"],
        "required": [*leading, *body["required"]],
        "$defs": dict(sorted(definitions.items())),
    }


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = hints_of(kind)
    named = {json_name(item): hints[item.name] for item in fields(kind)}
    text = kind.__doc__ or ""
    return {
        # dataclass writes a signature into a missing docstring
        **({} if text.startswith(kind.__name__ + "(") else {"description": " ".join(text.split())}),
        "type": "object",
        "properties": {name: _schema(hint, definitions) for name, hint in named.items()},
        "required": list(named),
    }


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    members = union_members(hint)
    if members is not None:
        return _union(members, definitions)
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return {**_schema(args[0], definitions), **_MARKS[args[1]]}
    if origin is Literal:
        return {"type": "string", "enum": list(args)}
    if origin is list:
        return {"type": "array", "items": _schema(args[0], definitions)}
    if origin is tuple:
        return {
            "type": "array",
            "prefixItems": [_schema(item, definitions) for item in args],
            "minItems": len(args),
            "maxItems": len(args),
        }
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(args[1], definitions)}
    if is_dataclass(hint) and isinstance(hint, type):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}  # before its fields, which may name it again
            definitions[hint.__name__] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return dict(_SCALARS[hint])


def _union(members: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    schemas = [_schema(member, definitions) for member in members if member is not type(None)]
    if len(schemas) == 1 and isinstance(schemas[0].get("type"), str) and "enum" not in schemas[0]:
        return {**schemas[0], "type": [schemas[0]["type"], "null"]}
    return {"anyOf": [*schemas, {"type": "null"}]}
