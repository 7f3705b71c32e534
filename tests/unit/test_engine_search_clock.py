"""Which time counts: an engine runs, and its search goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_model import rested

from kerneltui.engine.recorder import Recorder
from kerneltui.engine.search_clock import SearchClock, sittings
from kerneltui.model.event import (
    AcceptRule,
    AgentMessage,
    BudgetSet,
    PauseSet,
    SearchEnded,
    SessionOpened,
    SessionResumed,
)

MINUTE = 60 * 10**9


@pytest.fixture
def recorder(folder: Path) -> Iterator[Recorder]:
    """Of a session that has gone on."""
    with rested(folder) as recorder:
        yield recorder


def opened(at: int) -> SessionOpened:
    return SessionOpened(
        at=at, session="s", workload="w", title="", target="cpu", ranks=2, seed=1, agents="claude",
        rule=AcceptRule.NONE, base="c0000", base_sha="0", seed_file="host.cpp", shapes=(),
        workload_hash="",
    )  # fmt: skip


def test_time_counts_while_an_engine_runs_and_the_search_goes_on() -> None:
    events = [
        opened(at=0),
        PauseSet(at=3 * MINUTE, paused=True),
        AgentMessage(at=50 * MINUTE, agent="engine", text="still paused"),
        PauseSet(at=60 * MINUTE, paused=False),
        SearchEnded(at=62 * MINUTE, reason="all is tried"),
        BudgetSet(at=90 * MINUTE, candidates=9, time_ns=None),
        AgentMessage(at=94 * MINUTE, agent="engine", text="the last word"),
        SessionResumed(at=900 * MINUTE),
        AgentMessage(at=901 * MINUTE, agent="engine", text="the clock is set back"),
        AgentMessage(at=800 * MINUTE, agent="engine", text="now"),
        AgentMessage(at=802 * MINUTE, agent="engine", text="later"),
    ]
    assert sittings(events) == [9 * MINUTE, 3 * MINUTE]


def test_the_clock_stands_while_the_search_is_paused_or_over(recorder: Recorder) -> None:
    now = [0]
    clock = SearchClock(recorder, lambda: now[0])
    before = clock.used_ns()
    now[0] = MINUTE
    recorder.record(PauseSet(at=recorder.state.at, paused=True))
    clock.look()
    now[0] = 30 * MINUTE
    clock.look()
    recorder.record(PauseSet(at=recorder.state.at, paused=False))
    clock.look()
    now[0] = 31 * MINUTE
    recorder.record(SearchEnded(at=recorder.state.at, reason="all is tried"))
    clock.look()
    now[0] = 90 * MINUTE
    assert clock.used_ns() - before == 2 * MINUTE
