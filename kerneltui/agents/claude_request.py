"""A question in the words of the Messages API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kerneltui.agents.agent_config import RoleModel, Thinking
from kerneltui.agents.model_port import Block, ModelCall, Tool, Turn
from kerneltui.agents.tool_schema import wire_schema

__all__ = ["MOST_BREAKPOINTS", "estimated_tokens", "request_of", "with_note"]

MOST_BREAKPOINTS = 4
"""Ends of cached context in one request, by the API."""
_CHARACTERS_A_TOKEN = 3
_MARK = {"type": "ephemeral"}


def request_of(call: ModelCall, model: RoleModel) -> dict[str, Any]:
    """The parameters of a streamed request.

    Raises:
        ValueError: The question is empty, or does not end with the user's turn.
    """
    messages = _messages(call.turns)
    request: dict[str, Any] = {
        "model": model.model,
        "max_tokens": model.max_tokens,
        "messages": messages,
        "stream": True,
    }
    system = _system(call.system, cache=model.cache)
    if system:
        request["system"] = system
    if call.tools:
        request["tools"] = [_tool(tool, strict=model.strict_tools) for tool in call.in_request]
        request["tool_choice"] = _choice(call, force=model.force_tools)
    if model.effort:
        request["output_config"] = {"effort": model.effort}
    thinking = _thinking(model)
    if thinking:
        request["thinking"] = thinking
    return request


def with_note(request: dict[str, Any], note: str) -> dict[str, Any]:
    """The same request with a note at its end; what stands before it stays as the cache knows it."""
    *before, last = request["messages"]
    content = [*last["content"], {"type": "text", "text": note}]
    return {**request, "messages": [*before, {**last, "content": content}]}


def estimated_tokens(request: dict[str, Any]) -> int:
    """Tokens of the prompt, on the high side: code and other languages take more than prose."""
    return -(-_size(request) // _CHARACTERS_A_TOKEN)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, dict):
        return sum(len(str(key)) + 4 + _size(inner) for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return sum(_size(inner) for inner in value)
    return 4


def _system(blocks: Sequence[Block], *, cache: bool) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    ends: list[int] = []
    for block in blocks:
        if block.text.strip():
            made.append({"type": "text", "text": block.text})
        if block.cached and made and ends[-1:] != [len(made) - 1]:
            ends.append(len(made) - 1)
    if cache:
        # The longest stretch saves most; those at the front are shared by most calls.
        kept = ends if len(ends) <= MOST_BREAKPOINTS else [*ends[: MOST_BREAKPOINTS - 1], ends[-1]]
        for index in kept:
            made[index]["cache_control"] = dict(_MARK)
    return made


def _messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for turn in turns:
        if turn.speaker not in ("user", "assistant"):
            raise ValueError(f"'{turn.speaker}' is not a speaker; user and assistant are")
        if not turn.text.strip():
            continue
        # The API refuses an assistant's turn that ends in white space.
        text = turn.text.rstrip() if turn.speaker == "assistant" else turn.text
        made.append({"role": turn.speaker, "content": [{"type": "text", "text": text}]})
    if not made or made[-1]["role"] != "user":
        raise ValueError("the last turn with text is not the user's")
    return made


def _tool(tool: Tool, *, strict: bool) -> dict[str, Any]:
    schema = wire_schema(tool.schema) if strict else dict(tool.schema)
    made: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "input_schema": schema,
    }
    if strict:
        made["strict"] = True
    return made


def _choice(call: ModelCall, *, force: bool) -> dict[str, Any]:
    # One call is one proposal; a second one beside it could only be thrown away.
    one = {"disable_parallel_tool_use": True}
    if not (call.must_use and force):
        return {"type": "auto", **one}
    if len(call.tools) == 1:
        return {"type": "tool", "name": call.tools[0].name, **one}
    return {"type": "any", **one}


def _thinking(model: RoleModel) -> dict[str, Any] | None:
    match model.thinking:
        case Thinking.ADAPTIVE:
            # Some models leave the text out unless it is asked for, and the user wants to see it.
            return {"type": "adaptive", "display": "summarized"}
        case Thinking.BUDGET:
            return {"type": "enabled", "budget_tokens": model.thinking_tokens}
        case Thinking.OFF:
            return {"type": "disabled"}
        case Thinking.DEFAULT:
            return None
