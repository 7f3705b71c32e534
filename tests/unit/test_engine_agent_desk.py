"""Calls of models at the desk: begun, refused, held by a pause, withdrawn."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_model import PRICE, ScriptedModel, rested

from kerneltui.agents.model_port import FailureKind, ModelCall, ModelReply, Role, Turn, Usage
from kerneltui.agents.news import CallBegins, CallEnds, CallGrows, Thought
from kerneltui.agents.thinking import Thinker
from kerneltui.engine.agent_desk import AgentDesk
from kerneltui.model.candidate import AgentName
from kerneltui.model.event import PauseSet, SearchEnded


@pytest.fixture
def desk(folder: Path) -> Iterator[AgentDesk]:
    """A desk over a session that has gone on, in which no call is open."""
    with rested(folder) as recorder:
        yield AgentDesk(recorder, lambda *_: None)


def begins(desk: AgentDesk) -> CallBegins:
    """A call of the slow path that was told to the desk."""
    news = CallBegins(AgentName.SLOW, "slow", "model-x", "diff of c0001", 70_000)
    desk.handle(news)
    return news


def pause(desk: AgentDesk, paused: bool) -> None:
    desk.recorder.record(PauseSet(at=desk.recorder.state.at, paused=paused))


def test_no_call_begins_once_a_budget_is_used_or_the_search_has_ended(desk: AgentDesk) -> None:
    before = desk.recorder.state.position
    desk.over = lambda: "the budget of 3 candidates is used"
    news = begins(desk)
    assert (news.refused, news.kind) == (desk.over(), FailureKind.BUDGET)
    assert news.answered.is_set()
    assert desk.recorder.state.position == before
    assert not desk.refused, "what is used is looked up each time"
    desk.over = lambda: ""
    desk.recorder.record(SearchEnded(at=desk.recorder.state.at, reason="all is tried"))
    news = begins(desk)
    assert (news.refused, news.kind) == ("the search has ended: all is tried", FailureKind.STOPPED)
    assert desk.recorder.state.position == before + 1


def test_while_paused_no_call_begins_and_none_is_asked_again(desk: AgentDesk) -> None:
    running = begins(desk)
    pause(desk, True)
    held, grows = begins(desk), CallGrows(AgentName.SLOW, running.number, 140_000)
    desk.handle(grows)
    before = desk.recorder.state.position
    desk.go_on()  # as after another budget: it is still paused
    assert not held.answered.is_set()
    assert not grows.answered.is_set()
    assert desk.recorder.state.position == before
    pause(desk, False)
    desk.go_on()
    assert held.again
    assert held.answered.is_set()
    assert not held.number, "it is asked anew, since the model may be another one now"
    assert grows.answered.is_set()
    assert desk.recorder.state.calls[str(running.number)].reserved_micro_usd == 140_000


def test_a_call_that_ends_while_it_waits_to_be_asked_again_does_not_grow(desk: AgentDesk) -> None:
    running = begins(desk)
    pause(desk, True)
    desk.handle(CallGrows(AgentName.SLOW, running.number, 140_000))
    end = CallEnds(AgentName.SLOW, running.number, "stopped", "model-x", Usage(), 0, 1)
    desk.handle(end)
    pause(desk, False)
    before = desk.recorder.state.position
    desk.go_on()
    assert desk.recorder.state.position == before


def thinking(inbox: queue.SimpleQueue[Any], model: ScriptedModel) -> Thinker:
    """A thinker that has told that it wants to ask, and waits."""
    thinker = Thinker(AgentName.SLOW, model, inbox.put)
    call = ModelCall(Role.SLOW, (), [Turn("user", "?")], purpose="diff of c0001")
    thinker.start("c0001", lambda talk: talk.ask(call) and None)
    return thinker


def told(inbox: queue.SimpleQueue[Any]) -> list[Any]:
    """All that a thought tells, to its end."""
    news = [inbox.get(timeout=20)]
    while not isinstance(news[-1], Thought):
        news.append(inbox.get(timeout=20))
    return news


@pytest.mark.parametrize("paused", [False, True])
def test_a_call_that_is_withdrawn_before_it_was_made_holds_no_money(
    desk: AgentDesk, paused: bool
) -> None:
    state, model = desk.recorder.state, ScriptedModel([{}])
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    spent = state.spent()
    pause(desk, paused)
    thinker = thinking(inbox, model)
    thinker.interrupt()
    for news in told(inbox):  # the engine was busy until the thought had ended
        desk.handle(news)
    pause(desk, False)
    desk.go_on()
    assert not model.asked
    assert all(call.outcome for call in state.calls.values())
    assert (state.spent().micro_usd, state.spent().reserved) == (spent.micro_usd, 0)
    granted = [call for call in state.calls.values() if call.purpose == "diff of c0001"]
    assert [(call.outcome, call.attempts) for call in granted] == [("stopped", 0)] * (not paused)
    assert not thinker.busy


def test_after_a_pause_the_model_of_now_is_asked(desk: AgentDesk) -> None:
    model = ScriptedModel([{}])
    model.quote = lambda call: (model.models(call.role)[0], PRICE)  # type: ignore[method-assign]
    model.ask = lambda call, hear, stop: ModelReply(  # type: ignore[method-assign]
        "", (), "", Usage(1), 1
    )
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    pause(desk, True)
    thinking(inbox, model)
    desk.handle(inbox.get(timeout=20))
    model.set_model(Role.SLOW, "model-y")
    pause(desk, False)
    desk.go_on()
    desk.handle(inbox.get(timeout=20))
    for news in told(inbox):
        desk.handle(news)
    assert [c.model for c in list(desk.recorder.state.calls.values())[-1:]] == ["model-y"]
