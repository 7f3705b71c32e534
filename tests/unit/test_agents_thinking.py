"""The thread in which an agent thinks: what it tells, whatever becomes of its calls."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest
from scripted_model import PRICE, ScriptedModel

from kerneltui.agents.model_port import Chunk, FailureKind, ModelCall, ModelFailure, Role, Turn
from kerneltui.agents.news import CallBegins, CallEnds, NoProposal, Thought
from kerneltui.agents.rests import Rests
from kerneltui.agents.thinking import Talk, Thinker
from kerneltui.model.candidate import AgentName

CALL = ModelCall(Role.SLOW, [], [Turn("user", "?")])


class Desk:
    """Grants every call, and keeps what is told."""

    def __init__(self) -> None:
        self.news: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def tell(self, news: Any) -> None:
        if isinstance(news, CallBegins):
            news.number = 1
            news.answered.set()
        self.news.put(news)

    def until(self, kind: type) -> Any:
        while not isinstance(news := self.news.get(timeout=20), kind):
            assert not isinstance(news, Thought), f"it ended without {kind.__name__}"
        return news


def ask(talk: Talk) -> None:
    talk.ask(CALL)


def test_a_model_that_is_to_be_left_alone_is_not_asked_and_nobody_waits() -> None:
    limited = ModelFailure(FailureKind.OVERLOADED, "429", wait_ms=86_400_000)
    desk, model = Desk(), ScriptedModel([limited])
    now = 1_000.0
    rests = Rests(lambda: now)
    thinker = Thinker(AgentName.SLOW, model, desk.tell, rests)
    thinker.start("c0001", ask, "model-x")
    failed = desk.until(NoProposal)
    assert (failed.reason, failed.arm, failed.blameless) == ("overloaded: 429", "model-x", False)
    desk.until(Thought).settled()
    assert not thinker.busy
    assert rests.until("model-x") == now + 86_400

    thinker.start("c0001", ask, "model-x")
    failed = desk.until(NoProposal)
    assert failed.reason.startswith("resting: model-x rests until ")
    assert (failed.calls, failed.arm, failed.blameless) == ((), "", True)
    desk.until(Thought).settled()
    assert len(model.asked) == 1
    now += 86_400
    thinker.start("c0001", ask, "model-x")
    desk.until(Thought)
    assert len(model.asked) == 2


@pytest.mark.parametrize(("price", "cost"), [(PRICE, PRICE), (None, None)])
def test_a_call_has_an_end_whatever_the_model_raises(price: int | None, cost: int | None) -> None:
    class Broken(ScriptedModel):
        def ask(
            self, call: ModelCall, hear: Callable[[Chunk], None], stop: Callable[[], bool]
        ) -> Any:
            raise ValueError("no question")

    desk = Desk()
    thinker = Thinker(AgentName.SLOW, Broken([], price=price), desk.tell)
    thinker.start("c0001", ask)
    ended = desk.until(CallEnds)
    assert (ended.number, ended.outcome, ended.micro_usd) == (1, "lost", cost)
    assert ended.reason == "ValueError: no question"
    assert desk.until(NoProposal).reason == "ValueError: no question"
    desk.until(Thought).settled()
