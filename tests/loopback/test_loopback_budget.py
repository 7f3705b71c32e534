"""Money: no call goes over the budget, whatever is retried or under way."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace

import pytest

from kerneltui.agents.agent_config import RoleModel
from kerneltui.agents.model_port import (
    FailureKind,
    ModelFailure,
    Usage,
)
from loopback.bench import (
    ANSWER,
    CALL,
    bench,
)
from loopback.script import Step

pytestmark = pytest.mark.alone


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
        first.join(60)
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
