"""JSON schemas of tools: held strictly here, and said to a server in the words that it takes.

A server may promise to keep to a schema, but not every one does, and none takes all keywords. So what a model
sends is checked here against the whole schema. Keywords that this module does not know are refused when the
schema is read: a rule that nobody checks would look like one that is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

__all__ = ["InputProblem", "check_schema", "parse_input", "schema_problem", "wire_schema"]

_ANNOTATIONS = frozenset({"description", "title", "default", "examples"})
_PLAIN = frozenset({"type", "properties", "required", "additionalProperties", "items", "enum"})
_LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matching {}",
}
_KNOWN = _ANNOTATIONS | _PLAIN | {"const", "anyOf"} | _LIMITS.keys()
_TYPES = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_DEEPEST = 40
_SHOWN = 60


class InputProblem(ValueError):
    """The input of a tool does not fit; the text says where and why, for the model and for people."""


def check_schema(schema: Mapping[str, Any], path: str = "$") -> None:
    """Refuses a schema with keywords or types that are not held here.

    Raises:
        ValueError: There is one; the text names it.
    """
    unknown = sorted(set(schema) - _KNOWN)
    if unknown:
        raise ValueError(f"{path}: the schema keyword '{unknown[0]}' is not supported")
    for name in _type_names(schema):
        if name not in _TYPES:
            raise ValueError(f"{path}: '{name}' is not a JSON type")
    properties: Mapping[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in properties:
            raise ValueError(f"{path}: '{name}' is required but has no schema")
    for name, inner in properties.items():
        check_schema(inner, f"{path}.{name}")
    if "items" in schema:
        check_schema(schema["items"], f"{path}[]")
    for inner in schema.get("anyOf", ()):
        check_schema(inner, path)


def parse_input(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the input of a tool as the stream has brought it, and holds it against the schema.

    Raises:
        InputProblem: It is no JSON object, or does not fit.
    """
    try:
        value = json.loads(text or "{}", parse_constant=_no_constant, object_pairs_hook=_no_doubles)
    except RecursionError:
        raise InputProblem("the input is nested too deeply") from None
    except InputProblem:
        raise
    except ValueError as error:
        raise InputProblem(f"the input is not JSON: {error}") from None
    problem = schema_problem(value, schema)
    if problem is not None:
        raise InputProblem(problem)
    if not isinstance(value, dict):
        raise InputProblem("the input is not a JSON object")
    return cast("dict[str, Any]", value)


def schema_problem(
    value: Any, schema: Mapping[str, Any], path: str = "$", depth: int = 0
) -> str | None:
    """Returns where and why a value does not fit, or None if it does.

    An object may only have the properties that its schema names, unless the schema allows others.
    """
    if depth > _DEEPEST:
        return f"{path}: nested too deeply"
    names = _type_names(schema)
    if names and not any(_is(value, name) for name in names):
        return f"{path}: expected {' or '.join(names)}, found {_shown(value)}"
    if "enum" in schema and not any(_same(value, legal) for legal in schema["enum"]):
        return f"{path}: {_shown(value)} is not one of {', '.join(map(_shown, schema['enum']))}"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{path}: expected {_shown(schema['const'])}, found {_shown(value)}"
    if "anyOf" in schema:
        problems = [schema_problem(value, inner, path, depth + 1) for inner in schema["anyOf"]]
        if all(problems):
            return f"{path}: fits none of the forms: {'; '.join(p for p in problems if p)}"
    if isinstance(value, dict):
        return _object_problem(cast("dict[str, Any]", value), schema, path, depth)
    if isinstance(value, list):
        return _array_problem(cast("list[Any]", value), schema, path, depth)
    if isinstance(value, str):
        return _text_problem(value, schema, path)
    return _number_problem(value, schema, path)


def wire_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema as a server with strict tools takes it: closed objects, limits told in the description."""
    wire: dict[str, Any] = {}
    told: list[str] = []
    for key, value in schema.items():
        if key in _LIMITS:
            told.append(_LIMITS[key].format(value))
        elif key == "properties":
            wire[key] = {name: wire_schema(inner) for name, inner in value.items()}
        elif key == "items":
            wire[key] = wire_schema(value)
        elif key == "anyOf":
            wire[key] = [wire_schema(inner) for inner in value]
        elif key not in ("title", "default", "examples"):
            wire[key] = value
    if "object" in _type_names(schema):
        wire["additionalProperties"] = False
    if told:
        before = f"{wire['description']} " if wire.get("description") else ""
        wire["description"] = f"{before}({', '.join(told)})"
    return wire


def _object_problem(
    value: dict[str, Any], schema: Mapping[str, Any], path: str, depth: int
) -> str | None:
    properties: Mapping[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{path}: '{name}' is missing"
    closed = not schema.get("additionalProperties", False)
    for name, inner in value.items():
        if name in properties:
            problem = schema_problem(inner, properties[name], f"{path}.{name}", depth + 1)
            if problem is not None:
                return problem
        elif closed and _type_names(schema):
            return f"{path}: '{_cropped(name)}' is not known here; known: {', '.join(properties)}"
    return None


def _array_problem(
    value: list[Any], schema: Mapping[str, Any], path: str, depth: int
) -> str | None:
    if len(value) < schema.get("minItems", 0):
        return f"{path}: {len(value)} items, expected at least {schema['minItems']}"
    if len(value) > schema.get("maxItems", len(value)):
        return f"{path}: {len(value)} items, expected at most {schema['maxItems']}"
    if "items" in schema:
        for index, item in enumerate(value):
            problem = schema_problem(item, schema["items"], f"{path}[{index}]", depth + 1)
            if problem is not None:
                return problem
    return None


def _text_problem(value: str, schema: Mapping[str, Any], path: str) -> str | None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return f"{path}: half of a surrogate pair, which is no character"
    if len(value) < schema.get("minLength", 0):
        return f"{path}: {len(value)} characters, expected at least {schema['minLength']}"
    if len(value) > schema.get("maxLength", len(value)):
        return f"{path}: {len(value)} characters, expected at most {schema['maxLength']}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return f"{path}: {_shown(value)} does not match {schema['pattern']}"
    return None


def _number_problem(value: Any, schema: Mapping[str, Any], path: str) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if value < schema.get("minimum", value):
        return f"{path}: {value} is less than {schema['minimum']}"
    if value > schema.get("maximum", value):
        return f"{path}: {value} is more than {schema['maximum']}"
    return None


def _type_names(schema: Mapping[str, Any]) -> Sequence[str]:
    named: Any = schema.get("type", ())
    return (named,) if isinstance(named, str) else tuple(named)


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    match name:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int)
        case "number":
            return isinstance(value, (int, float))
        case _:
            return value is None and name == "null"


def _same(left: Any, right: Any) -> bool:
    # In Python True equals 1; in JSON it does not.
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def _shown(value: Any) -> str:
    return _cropped(json.dumps(value, ensure_ascii=True))


def _cropped(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _no_constant(name: str) -> Any:
    raise InputProblem(f"the input is not JSON: {name} is no number")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise InputProblem(f"the input says '{_cropped(double)}' twice")
    return made
