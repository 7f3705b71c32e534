"""One candidate on its way through the stages; `pipeline` owns what outlives it."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kerneltui.evaluation.benchmark import (
    Benchmark,
    Yardstick,
    build_measurement,
    enqueueing_remarks,
    quarantine_reason,
)
from kerneltui.evaluation.code_record import code_record, loud_findings
from kerneltui.evaluation.gpu_use import add_gpu_use
from kerneltui.evaluation.kernel_lint import lint
from kerneltui.evaluation.lane import Lane
from kerneltui.evaluation.launch_shapes import launches_on, main_shapes
from kerneltui.evaluation.launches import explain_fault
from kerneltui.evaluation.outcome import (
    Built,
    KernelFault,
    Outcome,
    Step,
    Update,
    Verified,
)
from kerneltui.evaluation.rounds import ShapeRounds
from kerneltui.evaluation.stand import Stand
from kerneltui.evaluation.trial_lanes import TrialLanes
from kerneltui.evaluation.values import ValueClass
from kerneltui.evaluation.verify import Tally, VerifyPlan, verify_idle, verify_shape
from kerneltui.model.candidate import Failure
from kerneltui.model.kernel import Kernel
from kerneltui.model.measurement import Measurement, MeasurementStage, Stage
from kerneltui.model.statistics import Verdict
from kerneltui.model.workload import Shape
from kerneltui.targets.port import Build, GroupRole

__all__ = ["Trial"]

_RACE_REPEATS = 20
_PLAIN = 4
"""A difference of so many deltas is plain: the process groups count then, not the rounds in them."""

_REPEATS = 3


class Trial:
    """Takes a candidate through build, verification, screening, benchmark and confirmation.

    Args:
        stand: Target and judge.
        yardsticks: What it is measured against, by shape.
        delta: Smallest log-ratio that counts.
        kernel: The candidate.
        incumbent: The kernel on main; confirmed against in fresh groups.
        against: Its id.
        report: Told of stages and rounds.
        verified_before: True for a candidate that passed verification once.
    """

    def __init__(
        self,
        stand: Stand,
        yardsticks: Mapping[str, Yardstick],
        delta: float,
        *,
        kernel: Kernel,
        incumbent: Kernel,
        against: str,
        report: Callable[[Update], None],
        verified_before: bool,
    ) -> None:
        self.stage = Stage.LINT
        self._entered = time.monotonic_ns()
        self._spent: dict[str, dict[str, float]] = {}
        stand.spent.take()
        self._stand = stand
        self._yardsticks = yardsticks
        self.delta = delta
        self._kernel = kernel
        self._incumbent = incumbent
        self._against = against
        self._report = report
        self._verified_before = verified_before
        self._lanes = TrialLanes(stand, kernel, incumbent)
        self._record: dict[str, Any] = {"against": against}
        self._raw: list[dict[str, Any]] = []
        self._began = time.monotonic_ns()

    def run(self) -> Outcome:
        """Goes through the stages.

        Raises:
            KernelFault: The candidate failed.
            WrongOutput: A timed call left a wrong output behind, of whatever lane.
            LaneFailure: A group failed in a timed call, whichever.
        """
        self._enter(Stage.LINT)
        self._spent = {"before": self._spent[Stage.LINT]}  # the noise of a new incumbent
        self._record["labels"] = lint(self._kernel, self._stand.target.name)
        build = self._build()
        benchmark = self._new_benchmark()
        lane = self._verify(build, benchmark)
        if not benchmark.settled():
            self._benchmark(lane, benchmark)
        self._read_launches(build)
        self._lanes.drop(lane)
        groups = {name: [part] for name, part in benchmark.rounds.items()}
        measurement = self._with_gpus(benchmark.result(), groups)
        self._record["rounds"] = [part.to_record() for part in benchmark.rounds.values()]
        self._raw = [part.to_raw() for part in benchmark.rounds.values()]
        reason = self._implausible(measurement, list(benchmark.rounds.values()))
        measurement = replace(measurement, quarantine=reason)
        if measurement.verdict is Verdict.FASTER and not reason:
            measurement = self._confirm(build, measurement)
        return self._outcome(measurement, None)

    def compare(self) -> Measurement:
        """Times a trusted kernel as a candidate is timed, without verification and confirmation.

        For measuring the measurement: how often equal kernels are told apart, and unequal ones are not.

        Raises:
            KernelFault: It failed, or is far too slow.
            WrongOutput: A timed call left a wrong output behind.
            LaneFailure: A group failed.
        """
        build = self._build()
        benchmark = self._new_benchmark()
        lane = self._open(build, next(iter(self._yardsticks.values())).shape.ranks)
        for yard in self._yardsticks.values():
            if yard.shape.ranks != lane.group.ranks:
                lane = self._reopen(lane, yard.shape.ranks)
            self._setup(lane, yard)
            benchmark.screen(lane)
            self._teardown(lane)
        if not benchmark.settled():
            self._benchmark(lane, benchmark)
        self.close()
        return benchmark.result()

    def failed(self, failure: Failure, log: str = "") -> Outcome:
        """The outcome of a trial that ended early."""
        self.close()
        text = "\n".join(part for part in (log, self._lanes.output) if part)
        return replace(self._outcome(None, failure), log=text)

    def failed_by(self, fault: KernelFault) -> Outcome:
        """The outcome of a trial that ended with a fault of the kernel, which is looked into.

        Raises:
            Interrupted: The end was asked for meanwhile.
        """
        shape = self._lanes.candidate_shape()
        self.close()
        if fault.in_launch and shape is not None:
            self._step(self.stage, f"{shape.name}: looks for the launch that failed", 0, 0)
            fault = explain_fault(self._stand, self._kernel, shape, fault)
        return self.failed(fault.failure, fault.log)

    def owns(self, lane: Lane) -> bool:
        """Whether a lane runs this candidate."""
        return self._lanes.owns(lane)

    def close(self) -> None:
        """Ends the groups of this trial."""
        self._lanes.close()

    # Stages

    def _enter(self, stage: Stage) -> None:
        """Goes on to a stage; what was spent until now belongs to the one before."""
        now = time.monotonic_ns()
        parts = {**self._stand.spent.take(), "wall": round((now - self._entered) / 1e9, 4)}
        known = self._spent.setdefault(self.stage, dict.fromkeys(parts, 0.0))
        for name, seconds in parts.items():
            known[name] = round(known[name] + seconds, 4)
        self.stage, self._entered = stage, now

    def _new_benchmark(self) -> Benchmark:
        return Benchmark(self._stand.timer, self._yardsticks, self.delta, self._against, self._step)

    def _build(self) -> Build:
        self._enter(Stage.COMPILE)
        self._step(Stage.COMPILE, self._kernel.file, 0, 0)
        build = self._stand.build(self._kernel)
        told = {"key": build.key, "cached": build.cached, "seconds": build.seconds}
        self._record["build"] = {**told, "element": self._stand.workload.dtype}
        self._report(Built(round(build.seconds * 1e9), build.cached, build.log))
        code = code_record(self._stand.target.toolchain, build)
        if code is not None:
            self._record["codegen"] = code
        return build

    def _read_launches(self, build: Build) -> None:
        """Has a call captured in the groups that end here: nothing more is timed in them."""
        shapes = main_shapes(yard.shape for yard in self._yardsticks.values())
        told = launches_on(
            self._stand, build, partial(self._lanes.find, GroupRole.CANDIDATE), shapes
        )
        if told:
            self._record["codegen"] = {**self._record.get("codegen", {}), **told}

    def _verify(self, build: Build, benchmark: Benchmark) -> Lane:
        """Verifies on all shapes. Tune shapes, which are set up for it, are screened on the way."""
        self._enter(Stage.VERIFY)
        tally = Tally()
        shapes = [yard.shape for yard in self._yardsticks.values()]
        small = [] if self._verified_before else self._small_shapes()
        main = next(iter(main_shapes(small)), None)
        ranks = shapes[0].ranks
        for count in sorted({shape.ranks for shape in small} - {ranks}):
            lane = self._open(build, count)
            self._verify_small(lane, [s for s in small if s.ranks == count], main, tally)
            self._lanes.drop(lane)
        lane = self._open(build, ranks)
        self._verify_small(lane, [s for s in small if s.ranks == ranks], main, tally)
        for index, shape in enumerate(shapes):
            if shape.ranks != lane.group.ranks:
                self._lanes.drop(lane)
                lane = self._open(build, shape.ranks)
            self._enter(Stage.VERIFY)
            self._step(Stage.VERIFY, shape.name, index, len(shapes))
            yard = self._yardsticks[shape.name]
            plan = replace(VerifyPlan.for_shape(shape), sets=yard.sets)
            verify_shape(lane, shape, plan, tally, self._stand.checkpoint)
            if index == 0:
                verify_idle(lane)
            self._enter(Stage.SCREEN)
            benchmark.screen(lane)
            self._teardown(lane)
        self._record["verify"] = tally.note
        self._report(Verified(tally.note))
        return lane

    def _verify_small(
        self, lane: Lane, shapes: Sequence[Shape], main: Shape | None, tally: Tally
    ) -> None:
        for index, shape in enumerate(shapes):
            self._step(Stage.VERIFY, shape.name, index, len(shapes))
            repeats = _RACE_REPEATS if shape is main else _REPEATS
            plan = VerifyPlan.for_shape(shape, repeats=repeats)
            verify_shape(lane, shape, plan, tally, self._stand.checkpoint)
            self._teardown(lane)

    def _small_shapes(self) -> list[Shape]:
        workload = self._stand.workload
        found = {s.name: s for tag in ("test", "hidden") for s in workload.shapes_for(tag)}
        return list(found.values())

    def _benchmark(self, lane: Lane, benchmark: Benchmark) -> None:
        self._enter(Stage.BENCHMARK)
        wanted = list(self._yardsticks)
        for look in self._stand.protocol.looks:
            for name in wanted:
                yard = self._yardsticks[name]
                if yard.shape.ranks != lane.group.ranks:
                    lane = self._reopen(lane, yard.shape.ranks)
                self._setup(lane, yard)
                benchmark.measure(lane, name, look)
                self._teardown(lane)
            wanted = benchmark.more()
            if not wanted:
                return

    def _confirm(self, build: Build, measurement: Measurement) -> Measurement:
        """Measures again in fresh groups of both kernels, on fresh inputs; see `combined_interval`."""
        self._enter(Stage.CONFIRM)
        for name in self._yardsticks:
            self._stand.judge.prepare(name, ValueClass.NATURAL, renew=True)
        base = self._stand.build(self._incumbent)
        groups: dict[str, list[ShapeRounds]] = {name: [] for name in self._yardsticks}
        wanted = self._stand.protocol.confirm_groups
        confirmed = measurement
        for number in range(wanted):
            plain = number > 0 and confirmed.geomean.estimate < -_PLAIN * confirmed.delta
            self._confirm_group(build, base, groups, number, plain)
            confirmed = build_measurement(
                self._yardsticks,
                groups,
                delta=self.delta,
                against=self._against,
                confidence=0.95,
                stage=MeasurementStage.CONFIRMED
                if number + 1 == wanted
                else MeasurementStage.BENCHMARK,
            )
            if confirmed.geomean.estimate > -confirmed.delta:
                break  # it cannot become FASTER with a mean like that
        rounds = [part for parts in groups.values() for part in parts]
        self._record["confirm"] = [part.to_record() for part in rounds]
        self._raw += [part.to_raw() for part in rounds]
        confirmed = self._with_gpus(confirmed, groups)
        return replace(confirmed, quarantine=self._implausible(confirmed, rounds))

    def _confirm_group(
        self,
        build: Build,
        base: Build,
        groups: Mapping[str, list[ShapeRounds]],
        number: int,
        plain: bool,
    ) -> None:
        count = self._stand.protocol.confirm_rounds
        if plain:
            count = max(1, count // 2)
        for index, (name, yard) in enumerate(self._yardsticks.items()):
            self._step(
                Stage.CONFIRM,
                f"{name}, process group {number + 1}",
                number * len(groups) + index,
                self._stand.protocol.confirm_groups * len(groups),
            )
            ranks = yard.shape.ranks
            lane = self._lanes.found_or_opened(GroupRole.CANDIDATE, build, ranks, self.stage)
            other = self._lanes.found_or_opened(GroupRole.INCUMBENT, base, ranks, self.stage)
            self._setup(lane, yard)
            self._setup(other, yard)
            rounds = yard.rounds(lane, other)
            self._stand.timer.rounds(rounds, count, lane, other, None, masked=True)
            groups[name].append(rounds)
            self._teardown(lane)
            self._teardown(other)
        self.close()

    # Lanes

    def _open(self, build: Build, ranks: int) -> Lane:
        return self._lanes.open(GroupRole.CANDIDATE, build, ranks, self.stage)

    def _reopen(self, lane: Lane, ranks: int) -> Lane:
        self._lanes.drop(lane)
        return self._open(self._stand.build(self._kernel), ranks)

    def _setup(self, lane: Lane, yard: Yardstick) -> None:
        with self._lanes.blamed(lane, self.stage):
            lane.setup(yard.shape, yard.sets)

    def _teardown(self, lane: Lane) -> None:
        with self._lanes.blamed(lane, self.stage):
            lane.teardown()

    # Results

    def _with_gpus(
        self, measurement: Measurement, groups: Mapping[str, Sequence[ShapeRounds]]
    ) -> Measurement:
        """The measurement with what the GPUs did, who else was there, and what the compiler warned of."""
        target = self._stand.target
        found = add_gpu_use(measurement, groups, self._stand.workload, target.multiprocessors)
        loud = loud_findings(self._record.get("codegen"))
        short = enqueueing_remarks(self._yardsticks, groups)
        others = self._stand.surroundings.found
        return replace(found, remarks=(*loud, *found.remarks, *short, *others))

    def _implausible(self, measurement: Measurement, rounds: Sequence[ShapeRounds]) -> str:
        factor = self._stand.protocol.library_factor
        return quarantine_reason(self._yardsticks, measurement, rounds, factor)

    def _outcome(self, measurement: Measurement | None, failure: Failure | None) -> Outcome:
        self.close()
        self._enter(self.stage)
        self._record["spent"] = self._spent
        self._record["seconds"] = round((time.monotonic_ns() - self._began) / 1e9, 3)
        self._record["seeds"] = self._stand.judge.seeds() if self._stand.judge.pid else []
        raw = None
        if measurement is not None and measurement.verdict is Verdict.FASTER:
            raw = zlib.compress(json.dumps(self._raw, separators=(",", ":")).encode(), 9)
        return Outcome(measurement, failure, self._record, raw, self._lanes.output)

    def _step(self, stage: Stage, text: str, done: int, total: int) -> None:
        self._report(Step(stage, text, done, total))
