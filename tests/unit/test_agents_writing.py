"""From a model's answer to a proposal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kerneltui.agents.model_port import ModelCall, ModelReply, Role, ToolUse, Usage
from kerneltui.agents.thinking import NothingProposed
from kerneltui.agents.writing import Request, write
from kerneltui.model.kernel import parse_kernel

FOLDER = Path(__file__).parents[2] / "kernels" / "gemm_allgather"
PARENT = parse_kernel((FOLDER / "host.cpp").read_text(), "host.cpp")
REQUEST = Request(
    Role.SLOW, (), "go", "diff", PARENT, False, {"M": 512, "N": 512, "K": 512, "RANKS": 2}
)


class Talk:
    """Gives replies in turn, the last one again and again."""

    def __init__(self, *replies: list[dict[str, Any]], text: str = "") -> None:
        self.replies = list(replies)
        self.text = text
        self.asked: list[ModelCall] = []

    def ask(self, call: ModelCall) -> ModelReply:
        self.asked.append(call)
        found = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        tools = tuple(ToolUse("propose", answer) for answer in found)
        return ModelReply(self.text, tools, "model-x", Usage(), 0)


def proposed(code: str) -> dict[str, Any]:
    declared = PARENT.directive(REQUEST.dimensions)
    region = PARENT.regions[0]
    old = PARENT.source.split("\n")[region.first - 1]
    return {
        "reason": code,
        "directive": {
            "backend": declared.backend,
            "issuer": declared.issuer,
            "placement": declared.placement,
            "sync": declared.sync,
            "chunk_bytes": declared.chunk_bytes,
        },
        "edits": [{"search": old, "replace": f"{old}\n    {code}"}],
    }


def test_two_proposals_in_one_reply_are_asked_for_as_one():
    talk = Talk([proposed("int a;"), proposed("int b;")], [proposed("int a;")])
    written = write(talk, REQUEST)  # type: ignore[arg-type]
    assert "int a;" in written.source and len(talk.asked) == 2
    turns = talk.asked[1].turns
    assert "int a;" in turns[-2].text and "int b;" in turns[-2].text
    assert turns[-1].text.startswith("You called `propose` 2 times, and none was taken")


def test_a_model_that_never_makes_one_proposal_makes_none():
    with pytest.raises(NothingProposed, match="2 times"):
        write(Talk([proposed("int a;"), proposed("int b;")]), REQUEST)  # type: ignore[arg-type]


def test_edits_may_stand_as_blocks_in_the_text_beside_the_call():
    answer = proposed("int a;")
    (edit,) = answer.pop("edits")
    text = f"<<<<<<< SEARCH\n{edit['search']}\n=======\n{edit['replace']}\n>>>>>>> REPLACE\n"
    written = write(Talk([answer], text=text), REQUEST)  # type: ignore[arg-type]
    assert f"{edit['search']}\n    int a;" in written.source


def test_edits_of_the_call_count_when_the_text_has_some_too():
    answer = proposed("int a;")
    (edit,) = answer["edits"]
    text = f"<<<<<<< SEARCH\n{edit['search']}\n=======\nint b;\n>>>>>>> REPLACE\n"
    written = write(Talk([answer], text=text), REQUEST)  # type: ignore[arg-type]
    assert "int a;" in written.source and "int b;" not in written.source


def test_a_call_and_a_text_without_any_edit_come_to_nothing():
    answer = proposed("int a;")
    del answer["edits"]
    with pytest.raises(NothingProposed, match="no edit"):
        write(Talk([answer], text="Nothing to change."), REQUEST)  # type: ignore[arg-type]
