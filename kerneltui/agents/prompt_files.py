"""The prompts: files in `prompts/`, with `$name` for what is filled in."""

from __future__ import annotations

from importlib.resources import files
from string import Template

__all__ = ["prompt"]


def prompt(name: str, **fields: object) -> str:
    """Returns the text of a prompt file with its fields filled in.

    Raises:
        KeyError: The file has a field that was not given.
    """
    text = files("kerneltui.agents").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8")
    return Template(text).substitute({key: str(value) for key, value in fields.items()}).strip()
