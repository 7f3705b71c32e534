"""The tools that agents' models are given: strict schemas for proposals, descriptions, diagnoses, notes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerneltui.agents.edits.tool_input import EDIT_SCHEMA
from kerneltui.agents.model_port import Tool
from kerneltui.model.directive import Backend, Directive, Issuer, Placement, Sync
from kerneltui.model.errors import RecordError

__all__ = ["DESCRIBE", "DIAGNOSE", "NOTES", "PROPOSE", "directive_of"]

_TEXT = {"type": "string"}


def _object(properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
    }


_DIRECTIVE = _object(
    {
        "backend": {"type": "string", "enum": [str(value) for value in Backend]},
        "issuer": {"type": "string", "enum": [str(value) for value in Issuer]},
        "placement": {"type": "string", "enum": [str(value) for value in Placement]},
        "sync": {"type": "string", "enum": [str(value) for value in Sync]},
        "chunk_bytes": {"type": "integer", "description": "0 for the whole shard"},
    },
    ["backend", "issuer", "placement", "sync", "chunk_bytes"],
)

PROPOSE = Tool(
    "propose",
    "Proposes a new version of the kernel.",
    _object(
        {
            "reason": {
                "type": "string",
                "description": "One line of at most 100 characters: what changes, and why it helps.",
            },
            "directive": _DIRECTIVE,
            "answer": {
                "type": "string",
                "description": "To the human's messages, if there were any; else empty.",
            },
            **EDIT_SCHEMA["properties"],
        },
        ["reason", "directive"],
    ),
)
"""What a proposal is made of: the directive before the code."""

DESCRIBE = Tool(
    "describe",
    "Describes how a kernel communicates.",
    _object(
        {
            "collectives": {
                "type": "array",
                "items": _object(
                    {
                        "name": _TEXT,
                        "reads": _TEXT,
                        "writes": _TEXT,
                        "producer": {"type": "string", "description": "what makes its input"},
                        "consumer": {"type": "string", "description": "what uses its result"},
                    },
                    ["name", "reads", "writes", "producer", "consumer"],
                ),
            },
            "directive": _DIRECTIVE,
        },
        ["collectives", "directive"],
    ),
)
"""The communication graph of a host-driven kernel."""

DIAGNOSE = Tool(
    "diagnose",
    "Says what is wrong with a kernel; no code.",
    _object({"diagnosis": _TEXT}, ["diagnosis"]),
)
"""What the judge model answers with."""

NOTES = Tool("write_notes", "Writes the lab notes anew.", _object({"notes": _TEXT}, ["notes"]))
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
