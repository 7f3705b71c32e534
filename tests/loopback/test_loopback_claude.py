"""ClaudeModel through the real SDK and real HTTP against a scripted server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kerneltui.agents.agent_config import AgentConfig, RoleModel, Thinking
from kerneltui.agents.claude import ClaudeModel
from kerneltui.agents.model_port import (
    Block,
    Chunk,
    ChunkKind,
    FailureKind,
    ModelCall,
    ModelFailure,
    ModelReply,
    Role,
    ToolUse,
    Turn,
    Usage,
)
from kerneltui.agents.spend import Spend
from loopback.bench import (
    ANSWER,
    CALL,
    GOOD,
    KEY,
    LIMITS,
    PATCH,
    PROSE,
    SCRIPTS,
    bench,
    price,
)
from loopback.script import Say, Step, read_script
from loopback.server import Loopback

pytestmark = pytest.mark.alone


def test_a_reply_streams_and_is_counted():
    say = (Say("thinking", "The ring waits. " * 4), Say("text", "Chunks of 64 rows."), GOOD)
    usage = {"input": 120, "cache_read": 900, "cache_write": 30, "output": 75}
    with bench(Step("one", usage=usage, say=say)) as it:
        reply = it.ask()
    told = Usage(120, 75, 900, 30)
    tools = (ToolUse("patch", {"reason": "smaller chunks", "chunk": 64}),)
    assert reply == ModelReply(
        "Chunks of 64 rows.", tools, "claude-opus-5-5", told, price(told), attempts=1
    )
    assert it.heard(ChunkKind.THINKING) == "The ring waits. " * 4
    assert it.heard(ChunkKind.TEXT) == "Chunks of 64 rows."
    assert it.heard(ChunkKind.TOOL) == GOOD.text
    assert len(it.chunks) >= 6
    assert it.statuses == []
    view = it.model.spend.view
    assert view.total.usage == told
    assert view.roles[Role.FAST].micro_usd == view.candidates["c0012"].micro_usd == price(told)
    assert view.total.estimated == 0


def test_the_request_says_what_was_meant():
    blocks = [Block(f"block {number}", cached=True) for number in range(6)]
    call = replace(CALL, system=(*blocks, Block("   "), Block("fresh")))
    with bench(ANSWER) as it:
        it.ask(call)
    request = it.server.requests[0]
    assert request.path == "/v1/messages"
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.headers["x-stainless-retry-count"] == "0"
    body = request.body
    marked = [part["text"] for part in body["system"] if "cache_control" in part]
    assert marked == ["block 0", "block 1", "block 2", "block 5"]
    assert [part["text"] for part in body["system"]][-1] == "fresh"
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    [tool] = body["tools"]
    assert tool["strict"] is True
    assert tool["input_schema"]["additionalProperties"] is False
    assert "minimum" not in str(tool)
    assert body["stream"] is True
    assert body["max_tokens"] == 32_000


def test_a_role_is_asked_as_configured():
    role = RoleModel(
        "local-model",
        max_tokens=4_000,
        thinking=Thinking.BUDGET,
        thinking_tokens=2_000,
        effort="low",
        strict_tools=False,
        force_tools=True,
        cache=False,
    )
    with bench(
        ANSWER, replace(ANSWER, name="second"), role=role, environment={"ANTHROPIC_AUTH_TOKEN": KEY}
    ) as it:
        it.ask()
        it.model.set_model(Role.FAST, "other-model")
        assert it.ask().model == "other-model"
    first, second = it.server.requests
    assert first.headers["Authorization"] == f"Bearer {KEY}"
    body = first.body
    assert body["model"] == "local-model"
    assert second.body["model"] == "other-model"
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2_000}
    assert body["output_config"] == {"effort": "low"}
    one = {"disable_parallel_tool_use": True}
    assert body["tool_choice"] == {"type": "tool", "name": "patch", **one}
    assert "strict" not in body["tools"][0]
    assert body["tools"][0]["input_schema"] == PATCH.schema
    assert "cache_control" not in str(body)


def test_a_rough_day_ends_well():
    limits = replace(LIMITS, attempts=6, reasks=2)
    with bench(*read_script(SCRIPTS / "rough_day.toml"), limits=limits) as it:
        reply = it.ask()
    assert reply.tools == (ToolUse("patch", {"reason": "smaller chunks", "chunk": 64}),)
    assert reply.text == "Chunks of 64 rows."
    assert reply.attempts == 7
    names = [request.step for request in it.server.requests]
    assert names == ["burst", "burst", "cut while thinking", "reset while calling", "refusal",
                     "malformed", "answer"]  # fmt: skip
    view = it.model.spend.view
    assert reply.usage == view.total.usage
    assert reply.micro_usd == view.total.micro_usd
    # every attempt that began is in it, the cut ones by what was told and by their length
    assert reply.usage.input == 1000 * 3 + 1050 + 1100
    assert reply.usage.cache_write == 400
    assert reply.usage.cache_read == 4 * 400
    assert view.total.estimated > 0
    assert reply.usage.output == 3 + 30 + 60 + 2 + view.total.estimated
    assert len(it.statuses) == 6
    assert "frontier_llm" in " ".join(it.statuses)


@pytest.mark.parametrize("where", ["before headers", "in the stream", "while waiting", "at once"])
def test_the_end_comes_soon(where):
    steps: Sequence[Step] = {
        "before headers": [Step("mute", delay_ms=300_000)],
        "in the stream": [Step("drip", pace_ms=300, pieces=1, say=(Say("text", "x" * 2_000),))],
        "while waiting": [Step("away", status=429, headers={"retry-after": "0.9"})],
        "at once": [],
    }[where]
    with bench(*steps, patient=True) as it:

        def stop() -> bool:
            match where:
                case "before headers":
                    return bool(it.server.requests)
                case "in the stream":
                    return len(it.chunks) > 3
                case "while waiting":
                    return bool(it.statuses)
                case _:
                    return True

        failure = it.fails(PROSE, stop)  # the script goes on for minutes
    assert failure.kind is FailureKind.STOPPED
    assert failure.attempts == len(steps)
    if where in ("before headers", "in the stream"):
        assert it.server.requests[0].left.wait(30)
        assert failure.usage.input > 0
        assert failure.micro_usd
    else:
        assert failure.usage == Usage()


def test_close_ends_what_is_asked():
    with bench(Step("mute", delay_ms=20_000)) as it:
        found: list[ModelFailure] = []
        thread = threading.Thread(target=lambda: found.append(it.fails()))
        thread.start()
        while not it.server.requests:
            time.sleep(0.005)
        it.model.close()
        thread.join(60)
        assert found[0].kind is FailureKind.STOPPED
        assert it.fails().kind is FailureKind.STOPPED


def test_a_listener_that_fails_leaves_the_meter_right():
    with bench(Step("one", say=(Say("text", "hello"),), usage={"input": 70})) as it:

        def hear(_: Chunk) -> None:
            raise RuntimeError("no ears")

        with pytest.raises(RuntimeError):
            it.model.ask(PROSE, hear, lambda: False)
        view = it.model.spend.view
        assert view.running == 0
        assert view.total.usage.input == 70


def test_two_agents_ask_at_the_same_time():
    steps = [
        Step("fast", expect=["fast please"], pace_ms=3, say=(Say("text", "for the fast " * 20),)),
        Step("slow", expect=["slow please"], pace_ms=3, say=(Say("text", "for the slow " * 20),)),
    ]
    replies: dict[str, ModelReply] = {}

    with bench(*steps) as it:

        def ask(name: str, role: Role) -> None:
            call = ModelCall(role, (), (Turn("user", f"{name} please"),))
            replies[name] = it.model.ask(call, lambda _: None, lambda: False)

        threads = [
            threading.Thread(target=ask, args=args)
            for args in (("fast", Role.FAST), ("slow", Role.SLOW))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert replies["fast"].text == "for the fast " * 20
    assert replies["slow"].text == "for the slow " * 20
    assert set(it.model.spend.view.roles) == {Role.FAST, Role.SLOW}


def test_without_a_key_nothing_is_sent():
    model = ClaudeModel(AgentConfig(), Spend(None), {})
    assert not model.usable
    with pytest.raises(ModelFailure) as caught:
        model.ask(CALL, lambda _: None, lambda: False)
    assert caught.value.kind is FailureKind.REQUEST
    assert "set ANTHROPIC_API_KEY" in caught.value.reason


def test_a_server_of_ones_own_needs_no_key():
    with bench(ANSWER, environment={}) as it:
        it.ask()
    assert it.server.requests[0].headers["Authorization"] == "Bearer none"


def test_the_address_may_come_from_the_environment():
    with Loopback([replace(ANSWER)]) as server:
        environment = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": KEY}
        model = ClaudeModel(AgentConfig(), Spend(None), environment)
        model.ask(CALL, lambda _: None, lambda: False)
        model.close()
    server.check()


def test_no_secret_is_shown(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    for name in ("anthropic", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    try:
        with bench(Step("no", status=401, error={"message": KEY}), replace(ANSWER)) as it:
            failure = it.fails()
            it.ask()
            shown = [
                repr(it.model), repr(it.model.keys), repr(it.model.server()), repr(vars(it.model)),
                repr(failure), str(failure), repr(vars(failure)), repr(it.chunks), caplog.text,
            ]  # fmt: skip
    finally:
        for name in ("anthropic", "httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.NOTSET)
    assert "Request options" in caplog.text
    assert all(KEY not in text for text in shown)
