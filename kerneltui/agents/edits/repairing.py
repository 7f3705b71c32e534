"""What a model is told after a reply that could not be applied."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

from kerneltui.agents.edits.failure import EditFailure

__all__ = ["repair_note"]

_LIMIT = 3000


def repair_note(failure: EditFailure, *, limit: int = _LIMIT) -> str:
    """Returns the text of the next turn: what was wrong, the nearest lines, how to answer.

    Args:
        failure: What happened.
        limit: Most characters; the shown lines are cut first.
    """
    texts, kinds = _texts()
    head = f"{texts['opening']}\n{failure.kind}: {failure.reason}"
    tail = f"{kinds.get(failure.kind.value, texts['otherwise'])}\n{texts['closing']}"
    room = limit - len(head) - len(tail) - len(texts["lines"]) - 5
    shown = _cut(failure.detail, room) if failure.detail else ""
    middle = [f"{texts['lines']}\n{shown}"] if shown else []
    return "\n\n".join([head, *middle, tail])[:limit]


def _cut(text: str, room: int) -> str:
    """Keeps whole lines from the front."""
    if len(text) <= room:
        return text
    kept: list[str] = []
    for line in text.split("\n"):
        room -= len(line) + 1
        if room < 2:
            break
        kept.append(line)
    return "\n".join([*kept, "…"]) if kept else ""


@cache
def _texts() -> tuple[dict[str, str], dict[str, str]]:
    file = resources.files("kerneltui.agents.edits").joinpath("repair.toml")
    texts = tomllib.loads(file.read_text(encoding="utf-8"))
    return texts, texts.pop("kinds")
