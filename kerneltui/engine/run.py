"""Puts an engine together over a session, runs it, and takes it apart again.

Everything here happens in the main thread: the fork server and the judge die with the thread that
started them, so it must be the one that lives as long as the process.
"""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from kerneltui.agents.agent_config import AgentConfig, load_agent_config
from kerneltui.agents.model_port import ModelPort
from kerneltui.agents.port import Agent
from kerneltui.agents.rests import Rests
from kerneltui.config import config_folder
from kerneltui.engine.executor import EvaluatorPort, Executor
from kerneltui.engine.machine_notices import last_notices
from kerneltui.engine.opening import (
    SNAPSHOT_EVERY,
    Start,
    create_session,
    kernel_path,
    load_state,
    resume_session,
    save_snapshot,
    workload_on,
)
from kerneltui.engine.place import About, Place, write_about
from kerneltui.engine.recorder import Recorder, now_ns
from kerneltui.engine.server import Server
from kerneltui.engine.staff import MakeModel, Staff
from kerneltui.engine.tuner import Options, Stop, Tuner
from kerneltui.model.agent_event import CallRecord
from kerneltui.model.command import Progress
from kerneltui.model.event import (
    AgentMessage,
    BudgetSet,
    Event,
    ModelChosen,
    PauseSet,
    RuleSet,
)
from kerneltui.model.state import State
from kerneltui.model.workload import TargetSpec, Workload
from kerneltui.session.repository import Session

__all__ = ["EngineSetup", "MakeEvaluator", "run_engine"]

MakeEvaluator = Callable[[Workload, TargetSpec], EvaluatorPort]


def _nothing() -> Mapping[str, str]:
    return {}


def _ignore_event(event: Event, state: State) -> None:
    del event, state


