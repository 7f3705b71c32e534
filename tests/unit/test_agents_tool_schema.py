"""Schemas of tools are held strictly, whatever a model sends."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.agents.tool_schema import (
    InputProblem,
    check_schema,
    parse_input,
    schema_problem,
    wire_schema,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["diff", "rewrite"]},
        "edits": {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {"search": {"type": "string"}, "replace": {"type": "string"}},
                "required": ["search", "replace"],
            },
        },
        "chunk": {"type": ["integer", "null"], "minimum": 1, "maximum": 64, "description": "Rows."},
        "share": {"type": "number"},
        "sure": {"type": "boolean"},
        "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "integer"}]},
        "name": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2},
    },
    "required": ["kind"],
}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"kind": "patch"}, '"patch" is not one of "diff", "rewrite"'),
        ({"edits": []}, "$.edits: 0 items, expected at least 1"),
        ({"edits": [{"search": "a", "replace": "b"}] * 4}, "at most 3"),
        ({"edits": [{"search": "a"}]}, "$.edits[0]: 'replace' is missing"),
        ({"edits": [{"search": 1, "replace": ""}]}, "$.edits[0].search: expected string, found 1"),
        ({"chunk": True}, "$.chunk: expected integer or null, found true"),
        ({"chunk": 65}, "more than 64"),
        ({"chunk": 2.0}, "expected integer"),
        ({"share": "1"}, "expected number"),
        ({"sure": 0}, "expected boolean"),
        ({"note": "too long"}, "fits none of the forms"),
        ({"name": "Ab"}, "does not match"),
        ({"name": "a"}, "1 characters"),
        ({"name": "\ud800\ud800"}, "surrogate"),
        ({"other": 1}, "'other' is not known here"),
    ],
)
def test_what_does_not_fit_is_named(part, problem):
    found = schema_problem({"kind": "diff", **part}, SCHEMA)
    assert found is not None
    assert problem in found


@pytest.mark.parametrize(
    "part",
    [
        {},
        {"edits": [{"search": "a", "replace": ""}]},
        {"chunk": None},
        {"chunk": 64},
        {"share": 1},
        {"sure": False},
        {"note": 7},
        {"name": "ab"},
    ],
)
def test_what_fits_comes_through(part):
    value = {"kind": "diff", **part}
    assert parse_input(json.dumps(value), SCHEMA) == value


@given(ANY_JSON)
def test_anything_fits_or_is_a_problem(value):
    try:
        found = parse_input(json.dumps(value), SCHEMA)
    except InputProblem:
        return
    assert found == value
    assert found["kind"] in ("diff", "rewrite")


@given(st.text())
def test_no_text_raises_anything_else(text: str):
    try:
        parse_input(text, SCHEMA)
    except InputProblem as error:
        assert str(error)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"kind": ' * 2_000, "9" * 5_000, '{"a":1,"a":1}', "Infinity", "{} {}"]
)
def test_odd_texts_are_problems(text: str):
    with pytest.raises(InputProblem):
        parse_input(text, SCHEMA)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", "patternProperties": {}}, "patternProperties"),
        ({"type": "text"}, "'text' is not a JSON type"),
        (
            {"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "x"}}}},
            "$ref",
        ),
        ({"type": "object", "required": ["a"]}, "'a' is required"),
        ({"anyOf": [{"if": 1}]}, "'if'"),
    ],
)
def test_a_rule_that_nobody_holds_is_refused(schema, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        check_schema(schema)


def test_a_server_gets_what_it_takes():
    check_schema(SCHEMA)
    wire = wire_schema(SCHEMA)
    assert wire["additionalProperties"] is False
    assert wire["properties"]["edits"]["items"]["additionalProperties"] is False
    chunk = wire["properties"]["chunk"]
    assert chunk == {"type": ["integer", "null"], "description": "Rows. (at least 1, at most 64)"}
    text = json.dumps(wire)
    assert not any(f'"{word}"' in text for word in ("minimum", "maxItems", "pattern", "minLength"))
    check_schema(wire)
