"""The tools that agents' models are given: strict schemas for proposals, descriptions, diagnoses, notes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from kerneltui.agents.edits.tool_input import EDIT_SCHEMA
from kerneltui.agents.model_port import Tool
from kerneltui.agents.prompt_files import prompt_text
from kerneltui.model.directive import Backend, Directive, Issuer, Placement, Sync
from kerneltui.model.errors import RecordError

__all__ = ["DESCRIBE", "DIAGNOSE", "NOTES", "PATHS", "PROPOSE", "directive_of"]

_TEXT = {"type": "string"}


def _object(properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
    }


def _described(schema: Mapping[str, Any], told: dict[str, str], path: str = "") -> dict[str, Any]:
    """The schema with what is told of its fields; what was used is taken out of `told`."""
    made = dict(schema)
    if path in told:
        made["description"] = told.pop(path)
    if "properties" in schema:
        before = f"{path}." if path else ""
        made["properties"] = {
            name: _described(inner, told, f"{before}{name}")
            for name, inner in schema["properties"].items()
        }
    if "items" in schema:
        made["items"] = _described(schema["items"], told, f"{path}[]")
    return made


def _tool(name: str, properties: Mapping[str, Any], required: list[str]) -> Tool:
    """A tool, described by `prompts/tools.toml`.

    Raises:
        ValueError: The file says something of a field that the tool does not have.
    """
    said = tomllib.loads(prompt_text("tools.toml"))[name]
    told = dict(said.get("fields", {}))
    schema = _described(_object(properties, required), told)
    if told:
        raise ValueError(f"prompts/tools.toml: {name} has no field {min(told)}")
    return Tool(name, said["description"], schema)


_DIRECTIVE = _object(
    {
        "backend": {"type": "string", "enum": [str(value) for value in Backend]},
        "issuer": {"type": "string", "enum": [str(value) for value in Issuer]},
        "placement": {"type": "string", "enum": [str(value) for value in Placement]},
        "sync": {"type": "string", "enum": [str(value) for value in Sync]},
        "chunk_bytes": {"type": "integer"},
    },
    ["backend", "issuer", "placement", "sync", "chunk_bytes"],
)
_COLLECTIVE = ("name", "reads", "writes", "producer", "consumer")

PROPOSE = _tool(
    "propose",
    {"reason": _TEXT, "directive": _DIRECTIVE, "answer": _TEXT, **EDIT_SCHEMA["properties"]},
    ["reason", "directive"],
)
"""What a proposal is made of: the directive before the code."""

DESCRIBE = _tool(
    "describe",
    {
        "collectives": {
            "type": "array",
            "items": _object(dict.fromkeys(_COLLECTIVE, _TEXT), list(_COLLECTIVE)),
        },
        "directive": _DIRECTIVE,
    },
    ["collectives", "directive"],
)
"""The communication graph of a host-driven kernel."""

PATHS = (DESCRIBE, PROPOSE)
"""What stands in every question of the fast and the slow path, whichever of them it asks for."""

DIAGNOSE = _tool("diagnose", {"diagnosis": _TEXT}, ["diagnosis"])
"""What the judge model answers with."""

NOTES = _tool("write_notes", {"notes": _TEXT}, ["notes"])
"""What the meta model answers with."""


def directive_of(data: Mapping[str, Any]) -> Directive:
    """Reads a directive from the input of a tool.

    Raises:
        RecordError: It has a value that it must not have.
    """
    try:
        return Directive(
            backend=Backend(data["backend"]),
            issuer=Issuer(data["issuer"]),
            placement=Placement(data["placement"]),
            sync=Sync(data["sync"]),
            chunk_bytes=int(data["chunk_bytes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"directive: {error}") from error