def _ignore_progress(progress: Progress) -> None:
    del progress


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What an engine is started with.

    `start` is used when the session does not exist yet; for an existing one its rule and budget are
    set again if `renew` says so. `take_signals` turns SIGINT and SIGTERM into a clean stop. `make_model`
    makes the language model of agents that have one: Claude, if it is None. `models_alone` leaves out the
    search that proposes while a model thinks.
    """

    place: Place
    start: Start
    options: Options
    make_evaluator: MakeEvaluator
    renew: bool = False
    take_signals: bool = True
    on_event: Callable[[Event, State], None] = _ignore_event
    on_progress: Callable[[Progress], None] = _ignore_progress
    environment: Mapping[str, str] = field(default_factory=_nothing)
    make_model: MakeModel | None = None
    models_alone: bool = False


def _claude(calls: Iterable[CallRecord]) -> ModelPort:
    """The model of `agents.toml`; its package is loaded when it is first asked."""
    from kerneltui.agents.claude import ClaudeModel
    from kerneltui.agents.spend import Spend, facts_of

    config = load_agent_config(config_folder())
    return ClaudeModel(config, Spend.of(facts_of(calls), None, config.token_limit))


def _config(mode: str) -> AgentConfig:
    """What `agents.toml` says where models are asked."""
    return load_agent_config(config_folder()) if mode == "claude" else AgentConfig()


@dataclass(slots=True)
class _Stops:
    """Turns SIGINT and SIGTERM into a clean stop; a second SIGINT is Python's own again."""

    post: Callable[[object], None]
    reason: str = ""

    def install(self) -> None:
        signal.signal(signal.SIGINT, self._take)
        signal.signal(signal.SIGTERM, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.reason = "interrupted"
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.post(Stop("interrupted" if number == signal.SIGINT else "terminated"))


def run_engine(setup: EngineSetup) -> tuple[State, str, Exception | None]:
    """Runs an engine until its search ends or it is stopped.

    Returns:
        The last state, the reason for the end, and what kept the calibration from working, if anything.

    Raises:
        EngineError: The session or the workload cannot be opened.
        SessionError: The repository cannot be opened or written.
        DefinitionError: The workload's definition is wrong.
    """
    place = setup.place
    evaluator = None
    if place.exists:
        session = Session.open(place.session, writable=True)
    else:
        assert place.workload is not None
        workload, spec = workload_on(place.workload, setup.start.target)
        # A target that cannot run here leaves no session behind.
        evaluator = setup.make_evaluator(workload, spec)
        session = create_session(place.session, workload, setup.start)
    with session:
        return _Engine(setup, session, load_state(session), evaluator).run()


class _Engine:
    """The parts of a running engine."""

    def __init__(
        self,
        setup: EngineSetup,
        session: Session,
        state: State,
        evaluator: EvaluatorPort | None,
    ) -> None:
        self._setup = setup
        self._session = session
        seed_file = state.candidates[state.base].seed_file
        path = kernel_path(state.workload, seed_file)
        self._recorder = Recorder(session, state, path, self._heard)
        self._fresh = not setup.place.exists
        workload, spec = None, None
        if setup.place.workload is not None:
            workload, spec = workload_on(setup.place.workload, state.target)
        if evaluator is None and workload is not None and spec is not None:
            evaluator = setup.make_evaluator(workload, spec)
        self._evaluator = evaluator
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        agents: list[Agent] = []
        options = setup.options
        self._model: ModelPort | None = None
        self._rests: Rests | None = None
        if workload is not None and spec is not None and setup.place.workload is not None:
            mode = setup.start.agents or state.agents
            config = _config(mode)
            options = replace(options, patience_s=config.limits.longest_wait_ms / 1000)
            if options.ahead is None:
                options = replace(options, ahead=config.ahead)
            staff = Staff(
                recorder=self._recorder,
                workload=workload,
                spec=spec,
                folder=setup.place.workload,
                candidates=setup.start.candidates,
                tell=inbox.put,
                make_model=setup.make_model or _claude,
                models_alone=setup.models_alone,
                islands=config.islands,
            )
            agents = staff.agents(mode)
            self._model, self._rests = staff.model, staff.rests
        self._tuner = Tuner(
            recorder=self._recorder,
            executor=None,
            agents=agents,
            options=options,
            progress=self._progressed,
            clients=lambda: self._server.clients(),
            kernel_file=Path(path).name,
            model=self._model,
            inbox=inbox,
        )
        if evaluator is not None:
            self._tuner.executor = Executor(evaluator, self._tuner.inbox.put)
        self._server = Server(setup.place.socket, self._tuner.inbox.put)
        self._recorder.guard = self._server.publishing
        if place_workload := setup.place.workload:
            self._about = About(str(place_workload), state.target, state.agents)
            write_about(setup.place.session, self._about)

    def run(self) -> tuple[State, str, Exception | None]:
        """Runs and takes apart, whatever happens."""
        if self._setup.take_signals:
            _Stops(self._tuner.inbox.put).install()
        reason = "failed"
        executor = self._tuner.executor
        try:
            self._server.start(lambda: self._recorder.state)
            if self._evaluator is not None:
                self._evaluator.start()
            self._greet()
            if executor is not None:
                executor.start()
            reason = self._tuner.run()
        finally:
            try:
                self._tuner.close()
            finally:
                if executor is not None:
                    executor.stop()
                if self._evaluator is not None:
                    self._evaluator.close()
                last_notices(self._tuner)
                self._leave(reason)
        return self._recorder.state, reason, self._tuner.failure

    def _greet(self) -> None:
        recorder, setup = self._recorder, self._setup
        environment = self._evaluator.environment() if self._evaluator else setup.environment
        notices = [] if self._fresh else resume_session(recorder, environment)
        if self._fresh:
            notices += self._session.notices
            self._set_money()
        for text in notices:
            recorder.record(AgentMessage(at=now_ns(), agent="engine", text=text))
        if setup.renew and not self._fresh:
            start = setup.start
            recorder.record(RuleSet(at=now_ns(), rule=start.rule))
            recorder.record(
                BudgetSet(
                    at=now_ns(),
                    candidates=start.candidates,
                    time_ns=start.time_ns,
                    micro_usd=recorder.state.budget_micro_usd,
                )
            )

    def _set_money(self) -> None:
        """A session with a language model has the budget of the configuration."""
        start = self._setup.start
        if start.agents != "claude":
            return
        budget = start.micro_usd
        if budget is None:
            budget = load_agent_config(config_folder()).budget_micro_usd
        self._recorder.record(
            BudgetSet(
                at=now_ns(),
                candidates=start.candidates,
                time_ns=start.time_ns,
                micro_usd=budget,
            )
        )

    def _leave(self, reason: str) -> None:
        state = self._recorder.state
        save_snapshot(self._session, state)
        self._session.refresh_worktree()
        if self._setup.place.workload is not None:
            about = About(
                str(self._setup.place.workload), state.target, state.agents, bool(state.ended)
            )
            write_about(self._setup.place.session, about)
        self._server.close(reason)

    def _heard(self, position: int, event: Event, body: bytes) -> None:
        self._server.publish(position, event, body)
        self._setup.on_event(event, self._recorder.state)
        if isinstance(event, BudgetSet) and self._model is not None:
            self._model.set_budget(event.micro_usd)
        self._wake(event)
        if position % SNAPSHOT_EVERY == 0:
            save_snapshot(self._session, self._recorder.state)

    def _wake(self, event: Event) -> None:
        """Lets models be asked at once where the human wants to go on; what ends other rests ends these."""
        if self._rests is None:
            return
        match event:
            case BudgetSet() | PauseSet(paused=False):
                self._rests.end()
            case ModelChosen():
                self._rests.end(event.model.split())
            case _:
                pass

    def _progressed(self, progress: Progress) -> None:
        self._server.progress(progress)
        self._setup.on_progress(progress)
