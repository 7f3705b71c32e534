"""The tuner: one loop in the engine's main thread that owns the session.

Commands, updates of the running evaluation and signals arrive in one inbox and are handled one after
the other, so nothing here needs a lock. Whatever takes time runs in the executor's thread.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kerneltui.agents.agent_config import AHEAD
from kerneltui.agents.model_port import ModelPort
from kerneltui.agents.port import Agent, Proposal
from kerneltui.engine import decisions, results
from kerneltui.engine.accept_rule import apply_rule
from kerneltui.engine.agent_desk import NEWS
from kerneltui.engine.ahead import WaitingKernels
from kerneltui.engine.commands import Request, handle_command
from kerneltui.engine.errors import Refused
from kerneltui.engine.executor import (
    CalibrationDone,
    CalibrationSays,
    EvaluationDone,
    Executor,
    ExecutorFailed,
    Job,
    ProfileDone,
    ProfileJob,
    Reported,
)
from kerneltui.engine.faults import FaultsInARow
from kerneltui.engine.gpu_strip import GpuStrip
from kerneltui.engine.machine_notices import machine_says
from kerneltui.engine.profiling import profile_done
from kerneltui.engine.proposing import Again, Ended, Proposing
from kerneltui.engine.recorder import Recorder, now_ns
from kerneltui.engine.waiting import Waiting
from kerneltui.evaluation.outcome import Built, Step, Update, Verified
from kerneltui.model.candidate import CandidateState, Failure, Phase
from kerneltui.model.command import Accept, First, Progress
from kerneltui.model.event import (
    CandidateFailed,
    EvaluationInterrupted,
    EvaluationStarted,
    SearchEnded,
)
from kerneltui.model.kernel import Kernel
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.model.reading import GpuReading
from kerneltui.targets.notices import Notice

__all__ = ["Options", "Stop", "Tuner"]

MOST_ATTEMPTS = 3
IDLE_EXIT_S = 30 * 60.0
LOOSE_OBJECTS = 2000


@dataclass(frozen=True, slots=True)
class Options:
    """How this engine runs, beside what the session itself says.

    Attributes:
        undecided: How many candidates may wait for the human before the search waits; None: any.
        ahead: How many proposals of an agent may wait, made while evaluations run; None: what
            `agents.toml` says.
        patience_s: How long the search waits if all that could propose are models whose server wants them
            to be left alone; for longer it ends.
        leave_when_done: Ends the engine when the search has ended (for `tune`).
        idle_exit_s: Leaves after so many seconds without clients and without work.
    """

    undecided: int | None = 8
    ahead: int | None = None
    patience_s: float = 60.0
    leave_when_done: bool = False
    idle_exit_s: float = IDLE_EXIT_S


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the loop."""

    reason: str


def _inbox() -> queue.SimpleQueue[Any]:
    return queue.SimpleQueue()


