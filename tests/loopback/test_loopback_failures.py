"""Servers that turn away, break off, say nonsense or nothing."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from kerneltui.agents.agent_config import AgentConfig
from kerneltui.agents.claude import ClaudeModel
from kerneltui.agents.model_port import (
    FailureKind,
    ModelFailure,
    Role,
    Usage,
)
from kerneltui.agents.retry import Waiting
from kerneltui.agents.spend import Spend
from loopback.bench import (
    ANSWER,
    CALL,
    GOOD,
    KEY,
    LIMITS,
    PROSE,
    bench,
    price,
)
from loopback.script import Say, Step

pytestmark = pytest.mark.alone


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
    step = Step("mute", delay_ms=20_000, times=2)
    limits = replace(LIMITS, silence_ms=1_000, attempts=2)
    with bench(step, limits=limits) as it:
        failure = it.fails()
    assert failure.kind is FailureKind.CONNECTION
    # it may have worked all the time, so what went in is counted, as an estimate
    assert failure.usage.input == it.model.spend.view.total.estimated > 100


def test_a_slow_drip_ends_an_attempt():
    step = Step("drip", pace_ms=15, pieces=1, say=(Say("text", "drop " * 200),))
    with bench(step, limits=replace(LIMITS, call_ms=5_000, attempts=1)) as it:
        failure = it.fails(PROSE)
    assert failure.kind is FailureKind.CONNECTION
    assert "5 s" in failure.reason
    assert it.server.requests[0].left.wait(30)
    assert failure.usage.input == 100
    assert failure.usage.output >= 1
