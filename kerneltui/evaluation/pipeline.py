"""The evaluation as the engine uses it: what outlives a candidate, and who is to blame.

`start` and `close` belong to the main thread; everything else to one evaluation thread; `interrupt` may
come from any.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache as cached
from functools import partial
from pathlib import Path
from typing import Any

from kerneltui.evaluation.baseline_kernels import baseline_kernel
from kerneltui.evaluation.bench import SideBySide
from kerneltui.evaluation.bench_plan import BenchPlan
from kerneltui.evaluation.bench_result import ShapeResult
from kerneltui.evaluation.code_record import code_record
from kerneltui.evaluation.judge_client import JudgeFailure
from kerneltui.evaluation.kernel_lint import lint
from kerneltui.evaluation.machine_words import machine_words
from kerneltui.evaluation.outcome import (
    Built,
    CalibrationResult,
    EvaluationError,
    HarnessFault,
    Interrupted,
    KernelFault,
    Outcome,
    Step,
    Update,
    WorkloadRefused,
    fault_of,
)
from kerneltui.evaluation.prefetch import Prefetch
from kerneltui.evaluation.profile import profile
from kerneltui.evaluation.stand import MachineTarget, Stand
from kerneltui.evaluation.timing import LaneFailure, TimingProtocol, WrongOutput
from kerneltui.evaluation.trial import Trial
from kerneltui.evaluation.verify import mismatch
from kerneltui.evaluation.verify_all import verify_all
from kerneltui.evaluation.workload_test import run_workload_test
from kerneltui.evaluation.yardsticks import Yardsticks
from kerneltui.model.candidate import Failure
from kerneltui.model.errors import DefinitionError
from kerneltui.model.kernel import Kernel, parse_kernel
from kerneltui.model.limit import Ceilings
from kerneltui.model.measurement import FailureKind, Measurement, Stage
from kerneltui.model.reading import GpuReading
from kerneltui.model.workload import Workload
from kerneltui.targets.errors import TargetError
from kerneltui.targets.notices import Notice
from kerneltui.targets.port import Build, GroupRole

__all__ = ["Evaluator"]

_MOST_COMPILERS = 8


class Evaluator:
    """Judges and measures kernels of one workload on one target.

    Args:
        workload: What is computed.
        target: Where kernels run; started and closed by this object.
        ceilings: Measured rates of the machine, for a number of ranks.
        cache: Folder for the result of the workload's self-test; may be deleted at any time.
        protocol: Numbers of the timing.
    """

    def __init__(
        self,
        workload: Workload,
        target: MachineTarget,
        *,
        ceilings: Callable[[int], Ceilings],
        cache: Path,
        protocol: TimingProtocol | None = None,
    ) -> None:
        self.workload = workload
        self.stand = Stand(workload, target, protocol or TimingProtocol())
        self.calibration: CalibrationResult | None = None
        self._spec = workload.targets[target.name]
        self._measured: dict[int, Ceilings] = {}
        self._ceilings = cached(partial(self._measure, ceilings))
        self.yardsticks = Yardsticks(self.stand, self._spec, self._ceilings)
        self._cache = cache
        self._launches: dict[str, Mapping[str, Any]] = {}
        self._closed = threading.Event()
        self._unshown = False
        workers = target.spare_cores or min(_MOST_COMPILERS, target.cores)
        self._prefetch = Prefetch(self._build_ahead, workers)
        if target.spare_cores:
            # Elsewhere compilers wait for whoever holds the machine, who would wait for them.
            join = partial(self._prefetch.join, checkpoint=self.stand.checkpoint)
            self.stand.before_build = join

    # Life

    def start(self) -> None:
        """Starts fork server and judge, without waiting. From the main thread."""
        self.stand.start()

    def close(self) -> None:
        """Ends every process that was started."""
        self._closed.set()
        self._prefetch.close()
        self.stand.close()

    def interrupt(self) -> None:
        """Ends the running evaluation now; callable from any thread."""
        self.stand.interrupt()

    def listen(self, hear: Callable[[Notice], None]) -> None:
        """Tells `hear` what the user must know of the machine at once; it is called from any thread."""
        self.stand.target.notices.listen(hear)

    def machine(self) -> Mapping[str, str]:
        """Describes the machine as far as nothing has to be started or measured for it."""
        return machine_words(self.stand.target)

    def environment(self) -> Mapping[str, str]:
        """Describes the machine that measures; with its rates, once they are known."""
        load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
        return {
            **self.machine(),
            "torch": str(self.stand.judge.hello.get("torch", "")),
            "sandbox": self.stand.target.sandbox_level,
            "load": load,
            **{k: v for rates in self._measured.values() for k, v in rates.words().items()},
        }

    def _measure(self, ceilings: Callable[[int], Ceilings], ranks: int) -> Ceilings:
        self._measured[ranks] = ceilings(ranks)
        return self._measured[ranks]

    def code_record(self, kernel: Kernel) -> Mapping[str, Any] | None:
        """What the compiler made of a kernel, as plain data; None on a target whose compiler says nothing.

        With its launches, if `verify` has run it.

        Raises:
            KernelFault: It does not build.
        """
        build = self.stand.build(kernel)
        code = code_record(self.stand.target.toolchain, build)
        return None if code is None else {**code, **self._launches.get(build.key, {})}

    def profile(self, kernel: Kernel) -> Mapping[str, Any]:
        """Counts a verified kernel with the profiler of the GPU; see `profile.profile`."""
        self.stand.begin()
        with self.stand.devices():
            return profile(self.stand, kernel, self._cache)

    def readings(self, oldest_s: float) -> tuple[GpuReading, ...]:
        """What the GPUs do now, or did so long ago at most; callable from any thread."""
        return self.stand.target.readings(oldest_s)

    # The workload

    def self_test(self) -> tuple[str, ...]:
        """Tests the workload itself; see `workload_test`.

        Returns:
            Names of the wrong answers that were refused.

        Raises:
            WorkloadRefused: The workload cannot tell right from wrong.
        """
        try:
            self._wait_for_judge()
        except JudgeFailure as error:
            raise WorkloadRefused(f"{self.workload.name} does not open: {error}") from error
        with self.stand.devices():
            return run_workload_test(self.stand, self._spec, self._cache)

    # Calibration

    def calibrate(self, incumbent: Kernel, say: Callable[[str], None]) -> CalibrationResult:
        """Tests the workload, then measures baselines, bounds and noise.

        Raises:
            WorkloadRefused: See `self_test`.
            EvaluationError: The incumbent or every baseline fails, or the end was asked for.
        """
        self.stand.begin()
        self._prefetch.ask([incumbent, *self._known_kernels()])
        with self.stand.devices():
            say("testing the workload")
            mutants = self.self_test()
            result = self.yardsticks.calibrate(incumbent, say)
            self._unshown = False
        record = {**result.record, "environment": dict(self.environment())}
        self.calibration = replace(result, mutants=mutants, record=record)
        return self.calibration

    def build_ahead(self, kernels: Iterable[Kernel]) -> None:
        """Begins to build kernels that are going to be evaluated, beside what is timed, and returns at once.

        Where the cores themselves are timed nothing is done. From any thread.
        """
        if self.stand.target.spare_cores:
            self._prefetch.ask(kernels)

    def _build_ahead(self, kernel: Kernel) -> None:
        beside = bool(self.stand.target.spare_cores)
        self.stand.build_ahead(kernel, self._closed.is_set, beside=beside)

    def _known_kernels(self) -> Iterator[Kernel]:
        """Baselines that are files, then the library, as far as they can be read."""
        folder = self.workload.kernels
        for name in self._spec.baselines:
            with suppress(DefinitionError, OSError):
                kernel = baseline_kernel(folder, name)
                if kernel is not None:
                    yield kernel
        for file in self._spec.library:
            with suppress(DefinitionError, OSError):
                yield parse_kernel((folder / file).read_text(encoding="utf-8"), file)

    # A candidate

    def evaluate(
        self,
        kernel: Kernel,
        incumbent: Kernel,
        *,
        against: str,
        report: Callable[[Update], None],
        rebench: bool = False,
    ) -> Outcome:
        """Runs all stages on a candidate; never raises for what a candidate does.

        Args:
            kernel: The candidate.
            incumbent: What it is measured against.
            against: The incumbent's id.
            report: Told of stages and rounds.
            rebench: True for a candidate that passed verification before: the small shapes are left out.

        Raises:
            Interrupted: `interrupt` was called.
            HarnessFault: The evaluation has not been calibrated.
        """
        trial = self._trial(kernel, incumbent, against, report, rebench)
        with self.stand.devices():
            return self._judged(trial, incumbent, report)

    def _judged(self, trial: Trial, incumbent: Kernel, report: Callable[[Update], None]) -> Outcome:
        try:
            self._ready()
            self.stand.surroundings.begin()
            self.yardsticks.set_incumbent(
                incumbent, lambda text: report(Step(Stage.BENCHMARK, f"new incumbent: {text}"))
            )
            trial.delta = self.yardsticks.delta
            return trial.run()
        except KernelFault as fault:
            return trial.failed_by(fault)
        except (WrongOutput, LaneFailure) as error:
            return self._blame(trial, error)
        except Interrupted:
            raise
        except (EvaluationError, TargetError, JudgeFailure) as error:
            self.stand.checkpoint()  # what was killed on request is no fault
            failure = Failure(trial.stage, FailureKind.HARNESS_FAULT, str(error))
            return trial.failed(failure)
        finally:
            trial.close()

    def compare(self, kernel: Kernel, incumbent: Kernel) -> Measurement:
        """Times a trusted kernel against the incumbent; see `Trial.compare`."""
        trial = self._trial(kernel, incumbent, "incumbent", lambda update: None, True)
        with self.stand.devices():
            try:
                self._ready()
                self.yardsticks.set_incumbent(incumbent)
                trial.delta = self.yardsticks.delta
                return trial.compare()
            finally:
                trial.close()

    def _trial(
        self,
        kernel: Kernel,
        incumbent: Kernel,
        against: str,
        report: Callable[[Update], None],
        rebench: bool,
    ) -> Trial:
        if self.calibration is None:
            raise HarnessFault("calibrate comes before the first evaluation")
        self.stand.begin()
        return Trial(
            self.stand,
            self.yardsticks.by_shape,
            self.yardsticks.delta,
            kernel=kernel,
            incumbent=incumbent,
            against=against,
            report=report,
            verified_before=rebench,
        )

    # Side by side

    def bench(
        self,
        kernels: Mapping[str, Kernel],
        plan: BenchPlan,
        say: Callable[[str], None],
        found: Callable[[ShapeResult], None] = lambda result: None,
    ) -> tuple[ShapeResult, ...]:
        """Measures baselines and kernels side by side, interleaved; needs no calibration.

        Args:
            kernels: Name to kernel.
            plan: On which shapes, in which modes.
            say: Told what goes on, in one line.
            found: Told of every shape when it is done.

        Raises:
            HarnessFault: The judge or the machine failed.
            Interrupted: The end was asked for.
        """
        self.stand.begin()
        self._wait_for_judge()
        return SideBySide(self.stand, self._spec, self._ceilings, kernels, say).run(plan, found)

    def ceilings(self, ranks: int) -> Ceilings:
        """Measured rates of the machine with so many ranks."""
        return self._ceilings(ranks)

    def verify(self, kernel: Kernel, report: Callable[[Update], None]) -> str:
        """Verifies a kernel on all shapes, without timing; returns what was checked, in one line.

        Raises:
            KernelFault: The kernel is refused.
            Interrupted: The end was asked for.
        """
        self.stand.begin()
        self._wait_for_judge()
        lint(kernel, self.stand.target.name)
        build = self.stand.build(kernel)
        report(Built(round(build.seconds * 1e9), build.cached, build.log))
        with self.stand.devices():
            return verify_all(
                self.stand, kernel, build, report, partial(self._keep_launches, build)
            )

    def _keep_launches(self, build: Build, told: Mapping[str, Any]) -> None:
        known = self._launches.get(build.key, {})
        more = [*known.get("launches", ()), *told["launches"]]
        self._launches[build.key] = {**known, **told, "launches": more}

    def _wait_for_judge(self) -> None:
        self._unshown = self.stand.ready() or self._unshown

    def _ready(self) -> None:
        """Waits for the judge. A new one is shown all memory again, and what has ended is opened again."""
        self._wait_for_judge()
        if self._unshown:
            self.yardsticks.show_again()
        self._unshown = False  # not before: who was not shown would stay unknown
        self.yardsticks.renew_dead()

    def _blame(self, trial: Trial, error: WrongOutput | LaneFailure) -> Outcome:
        """A lane failed or was wrong in a timed call: the candidate's, or one to open again."""
        if isinstance(error, LaneFailure):
            fault = fault_of(error.error, trial.stage)
        else:
            fault = mismatch(trial.stage, error.report, error.how)
        if isinstance(fault, Interrupted):
            raise fault
        if trial.owns(error.lane) and isinstance(fault, KernelFault):
            return trial.failed_by(fault)
        self.stand.checkpoint()
        who = "the incumbent" if error.lane.group.role is GroupRole.INCUMBENT else "a baseline"
        self.yardsticks.renew(error.lane)
        text = f"{who} failed in a timed call and was started again: {error}"
        return trial.failed(Failure(trial.stage, FailureKind.HARNESS_FAULT, text))