@dataclass(slots=True)
class Tuner:
    """The engine's loop over one session."""

    recorder: Recorder
    executor: Executor | None
    agents: Sequence[Agent]
    options: Options
    progress: Callable[[Progress], None]
    clients: Callable[[], int]
    kernel_file: str
    model: ModelPort | None = None
    inbox: queue.SimpleQueue[Any] = field(default_factory=_inbox)
    failure: Exception | None = None
    _waiting: Waiting = field(default_factory=Waiting)
    _calibrating: bool = False
    _calibrated: bool = False
    _stopped: str = ""
    _busy_at: float = field(default_factory=time.monotonic)
    _proposing: Proposing = field(init=False)
    _strip: GpuStrip = field(init=False)
    _faults: FaultsInARow = field(init=False)
    _ahead: WaitingKernels = field(init=False)

    def __post_init__(self) -> None:
        self._strip = GpuStrip(self._readings, self.progress, self.clients)
        end = self._end if self.options.leave_when_done else None
        self._faults = FaultsInARow(self.recorder, end)
        self._proposing = Proposing(
            recorder=self.recorder,
            agents=self.agents,
            kernel_file=self.kernel_file,
            undecided=self.options.undecided,
            ahead=AHEAD if self.options.ahead is None else self.options.ahead,
            say=self.say,
            queued=lambda: self._waiting.candidates,
            patience_s=self.options.patience_s,
        )
        self._ahead = WaitingKernels(self.kernel, self._proposing.worth)

    def run(self) -> str:
        """Runs until stopped and returns the reason."""
        self._recover()
        while not self._stopped:
            self._advance()
            self._strip.tell()
            try:
                item = self.inbox.get(timeout=1.0)
            except queue.Empty:
                self._look_idle()
                continue
            self._busy_at = time.monotonic()
            self._handle(item)
        return self._stopped

    def want(self, candidate: str, *, rebench: bool, first: bool = False) -> None:
        """Queues a candidate for evaluation."""
        self._waiting.add(candidate, rebench=rebench, first=first)

    def add(self, proposal: Proposal, *, first: bool = False) -> str:
        """Records a proposal and queues it for evaluation; returns its id."""
        candidate, worth_it = self._proposing.add(proposal)
        if worth_it:
            self.want(candidate, rebench=False, first=first)
        return candidate

    def kernel(self, candidate: str) -> Kernel:
        """Parses the kernel of a candidate."""
        return self._proposing.kernel(candidate)

    def interrupt(self, first: First) -> tuple[str, str]:
        """Ends the running evaluation, or thoughts of agents where those come first or nothing is running.

        Returns:
            What is ended, in a line, and the evaluation that goes on, if one does.

        Raises:
            Refused: Nothing is running.
        """
        running = self.executor.running if self.executor is not None else None
        kind = "profile" if isinstance(running, ProfileJob) else "evaluation"
        what = f"the {kind} of {running.candidate}" if running is not None else ""
        both = running is not None and first is not First.THOUGHTS
        cut: list[str] = []
        if running is None or first is not First.EVALUATION:
            cut = self._proposing.interrupt(unheard=both)
        if cut:
            return f"interrupting what {' and '.join(cut)}", what
        if self.executor is None or running is None:
            raise Refused("no evaluation is running, and no agent thinks")
        self.executor.evaluator.interrupt()
        return f"interrupting {what}", ""

    @property
    def busy(self) -> bool:
        """Whether something is being evaluated, calibrated or profiled."""
        running = self.executor is not None and self.executor.running is not None
        return running or self.calibrating

    @property
    def calibrating(self) -> bool:
        """Whether the calibration runs."""
        return self._calibrating

    def stop(self, reason: str) -> None:
        """Makes the loop end."""
        self._stopped = reason

    def go_on(self) -> None:
        """Lets calls be asked for again that were refused or held; budget and pause may be others now."""
        self._proposing.desk.go_on()

    def close(self) -> None:
        """Ends the agents, and keeps what was paid for: costs of calls that are cut, proposals that wait."""
        self._proposing.close(self.inbox)

    # -- what arrives

    def _handle(self, item: object) -> None:
        match item:
            case Request():
                handle_command(self, item)
            case Reported():
                self._reported(item.job.candidate, item.update)
            case CalibrationSays():
                self.say("calibration", "", item.text)
            case CalibrationDone():
                self._calibration(item)
            case EvaluationDone():
                self._evaluated(item)
            case ProfileDone():
                if self.executor is not None:
                    self.executor.running = None
                profile_done(self, item)
            case ExecutorFailed():
                self._fault(item)
            case Stop():
                self._stopped = item.reason
            case Notice():
                machine_says(self, item)
            case _ if isinstance(item, NEWS):
                self._proposing.desk.handle(item)
            case _:
                raise TypeError(f"the inbox does not know {type(item).__name__}")

    def _reported(self, candidate: str, update: Update) -> None:
        match update:
            case Built() | Verified():
                results.record_stage(self.recorder, candidate, update)
            case Step():
                kind = "round" if update.total else "job"
                self.say(kind, candidate, update.text, update.done, update.total)

    def _readings(self, oldest_s: float) -> tuple[GpuReading, ...]:
        return self.executor.evaluator.readings(oldest_s) if self.executor else ()

    def say(self, kind: str, about: str, text: str, done: int = 0, total: int = 0) -> None:
        """Broadcasts progress."""
        self.progress(Progress(kind, about, text, done, total, now_ns()))

    def _calibration(self, item: CalibrationDone) -> None:
        self._calibrating, self._calibrated = False, True
        results.record_calibration(
            self.recorder,
            item.calibration,
            self.executor.evaluator.environment() if self.executor else {},
        )

    def _evaluated(self, item: EvaluationDone) -> None:
        assert self.executor is not None
        self.executor.running = None
        recorder, candidate = self.recorder, item.job.candidate
        measured = results.record_outcome(recorder, candidate, item.outcome)
        self._faults.evaluated(candidate)
        if not measured:
            return
        if recorder.state.state_of(candidate) is CandidateState.STALE:
            self._waiting.add_if_worth(recorder.state, candidate)
        if apply_rule(recorder, candidate):
            self.incumbent_changed()

    def accepted(self, command: Accept) -> None:
        """Accepts, and has what was measured against the old main measured again."""
        decisions.accept(self.recorder, command)
        self.incumbent_changed()

    def incumbent_changed(self) -> None:
        """Queues the stale candidates that may still be better than the new incumbent."""
        self._waiting.add_stale(self.recorder.state)

    def _fault(self, item: ExecutorFailed) -> None:
        session = self.recorder.session
        session.write_log("engine-fault.log", item.detail.encode())
        if self.executor is not None:
            self.executor.running = None
        if self._calibrating:
            self._calibrating = False
            self.failure = item.error
            self.recorder.record(SearchEnded(at=now_ns(), reason=str(item.error)))
            self._stopped = str(item.error)
            return
        results.record_fault(self.recorder, item.candidate, item.error)
        self._faults.evaluated(item.candidate)

    # -- what is done next

    def _advance(self) -> None:
        if self.executor is None or self._calibrating:
            return
        if self._calibrated:
            self._think()
        if self.executor.running is not None:
            wanted = self._ahead.wanted(self._waiting.candidates, self._proposing.waiting)
            self.executor.evaluator.build_ahead(wanted)
            return
        state = self.recorder.state
        if not self._calibrated:
            self._calibrating = True
            self.executor.calibrate(self.kernel(state.incumbent))
            return
        while not self._waiting:
            if not self._propose():
                return
        self._evaluate(*self._waiting.next())

    def _evaluate(self, candidate: str, rebench: bool) -> None:
        assert self.executor is not None
        state = self.recorder.state
        known = state.candidates[candidate]
        rebench = rebench and known.measurement is not None
        if known.attempt >= MOST_ATTEMPTS and known.phase is Phase.INTERRUPTED:
            reason = f"interrupted {known.attempt} times; not run again by itself"
            failure = Failure(Stage.VERIFY, FailureKind.CRASH, reason)
            self.recorder.record(CandidateFailed(at=now_ns(), id=candidate, failure=failure))
            return
        self.recorder.record(
            EvaluationStarted(
                at=now_ns(),
                id=candidate,
                attempt=known.attempt + 1,
                against=state.incumbent,
                rebench=rebench,
            )
        )
        self.executor.submit(
            Job(
                candidate,
                self.kernel(candidate),
                self.kernel(state.incumbent),
                state.incumbent,
                rebench,
            )
        )

    def _propose(self) -> bool:
        """Records the next proposal; False if there is none now."""
        if not self.agents and not self.options.leave_when_done:
            return False
        found = self._proposing.next()
        if isinstance(found, Ended):
            self._end(found.reason)
            return False
        if found is None:
            return False
        if isinstance(found, Again):
            self.want(found.candidate, rebench=False)
            return True
        self.add(found)
        return True

    def _think(self) -> None:
        """Lets agents think while an evaluation runs."""
        assert self.executor is not None
        self._proposing.think(len(self._waiting) + (self.executor.running is not None))

    def _end(self, reason: str) -> None:
        self.recorder.record(SearchEnded(at=now_ns(), reason=reason))
        self._proposing.interrupt()  # nothing would come of what is still being paid for
        if self.options.leave_when_done:
            self._stopped = reason

    # -- beginning and end

    def _recover(self) -> None:
        """Marks evaluations that had begun as interrupted and queues what has no result."""
        self._proposing.desk.recover()
        state = self.recorder.state
        for identifier, candidate in list(state.candidates.items()):
            if candidate.phase in (Phase.BUILDING, Phase.CHECKING, Phase.MEASURING):
                self.recorder.record(EvaluationInterrupted(at=now_ns(), id=identifier))
            waiting = state.candidates[identifier].phase in (Phase.PROPOSED, Phase.INTERRUPTED)
            if waiting and identifier != state.base:
                self.want(identifier, rebench=False)
        self._waiting.add_stale(state)

    def _look_idle(self) -> None:
        if self.busy or self.clients():
            self._busy_at = time.monotonic()
            return
        session = self.recorder.session
        if session.loose_count() > LOOSE_OBJECTS:
            session.pack(lambda: not self.inbox.empty())
        if time.monotonic() - self._busy_at > self.options.idle_exit_s:
            self._stopped = "idle"
