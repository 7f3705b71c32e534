"""Reads edits from the input of a tool call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from kerneltui.agents.edits.copying import unfenced
from kerneltui.agents.edits.edit import Edit, Reply, Rewrite, lines_of
from kerneltui.agents.edits.failure import EditFailure, EditKind

__all__ = ["EDIT_SCHEMA", "MOST_CHARACTERS", "read_tool_input"]

MOST_CHARACTERS = 2_000_000
"""More text than this is no reply."""

_MOST_EDITS = 200

EDIT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "file": {"type": "string"},
        "region": {"type": "string"},
        "edits": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"search": {"type": "string"}, "replace": {"type": "string"}},
                "required": ["search", "replace"],
                "additionalProperties": False,
            },
        },
        "rewrite": {"type": "string"},
    },
    "required": [],
    "additionalProperties": False,
}
"""The JSON schema of the tool's input. With `rewrite` and no `region` the whole file is rewritten."""


def read_tool_input(data: object) -> Reply:
    """Reads edits from the input of a tool call, of the form of `EDIT_SCHEMA`.

    Raises:
        EditFailure: The form is another one, or there is no edit.
    """
    if not isinstance(data, Mapping):
        raise EditFailure(EditKind.MALFORMED, "the input of the tool is no object")
    fields = cast("Mapping[object, object]", data)
    file = _text(fields, "file", "the input")
    region = _text(fields, "region", "the input")
    edits = fields.get("edits")
    found: list[Edit | Rewrite] = []
    if edits is not None:
        if not isinstance(edits, list):
            raise EditFailure(EditKind.MALFORMED, "'edits' is no list")
        items = cast("list[object]", edits)
        if len(items) > _MOST_EDITS:
            raise EditFailure(EditKind.TOO_LONG, f"{len(items)} edits")
        found += [_edit(item, number, file, region) for number, item in enumerate(items, start=1)]
    rewrite = _text(fields, "rewrite", "the input")
    if rewrite.strip():
        if found:
            raise EditFailure(EditKind.MALFORMED, "both edits and a rewrite")
        found.append(Rewrite(_lines(rewrite), file, region))
    if not found:
        raise EditFailure(EditKind.EMPTY, "the input of the tool has no edit")
    return Reply(tuple(found))


def _edit(item: object, number: int, file: str, region: str) -> Edit:
    where = f"edit {number}"
    if not isinstance(item, Mapping):
        raise EditFailure(EditKind.MALFORMED, f"{where} is no object", number=number)
    fields = cast("Mapping[object, object]", item)
    for key in ("search", "replace"):
        if key not in fields:
            raise EditFailure(EditKind.MALFORMED, f"{where} has no '{key}'", number=number)
    return Edit(
        _lines(_text(fields, "search", where)),
        _lines(_text(fields, "replace", where)),
        _text(fields, "file", where) or file,
        _text(fields, "region", where) or region,
    )


def _text(fields: Mapping[object, object], key: str, where: str) -> str:
    value = fields.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise EditFailure(EditKind.MALFORMED, f"'{key}' of {where} is no text")
    if len(value) > MOST_CHARACTERS:
        raise EditFailure(EditKind.TOO_LONG, f"'{key}' of {where} has {len(value)} characters")
    return value


def _lines(text: str) -> tuple[str, ...]:
    return unfenced(lines_of(text.replace("\r\n", "\n")))
