"""Requests in the words of the Messages API, and what the SDK raises, sorted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.agents.agent_config import RoleModel, Thinking
from kerneltui.agents.claude_errors import asked_wait_ms, trouble_of
from kerneltui.agents.claude_request import (
    MOST_BREAKPOINTS,
    estimated_tokens,
    request_of,
    with_note,
)
from kerneltui.agents.model_port import Block, FailureKind, ModelCall, Role, Turn
from kerneltui.agents.secrets import Keys
from kerneltui.agents.tools import DESCRIBE, PATHS, PROPOSE

MODEL = RoleModel("m", max_tokens=100)
TEXTS = st.sampled_from(["", "  ", "a", "longer text"])
BLOCKS = st.lists(st.builds(Block, TEXTS, st.booleans()), max_size=12)


def call(*turns: Turn, system: tuple[Block, ...] = ()) -> ModelCall:
    return ModelCall(Role.FAST, system, turns)


@given(BLOCKS)
def test_cached_context_ends_where_it_should(blocks: list[Block]):
    request = request_of(call(Turn("user", "go"), system=tuple(blocks)), MODEL)
    system = request.get("system", [])
    assert [part["text"] for part in system] == [b.text for b in blocks if b.text.strip()]
    marks = [index for index, part in enumerate(system) if "cache_control" in part]
    assert len(marks) <= MOST_BREAKPOINTS
    # the longest stretch that stays the same is always marked
    last = max((index for index, block in enumerate(blocks) if block.cached), default=None)
    if last is not None:
        sent = sum(bool(block.text.strip()) for block in blocks[: last + 1])
        assert marks[-1:] == ([sent - 1] if sent else [])


@pytest.mark.parametrize("force", [False, True])
def test_questions_of_both_paths_begin_alike_whatever_tool_they_ask_for(force: bool):
    model = replace(MODEL, force_tools=force)
    system = (Block("the contract", cached=True),)
    requests = [
        request_of(ModelCall(role, system, [Turn("user", "go")], [tool], True, shown=PATHS), model)
        for role, tool in ((Role.FAST, DESCRIBE), (Role.FAST, PROPOSE), (Role.SLOW, PROPOSE))
    ]
    assert len({json.dumps([sent["tools"], sent["system"]]) for sent in requests}) == 1
    assert [tool["name"] for tool in requests[0]["tools"]] == ["describe", "propose"]
    chosen = [sent["tool_choice"].get("name", "") for sent in requests]
    assert chosen == (["describe", "propose", "propose"] if force else ["", "", ""])


def test_a_note_leaves_what_is_before_it():
    request = request_of(
        call(Turn("user", "go"), Turn("assistant", "gone \n"), Turn("user", "on")), MODEL
    )
    noted = with_note(request, "again")
    assert noted["messages"][:-1] == request["messages"][:-1]
    assert [part["text"] for part in noted["messages"][-1]["content"]] == ["on", "again"]
    assert [part["text"] for part in request["messages"][-1]["content"]] == ["on"]
    assert request["messages"][1]["content"][0]["text"] == "gone"


@pytest.mark.parametrize(
    "turns", [(), (Turn("assistant", "x"),), (Turn("user", " "),), (Turn("dog", "x"),)]
)
def test_a_question_that_is_none(turns):
    with pytest.raises(ValueError, match="user"):
        request_of(call(*turns), MODEL)


@pytest.mark.parametrize(
    ("thinking", "said"),
    [
        (Thinking.DEFAULT, None),
        (Thinking.OFF, {"type": "disabled"}),
        (Thinking.BUDGET, {"type": "enabled", "budget_tokens": 16_000}),
        (Thinking.ADAPTIVE, {"type": "adaptive", "display": "summarized"}),
    ],
)
def test_thinking_is_asked_for_as_configured(thinking, said):
    request = request_of(call(Turn("user", "go")), RoleModel("m", thinking=thinking))
    assert request.get("thinking") == said


@given(st.text(min_size=1))
def test_an_estimate_is_on_the_high_side(text: str):
    request = request_of(call(Turn("user", f"x{text}")), MODEL)
    assert estimated_tokens(request) > len(text.encode("utf-8", "replace")) / 4


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2_000),
        ({"retry-after": "0.25"}, 250),
        ({"retry-after-ms": "15", "retry-after": "2"}, 15),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e300"}, 86_400_000),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, 86_400_000),
        ({"retry-after-ms": "999999999999"}, 86_400_000),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:30 GMT"}, 20_000),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:01 GMT"}, 0),
    ],
)
def test_what_a_server_asks_to_wait(headers, wait):
    assert asked_wait_ms(headers, now=10.0) == wait


def test_a_mistake_of_ours_is_no_reason_to_ask_again():
    trouble = trouble_of(TypeError("no such\nargument sk-ant-0123456789"), Keys(), "host")
    assert trouble.kind is FailureKind.REQUEST
    assert not trouble.again
    assert trouble.line == "host: the request could not be made: TypeError: no such argument …"
