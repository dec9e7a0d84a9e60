"""A validator for the part of JSON Schema that swarmd's own schemas use. For tests only.

Small on purpose: types, required, enum, const, arrays, maps, references and ranges. A keyword it
does not know fails, so that no part of a schema goes unchecked.
"""

from __future__ import annotations

from typing import Any

from swarmd.json_record import unix_s
from swarmd.schemas import record_named, schema_of

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}
_KNOWN = {
    "$defs", "$ref", "$schema", "additionalProperties", "anyOf", "const", "description", "enum",
    "format", "items", "maxItems", "maximum", "minItems", "minimum", "prefixItems", "properties",
    "required", "title", "type",
}  # fmt: skip


def assert_valid(found: Any) -> None:
    """`found` is a whole object, as printed; its own `schema` says which schema it must meet."""
    name = found["schema"]
    schema = schema_of(record_named(name))
    problems = check(found, schema, schema["$defs"], name)
    assert not problems, "\n".join(problems)
    unknown = found.keys() - schema["properties"].keys()
    assert not unknown, f"{name} has undocumented fields {sorted(unknown)}"


def check(value: Any, schema: dict[str, Any], definitions: dict[str, Any], where: str) -> list[str]:
    """What is wrong, one line each; empty if nothing is."""
    assert schema.keys() <= _KNOWN, f"{where}: unknown keywords {schema.keys() - _KNOWN}"
    if "$ref" in schema:
        return check(value, definitions[schema["$ref"].rsplit("/", 1)[1]], definitions, where)
    if "anyOf" in schema:
        branches = [check(value, branch, definitions, where) for branch in schema["anyOf"]]
        return [] if any(not problems for problems in branches) else branches[0]
    if "const" in schema and value != schema["const"]:
        return [f"{where}: {value!r} is not {schema['const']!r}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where}: {value!r} is none of {schema['enum']}"]
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(_is_a(value, name) for name in types):
        return [f"{where}: {value!r} is no {types}"]
    return _inside(value, schema, definitions, where)


def _inside(
    value: Any, schema: dict[str, Any], definitions: dict[str, Any], where: str
) -> list[str]:
    problems: list[str] = []
    if isinstance(value, dict):
        inner = schema.get("properties", {})
        problems += [
            f"{where}.{name}: missing" for name in schema.get("required", []) if name not in value
        ]
        for name, item in value.items():
            branch = inner.get(name, schema.get("additionalProperties", {}))
            problems += check(item, branch, definitions, f"{where}.{name}")
    elif isinstance(value, list):
        fixed = schema.get("prefixItems", [])
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            problems.append(f"{where}: has {len(value)} items")
        for index, item in enumerate(value):
            branch = fixed[index] if index < len(fixed) else schema.get("items", {})
            problems += check(item, branch, definitions, f"{where}[{index}]")
    elif isinstance(value, str) and schema.get("format") == "date-time":
        try:
            unix_s(value)
        except ValueError:
            problems.append(f"{where}: {value!r} is no time")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            problems.append(f"{where}: {value} is out of range")
    return problems


def _is_a(value: Any, name: str) -> bool:
    if name == "integer":
        return type(value) is int
    if name == "number":
        return type(value) in (int, float)
    return isinstance(value, _TYPES[name])
