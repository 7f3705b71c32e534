"""What models are told stands in files of `prompts/`, and not in code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kerneltui.agents import tools
from kerneltui.agents.model_port import Tool
from kerneltui.agents.prompt_files import phrase

AGENTS = Path(__file__).parents[2] / "kerneltui" / "agents"
TOOLS = [tools.PROPOSE, tools.DESCRIBE, tools.DIAGNOSE, tools.NOTES]
SAY = [
    "backends", "context", "directive_rows", "edits/tool_input", "evidence", "gate", "hand_over",
    "inspiration", "measured", "model_fast", "model_notes", "model_slow", "tools", "writing",
]  # fmt: skip
"""Modules that write questions."""
MOST_WORDS = 7
"""Of a label or a heading; what the human or a programmer reads is not looked at."""

_WORD = re.compile("[A-Za-z]{2,}")


def descriptions(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    if "description" in schema:
        yield path, schema["description"]
    for name, inner in schema.get("properties", {}).items():
        yield from descriptions(inner, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from descriptions(schema["items"], f"{path}[]")


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_what_is_said_of_a_tool_is_what_its_file_says(tool: Tool):
    said = tomllib.loads((AGENTS / "prompts" / "tools.toml").read_text())[tool.name]
    assert tool.description == said["description"]
    assert dict(descriptions(tool.schema)) == said.get("fields", {})


def test_a_description_of_a_field_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch):
    wrong = '[diagnose]\ndescription = "Says."\n[diagnose.fields]\ncause = "why"\n'
    monkeypatch.setattr(tools, "prompt_text", lambda file: wrong)
    with pytest.raises(ValueError, match=r"tools\.toml: diagnose has no field cause"):
        tools._tool("diagnose", {"diagnosis": {"type": "string"}}, ["diagnosis"])


def said_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The texts of a module, those with fields in them whole: no documentation, and nothing that is raised.

    What is raised is a line of an error: what is wrong and where, the same for human and model. What a model
    is to do about it is said to it alone, and is no part of that line.
    """
    aside: set[ast.AST] = set()
    for node in ast.walk(tree):
        shown = isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "talk.say", "DefinitionError", "EditFailure", "NothingProposed", "ValueError",
        )  # fmt: skip
        documents = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if shown or documents or isinstance(node, ast.Raise):
            aside.update(ast.walk(node))
        if isinstance(node, ast.FunctionDef) and node.name == "status":
            aside.update(ast.walk(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and node not in aside:
            yield node.lineno, " ".join(map(_text, node.values))
        elif isinstance(node, ast.Constant) and node not in aside:
            yield node.lineno, _text(node)


def _text(node: ast.AST) -> str:
    constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if constant else ""


@pytest.mark.parametrize("name", SAY)
def test_no_sentence_of_a_prompt_is_in_code(name: str):
    tree = ast.parse((AGENTS / f"{name}.py").read_text())
    long = [(line, text) for line, text in said_in(tree) if len(_WORD.findall(text)) > MOST_WORDS]
    assert not long


@pytest.mark.parametrize("name", ["applying", "matching", "reply", "tool_input"])
def test_what_is_wrong_with_an_edit_does_not_say_how_to_answer(name: str):
    """That is in `edits/repair.toml`: only a model answers with edits, and the human reads the line, too."""
    told = re.compile(r";\s*(?:answer|choose|copy|make|rewrite|search|send|to insert|write)\b")
    source = (AGENTS / "edits" / f"{name}.py").read_text()
    assert not [node.value for node in ast.walk(ast.parse(source))
                if isinstance(node, ast.Constant) and told.search(str(node.value))]  # fmt: skip


def test_every_phrase_is_used_and_every_used_one_is_there():
    told = tomllib.loads((AGENTS / "prompts" / "phrases.toml").read_text())
    code = "".join(path.read_text() for path in AGENTS.rglob("*.py"))
    assert all(f'phrase("{name}"' in code or f"phrase('{name}'" in code for name in told)
    assert phrase("several", count=2).startswith("You called `propose` 2 times")
    with pytest.raises(KeyError):
        phrase("several")
