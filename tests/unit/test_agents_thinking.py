"""The thread in which an agent thinks: what it tells, whatever becomes of its calls."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest
from test_engine_agents import PRICE, ScriptedModel

from kerneltui.agents.model_port import Chunk, FailureKind, ModelCall, ModelFailure, Role, Turn
from kerneltui.agents.news import CallBegins, CallEnds, Heard, NoProposal, Thought
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


def test_no_thought_begins_before_the_server_wants_to_be_asked_again() -> None:
    limited = ModelFailure(FailureKind.OVERLOADED, "429", wait_ms=10**9)
    desk, model = Desk(), ScriptedModel([limited])
    thinker = Thinker(AgentName.SLOW, model, desk.tell)
    thinker.start("c0001", ask)
    assert desk.until(NoProposal).reason == "overloaded: 429"
    heard = desk.until(Heard)
    assert heard.chunk.text == "waits 1e+06 s, as the server asks"
    assert thinker.busy
    thinker.interrupt()
    desk.until(Thought).settled()
    assert not thinker.busy


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
