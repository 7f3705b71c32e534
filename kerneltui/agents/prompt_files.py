"""The prompts: files in `prompts/`, with `$name` for what is filled in."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from string import Template

from kerneltui.agents.fenced import fenced

__all__ = ["phrase", "prompt", "prompt_text"]

_KERNELS = ("source", "other_source")


def prompt_text(file: str) -> str:
    """Returns the text of a file of `prompts/` as it is."""
    return files("kerneltui.agents").joinpath("prompts", file).read_text(encoding="utf-8")


def prompt(name: str, **fields: object) -> str:
    """Returns the text of a prompt file with its fields filled in; kernel text is put between fences.

    Raises:
        KeyError: The file has a field that was not given.
    """
    filled = {
        key: fenced(str(value)) if key in _KERNELS else str(value) for key, value in fields.items()
    }
    return Template(prompt_text(f"{name}.md")).substitute(filled).strip()


def phrase(name: str, **fields: object) -> str:
    """Returns a sentence of `phrases.toml` with its fields filled in.

    Raises:
        KeyError: There is no such sentence, or it has a field that was not given.
    """
    return Template(_phrases()[name]).substitute({key: str(value) for key, value in fields.items()})


@cache
def _phrases() -> dict[str, str]:
    return tomllib.loads(prompt_text("phrases.toml"))
