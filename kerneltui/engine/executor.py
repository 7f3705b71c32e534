"""Runs evaluations in a thread of their own, one at a time, and posts what happens to the tuner."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kerneltui.evaluation.outcome import CalibrationResult, Interrupted, Outcome, Update
from kerneltui.model.errors import UserError
from kerneltui.model.kernel import Kernel
from kerneltui.model.reading import GpuReading
from kerneltui.targets.notices import Notice

__all__ = [
    "CalibrationDone",
    "CalibrationSays",
    "EvaluationDone",
    "EvaluatorPort",
    "Executor",
    "ExecutorFailed",
    "Job",
    "ProfileDone",
    "ProfileJob",
    "Reported",
]


class EvaluatorPort(Protocol):
    """What the engine needs of the evaluation. `start` is called from the main thread."""

    def start(self) -> None:
        """Starts the judge and the fork server."""
        ...

    def close(self) -> None:
        """Ends every process that was started."""
        ...

    def listen(self, hear: Callable[[Notice], None]) -> None:
        """Tells `hear`, from any thread, what the user must know of the machine at once."""
        ...

    def calibrate(self, incumbent: Kernel, say: Callable[[str], None]) -> CalibrationResult:
        """Tests the workload, then measures noise, bounds and baselines."""
        ...

    def evaluate(
        self,
        kernel: Kernel,
        incumbent: Kernel,
        *,
        against: str,
        report: Callable[[Update], None],
        rebench: bool = False,
    ) -> Outcome:
        """Runs all stages; never raises for what a candidate does.

        Raises:
            Interrupted: `interrupt` was called.
        """
        ...

    def build_ahead(self, kernels: Iterable[Kernel]) -> None:
        """Begins to build kernels that are going to be evaluated, where that disturbs nothing."""
        ...

    def interrupt(self) -> None:
        """Ends the running evaluation; callable from another thread."""
        ...

    def environment(self) -> Mapping[str, str]:
        """Describes the machine."""
        ...

    def profile(self, kernel: Kernel) -> Mapping[str, Any]:
        """Counts a verified kernel with the profiler of the GPU.

        Raises:
            UserError: It cannot be done; the text says why.
        """
        ...

    def readings(self, oldest_s: float) -> tuple[GpuReading, ...]:
        """What the GPUs do now, or did so long ago at most; callable from another thread."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """One evaluation to run."""

    candidate: str
    kernel: Kernel
    incumbent: Kernel
    against: str
    rebench: bool = False


@dataclass(frozen=True, slots=True)
class ProfileJob:
    """A kernel for the profiler, and what to do with the answer: ok, and counters or a reason."""

    candidate: str
    kernel: Kernel
    reply: Callable[[bool, Any], None]


@dataclass(frozen=True, slots=True)
class ProfileDone:
    """The profiler is done; without counters there is a reason."""

    job: ProfileJob
    counters: Mapping[str, Any] | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CalibrationDone:
    """The calibration is finished."""

    calibration: CalibrationResult


@dataclass(frozen=True, slots=True)
class CalibrationSays:
    """The calibration goes on; one line."""

    text: str


@dataclass(frozen=True, slots=True)
class Reported:
    """An evaluation goes on."""

    job: Job
    update: Update


@dataclass(frozen=True, slots=True)
class EvaluationDone:
    """An evaluation is finished; without an outcome if it was ended on request."""

    job: Job
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class ExecutorFailed:
    """The harness itself failed, not a candidate; the text is one line, detail the traceback."""

    candidate: str
    error: Exception
    detail: str


@dataclass(slots=True)
class Executor:
    """A thread that takes jobs and posts what comes of them."""

    evaluator: EvaluatorPort
    post: Callable[[object], None]
    _jobs: queue.SimpleQueue[Job | ProfileJob | Kernel | None] = field(
        default_factory=lambda: queue.SimpleQueue[Job | ProfileJob | Kernel | None]()
    )
    _thread: threading.Thread | None = None
    running: Job | ProfileJob | None = None

    def start(self) -> None:
        """Starts the thread, and passes on what the machine has to tell."""
        self.evaluator.listen(self.post)
        self._thread = threading.Thread(target=self._work, name="evaluations", daemon=True)
        self._thread.start()

    def calibrate(self, incumbent: Kernel) -> None:
        """Queues the calibration."""
        self._jobs.put(incumbent)

    def submit(self, job: Job) -> None:
        """Queues an evaluation; the caller submits only when nothing is running."""
        self.running = job
        self._jobs.put(job)

    def profile(self, job: ProfileJob) -> None:
        """Queues a profile; the caller asks only when nothing is running."""
        self.running = job
        self._jobs.put(job)

    def stop(self, timeout: float = 10.0) -> None:
        """Interrupts what runs and ends the thread."""
        self._jobs.put(None)
        self.evaluator.interrupt()
        if self._thread is not None:
            self._thread.join(timeout)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            name = job.candidate if isinstance(job, Job) else ""
            try:
                if isinstance(job, ProfileJob):
                    self.post(self._profile(job))
                elif isinstance(job, Job):
                    self.post(EvaluationDone(job, self._evaluate(job)))
                else:
                    self.post(CalibrationDone(self.evaluator.calibrate(job, self._say)))
            except Exception as error:
                # Whatever the harness did wrong must reach the user and leave the engine alive.
                self.post(ExecutorFailed(name, error, traceback.format_exc()))

    def _evaluate(self, job: Job) -> Outcome | None:
        try:
            return self.evaluator.evaluate(
                job.kernel,
                job.incumbent,
                against=job.against,
                report=lambda update: self.post(Reported(job, update)),
                rebench=job.rebench,
            )
        except Interrupted:
            return None

    def _profile(self, job: ProfileJob) -> ProfileDone:
        try:
            return ProfileDone(job, self.evaluator.profile(job.kernel))
        except UserError as error:
            return ProfileDone(job, None, str(error))
        except Exception as error:  # somebody waits for the answer
            return ProfileDone(job, None, f"the profile failed: {type(error).__name__}: {error}")

    def _say(self, text: str) -> None:
        self.post(CalibrationSays(text))
