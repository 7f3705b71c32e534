"""ClaudeModel through the real SDK and real HTTP against a scripted server."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltui.agents.agent_config import AgentConfig, CallLimits, RoleModel, Thinking
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
    Tool,
    ToolUse,
    Turn,
    Usage,
)
from kerneltui.agents.pricing import SHIPPED_PRICES
from kerneltui.agents.retry import Waiting
from kerneltui.agents.spend import Spend
from loopback.script import Say, Step, read_script
from loopback.server import Loopback

KEY = "sk-ant-marker-0123456789-abcdef"
SCRIPTS = Path(__file__).parent / "scripts"
LIMITS = CallLimits(first_wait_ms=4, longest_wait_ms=1_000, attempts=4, reasks=1)
PATCH = Tool(
    "patch",
    "Changes the kernel.",
    {
        "type": "object",
        "properties": {
            "reason": {"type": "string", "minLength": 1},
            "chunk": {"type": "integer", "minimum": 1},
        },
        "required": ["reason", "chunk"],
    },
)
GOOD = Say("tool", '{"reason": "smaller chunks", "chunk": 64}', "patch")
ANSWER = Step("answer", say=(GOOD,))
CALL = ModelCall(
    Role.FAST,
    (Block("contract", cached=True),),
    (Turn("user", "improve c0001"),),
    (PATCH,),
    must_use=True,
    purpose="propose c0012",
)
PROSE = replace(CALL, tools=(), must_use=False)


class Bench:
    """A server, a model that asks it, and all that was heard."""

    def __init__(self, server: Loopback, model: ClaudeModel) -> None:
        self.server = server
        self.model = model
        self.chunks: list[Chunk] = []
        self.slept: list[float] = []

    def ask(self, call: ModelCall = CALL, stop: Callable[[], bool] = lambda: False) -> ModelReply:
        return self.model.ask(call, self.chunks.append, stop)

    def fails(
        self, call: ModelCall = CALL, stop: Callable[[], bool] = lambda: False
    ) -> ModelFailure:
        with pytest.raises(ModelFailure) as caught:
            self.ask(call, stop)
        failure = caught.value
        assert "\n" not in failure.reason
        assert failure.__cause__ is None
        assert failure.__context__ is None
        assert self.model.spend.view.running == 0
        return failure

    def heard(self, kind: ChunkKind) -> str:
        return "".join(chunk.text for chunk in self.chunks if chunk.kind is kind)

    @property
    def statuses(self) -> list[str]:
        return [chunk.text for chunk in self.chunks if chunk.kind is ChunkKind.STATUS]


@contextmanager
def bench(
    *steps: Step,
    limits: CallLimits = LIMITS,
    budget: int | None = None,
    role: RoleModel | None = None,
    environment: dict[str, str] | None = None,
    patient: bool = False,
):
    """Opens both; unless `patient`, waits between attempts are only written down."""
    # a step remembers how often it was taken
    with Loopback([replace(step) for step in steps]) as server:
        roles = dict(AgentConfig().roles)
        if role is not None:
            roles[Role.FAST] = role
        config = AgentConfig(roles=roles, base_url=server.url, limits=limits)
        slept: list[float] = []
        waiting = Waiting(dice=lambda: 0.0) if patient else Waiting(slept.append, lambda: 0.0)
        keys = {"ANTHROPIC_API_KEY": KEY} if environment is None else environment
        model = ClaudeModel(config, Spend(budget), keys, waiting)
        made = Bench(server, model)
        made.slept = slept
        try:
            yield made
        finally:
            model.close()
        server.check()


def price(usage: Usage) -> int:
    return SHIPPED_PRICES["claude-opus-5-5"].cost(usage)


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


@pytest.mark.parametrize(
    ("status", "headers", "slept"),
    [
        (429, {"retry-after": "0.3"}, 0.3),
        (429, {"retry-after-ms": "120"}, 0.12),
        (529, {}, 0.002),
        (500, {}, 0.002),
        (503, {"retry-after": "nonsense"}, 0.002),
        (408, {}, 0.002),
    ],
)
def test_turned_away_it_waits_and_asks_again(status, headers, slept):
    with bench(Step("away", status=status, headers=headers), ANSWER) as it:
        reply = it.ask()
    assert reply.attempts == 2
    assert sum(it.slept) == pytest.approx(slept, abs=1e-6)
    assert str(status) in it.statuses[0]
    assert reply.usage == Usage(100, 20)


def test_waits_double():
    away = Step("away", times=3, status=529)
    with bench(away, ANSWER) as it:
        it.ask()
    assert it.slept == pytest.approx([0.002, 0.004, 0.008])


def test_it_gives_up_in_the_end():
    with bench(Step("away", times=4, status=529, error={"message": "Overloaded"})) as it:
        failure = it.fails()
    assert failure.kind is FailureKind.OVERLOADED
    assert failure.attempts == 4
    assert "given up after 4 attempts" in failure.reason
    assert failure.micro_usd == 0


def test_a_server_that_asks_for_an_hour_is_given_up():
    with bench(Step("away", status=429, headers={"retry-after": "3600"})) as it:
        failure = it.fails()
    assert failure.kind is FailureKind.OVERLOADED
    assert "3600 s" in failure.reason
    assert failure.wait_ms == 3_600_000
    assert it.slept == []


@pytest.mark.parametrize(
    ("status", "named"),
    [
        (400, "scripted"),
        (401, "ANTHROPIC_API_KEY"),
        (403, "may not"),
        (404, "agents.toml"),
        (413, ""),
    ],
)
def test_what_no_retry_can_cure_ends_at_once(status, named):
    echo = {"message": f"scripted: bad key {KEY} and sk-ant-other-99999999\nsecond\x1b[31m line"}
    with bench(Step("no", status=status, error=echo)) as it:
        failure = it.fails()
    assert failure.kind is FailureKind.REQUEST
    assert failure.attempts == 1
    assert named in failure.reason
    assert KEY not in failure.reason
    assert "99999999" not in failure.reason
    assert "\x1b" not in failure.reason


@pytest.mark.parametrize("said", ["model: {}", "The model `{}` does not exist.", "Model not found"])
def test_a_model_that_the_server_does_not_know_is_named_once(said):
    step = Step("no", status=404, error={"message": said.format("claude-nowhere")})
    with bench(step) as it:
        it.model.set_model(Role.FAST, "claude-nowhere")
        failure = it.fails()
    assert failure.kind is FailureKind.UNKNOWN_MODEL
    assert failure.attempts == 1
    assert "no such model claude-nowhere at " in failure.reason
    assert failure.reason.endswith("/model ROLE NAME to change")


@pytest.mark.parametrize("cut", ["before", "close", "reset", "clean"])
def test_a_lost_connection_is_asked_again(cut):
    say = (Say("text", "a reply that breaks off somewhere in the middle"), GOOD)
    usage = {"input": 500, "output": 999}
    with bench(Step("cut", cut=cut, cut_after=5, usage=usage, say=say), ANSWER) as it:
        reply = it.ask()
    assert reply.attempts == 2
    assert reply.text == ""
    if cut == "before":
        assert reply.usage == Usage(100, 20)
    else:
        assert reply.usage.input == 600
        assert 20 < reply.usage.output < 60
        assert it.model.spend.view.total.estimated == reply.usage.output - 21


def test_a_server_that_is_not_there():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    config = AgentConfig(base_url=f"http://127.0.0.1:{port}", limits=replace(LIMITS, attempts=2))
    model = ClaudeModel(config, Spend(None), {"ANTHROPIC_API_KEY": KEY}, Waiting(lambda _: None))
    with pytest.raises(ModelFailure) as caught:
        model.ask(CALL, lambda _: None, lambda: False)
    assert caught.value.kind is FailureKind.CONNECTION
    assert f"127.0.0.1:{port}" in caught.value.reason
    assert caught.value.usage == Usage()
    assert caught.value.micro_usd == 0


def test_an_error_inside_a_stream():
    overloaded = {"type": "overloaded_error", "message": "Overloaded"}
    say = (Say("text", "so far so good"),)
    step = Step("late", cut="error", cut_after=4, error=overloaded, say=say)
    with bench(step, ANSWER) as it:
        reply = it.ask()
    assert reply.attempts == 2
    assert "529 overloaded" in it.statuses[0]
    wrong = {"type": "invalid_request_error", "message": "no"}
    with bench(replace(step, error=wrong)) as it:
        assert it.fails().kind is FailureKind.REQUEST


@pytest.mark.parametrize(
    "raw",
    [
        "<html>a proxy says hello</html>",
        'event: message_start\ndata: {"type": "message_start", "message": {"id": "x"}}\n\n'
        'event: content_block_delta\ndata: {"type": "content_block_delta"}\n\n',
        'event: message_start\ndata: {"type": \n\n',
        'event: message_start\ndata: {"type": "message_start"}\n\n',
    ],
)
def test_a_server_that_speaks_something_else(raw):
    with bench(Step("odd", raw=raw, times=2), limits=replace(LIMITS, attempts=2)) as it:
        failure = it.fails()
    assert failure.kind is FailureKind.CONNECTION


def test_a_refusal_is_asked_again_once_with_a_note():
    refusal = {"category": "cyber", "explanation": "looks like\nmalware"}
    step = Step("no", stop_reason="refusal", refusal=refusal, usage={"output": 2})
    with bench(step, replace(ANSWER, expect=["last reply was a refusal"])) as it:
        assert it.ask().attempts == 2
    with bench(replace(step, times=2)) as it:
        failure = it.fails()
    assert failure.kind is FailureKind.REFUSED
    assert "cyber: looks like malware" in failure.reason
    assert failure.usage == Usage(200, 4)
    assert failure.micro_usd == 2 * price(Usage(100, 2))


def test_a_reply_that_is_cut_at_its_limit():
    step = Step("long", stop_reason="max_tokens", say=(GOOD,), usage={"output": 32_000})
    with bench(step, replace(ANSWER, expect=["cut after 32000 tokens"])) as it:
        assert it.ask().attempts == 2
    with bench(replace(step, times=2)) as it:
        failure = it.fails()
    assert failure.kind is FailureKind.CUT
    assert "max_tokens" in failure.reason
    assert failure.usage.output == 64_000


@pytest.mark.parametrize(
    ("say", "problem"),
    [
        (Say("tool", '{"reason": "x", "chunk": ', "patch"), "not JSON"),
        (Say("tool", '{"reason": "x", "chunk": "64"}', "patch"), "expected integer"),
        (Say("tool", '{"reason": "x"}', "patch"), "'chunk' is missing"),
        (Say("tool", '{"reason": "x", "chunk": 0}', "patch"), "less than 1"),
        (Say("tool", '{"reason": "x", "chunk": 1, "more": 2}', "patch"), "'more' is not known"),
        (Say("tool", '{"reason": "x", "reason": "y", "chunk": 1}', "patch"), "twice"),
        (Say("tool", "[1]", "patch"), "expected object"),
        (Say("tool", "", "patch"), "'reason' is missing"),
        (Say("tool", '{"reason": "\\ud800", "chunk": 1}', "patch"), "surrogate"),
        (Say("tool", '{"reason": "x", "chunk": NaN}', "patch"), "NaN"),
        (Say("tool", "[" * 3000, "patch"), "nested too deeply"),
        (Say("tool", "{}", "shell"), "'shell' is not a tool here; known: patch"),
        (Say("text", "I would change the chunk size."), "patch has to be called"),
    ],
)
def test_a_malformed_call_is_asked_again_once(say, problem):
    step = Step("bad", say=(say,), pieces=500)
    with bench(step, replace(ANSWER, expect=["could not be used"])) as it:
        reply = it.ask()
    assert reply.tools[0].input["chunk"] == 64
    assert reply.usage == Usage(200, 40)
    with bench(replace(step, times=2)) as it:
        failure = it.fails()
    assert failure.kind is FailureKind.MALFORMED
    assert problem in failure.reason
    assert failure.attempts == 2


def test_prose_may_not_be_empty():
    with bench(Step("empty"), Step("words", say=(Say("text", "yes"),))) as it:
        assert it.ask(PROSE).text == "yes"


def test_silence_ends_an_attempt():
    step = Step("mute", delay_ms=5_000, times=2)
    limits = replace(LIMITS, silence_ms=80, attempts=2)
    with bench(step, limits=limits) as it:
        failure = it.fails()
    assert failure.kind is FailureKind.CONNECTION
    # it may have worked all the time, so what went in is counted, as an estimate
    assert failure.usage.input == it.model.spend.view.total.estimated > 100


def test_a_slow_drip_ends_an_attempt():
    step = Step("drip", pace_ms=15, pieces=1, say=(Say("text", "drop " * 200),))
    with bench(step, limits=replace(LIMITS, call_ms=150, attempts=1)) as it:
        failure = it.fails(PROSE)
    assert failure.kind is FailureKind.CONNECTION
    assert "0.15 s" in failure.reason
    assert it.server.requests[0].left.wait(5)
    assert failure.usage.input == 100
    assert failure.usage.output >= 1


@pytest.mark.parametrize("where", ["before headers", "in the stream", "while waiting", "at once"])
def test_the_end_comes_soon(where):
    steps: Sequence[Step] = {
        "before headers": [Step("mute", delay_ms=20_000)],
        "in the stream": [Step("drip", pace_ms=20, pieces=1, say=(Say("text", "x" * 2_000),))],
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

        begin = time.monotonic()
        failure = it.fails(PROSE, stop)
        took = time.monotonic() - begin
    assert failure.kind is FailureKind.STOPPED
    assert failure.attempts == len(steps)
    assert took < 15  # not the twenty and forty seconds of the script
    if where in ("before headers", "in the stream"):
        assert it.server.requests[0].left.wait(5)
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
        thread.join(10)
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


def test_a_call_over_the_budget_is_not_sent():
    with bench(budget=10_000) as it:
        failure = it.fails()
    assert failure.kind is FailureKind.BUDGET
    assert failure.attempts == 0
    assert "$0.01" in failure.reason
    assert it.server.requests == []


def test_calls_in_flight_hold_their_price():
    slow = Step("slow", delay_ms=20_000)
    role = RoleModel("claude-opus-5-5", max_tokens=1_000)
    with bench(slow, budget=35_000, role=role) as it:
        quoted = it.model.quote(CALL)
        assert quoted[0] == "claude-opus-5-5"
        assert 20_000 < (quoted[1] or 0) < 25_000
        done = threading.Event()
        first = threading.Thread(target=lambda: it.fails(stop=done.is_set))
        first.start()
        while not it.server.requests:
            time.sleep(0.005)
        view = it.model.spend.view
        assert (view.running, view.held_micro_usd) == (1, quoted[1])
        with pytest.raises(ModelFailure) as caught:
            it.ask()
        assert caught.value.kind is FailureKind.BUDGET
        assert "held by running calls" in caught.value.reason
        done.set()
        first.join(10)
        assert it.model.spend.view.held_micro_usd == 0


def test_retries_stay_inside_the_budget():
    cut = Step("cut", cut="close", cut_after=3, usage={"input": 3_000}, times=2)
    role = RoleModel("claude-opus-5-5", max_tokens=1_000)
    with bench(cut, budget=45_000, role=role) as it:
        failure = it.fails()
    assert failure.kind is FailureKind.BUDGET
    assert failure.usage.input == 6_000
    assert failure.attempts == 2


def test_the_user_is_told_at_half_and_at_four_fifths():
    step = replace(ANSWER, times=4, usage={"input": 25_000, "output": 1})
    role = RoleModel("claude-opus-5-5", max_tokens=100)
    with bench(step, budget=420_000, role=role) as it:
        for _ in range(4):
            it.ask()
    assert [re.match(r"\d+ %", text)[0] for text in it.statuses] == ["50 %", "80 %"]


def test_a_model_without_a_price():
    with bench(ANSWER, budget=1, role=RoleModel("local-model")) as it:
        assert it.model.quote(CALL) == ("local-model", None)
        reply = it.ask()
    assert reply.micro_usd is None
    view = it.model.spend.view
    assert view.total.text == "price unknown"
    assert view.unknown_models == ("local-model",)
    assert view.total.usage == Usage(100, 20)


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
            thread.join(20)
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
