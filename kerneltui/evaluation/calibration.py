"""Before the search: baselines verified and timed, bounds, and the noise of the incumbent against itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import ceil
from statistics import median

from kerneltui.evaluation.baseline_kernels import baseline_kernel
from kerneltui.evaluation.benchmark import Yardstick
from kerneltui.evaluation.floors import believed_floor
from kerneltui.evaluation.lane import Lane, set_bytes
from kerneltui.evaluation.outcome import (
    CalibrationResult,
    EvaluationError,
    HarnessFault,
    KernelFault,
)
from kerneltui.evaluation.rounds import ShapeRounds
from kerneltui.evaluation.stand import Stand
from kerneltui.evaluation.timing import LaneFailure, WrongOutput
from kerneltui.evaluation.values import ValueClass
from kerneltui.evaluation.verify import Tally, VerifyPlan, verify_shape
from kerneltui.model.kernel import Kernel
from kerneltui.model.limit import Ceilings, bound, reachable_ns
from kerneltui.model.measurement import BaselineTime, ShapeCalibration, Stage
from kerneltui.model.statistics import combined_interval, median_interval
from kerneltui.model.workload import Shape, TargetSpec
from kerneltui.targets.errors import MemoryFailure, RankFailure
from kerneltui.targets.port import Build, GroupRole

__all__ = ["BASELINE_PLAN", "BaselineResult", "Calibrator", "open_baseline"]

_BASELINE_BURSTS = 5
_REFUSALS = (KernelFault, WrongOutput, LaneFailure, RankFailure, MemoryFailure)
BASELINE_PLAN = VerifyPlan(
    classes=(ValueClass.NATURAL, ValueClass.EXACT),
    edit=False,
    repeats=0,
    masked=False,
    late_ranks=False,
)


@dataclass
class BaselineResult:
    """The baselines of one shape: burst values of those that are right, reasons for the others."""

    times: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    refused: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def fastest_ns(self) -> float:
        """The shortest time of a verified baseline."""
        return min(min(values) for values in self.times.values())

    @property
    def best(self) -> str:
        """The fastest verified baseline.

        Raises:
            HarnessFault: None is right.
        """
        if not self.times:
            reasons = "; ".join(f"{name}: {text}" for name, text in self.refused.items())
            raise HarnessFault(f"no baseline passes its own verification: {reasons}")
        return min(self.times, key=lambda name: median(self.times[name]))


class Calibrator:
    """Measures what candidates are held against.

    Args:
        stand: Target and judge.
        spec: The workload on this target.
        ceilings: Measured rates, for a number of ranks.
        say: Told what goes on, in one line.
    """

    def __init__(
        self,
        stand: Stand,
        spec: TargetSpec,
        ceilings: Callable[[int], Ceilings],
        say: Callable[[str], None],
    ) -> None:
        self._stand = stand
        self._spec = spec
        self._ceilings = cache(ceilings)
        self._say = say
        self._shapes = stand.workload.shapes_for("tune")
        self._short: dict[str, bool] = {}  # shapes whose calls are timed as graphs

    def baselines(self) -> dict[str, BaselineResult]:
        """Verifies and times every baseline on every tune shape."""
        results = {shape.name: BaselineResult() for shape in self._shapes}
        for name in self._spec.baselines:
            lanes: dict[int, Lane] = {}
            try:
                for shape in self._shapes:
                    self._stand.checkpoint()
                    self._say(f"baseline {name} on {shape.name}")
                    try:
                        if shape.ranks not in lanes:
                            lanes[shape.ranks] = open_baseline(self._stand, name, shape.ranks)
                        lane = lanes[shape.ranks]
                        results[shape.name].times[name] = self._time_baseline(lane, shape)
                    except _REFUSALS as error:
                        results[shape.name].refused[name] = str(error)
                        lane = lanes.pop(shape.ranks, None)
                        if lane is not None:
                            self._stand.release(lane)
            finally:
                for lane in lanes.values():
                    self._stand.release(lane)
        return results

    def _time_baseline(self, lane: Lane, shape: Shape) -> list[float]:
        verify_shape(lane, shape, BASELINE_PLAN, Tally(), self._stand.checkpoint)
        timer = self._stand.timer
        with self._stand.machine():
            once = timer.burst(lane, 1, kept=1, check=True).value_ns
        # The first to come decides: times of one call and of one among many do not compare.
        if self._short.setdefault(shape.name, self._stand.protocol.in_graph(once, shape.ranks)):
            values = self._time_graphs(lane, shape, once)
        else:
            with self._stand.machine():
                more = [timer.burst(lane, 1, kept=1) for _ in range(_BASELINE_BURSTS - 1)]
            values = [once, *(burst.value_ns for burst in more)]
        lane.teardown()
        return values

    def _time_graphs(self, lane: Lane, shape: Shape, once: float) -> list[float]:
        """Times calls among many, on as many buffer sets as kernels have."""
        protocol, timer = self._stand.protocol, self._stand.timer
        calls = min(protocol.most_sets, ceil(protocol.sample_ns / once))
        sets = protocol.rotation(set_bytes(self._stand.workload, shape), calls)
        lane.teardown()
        lane.setup(shape, sets)
        with self._stand.machine():
            timer.burst(lane, 1, kept=1)
            bursts = [timer.burst(lane, calls, kept=1, graph=True) for _ in range(_BASELINE_BURSTS)]
        return [burst.value_ns for burst in bursts]

    def yardsticks(
        self, incumbent: Kernel, baselines: Mapping[str, BaselineResult]
    ) -> dict[str, Yardstick]:
        """Opens incumbent and reference on every tune shape, and decides how long a sample is."""
        made: dict[str, Yardstick] = {}
        build = self._stand.build(incumbent)
        try:
            for shape in self._shapes:
                self._say(f"incumbent on {shape.name}")
                made[shape.name] = self._yardstick(shape, incumbent, build, baselines[shape.name])
        except BaseException:
            for yard in made.values():
                self._stand.release(yard.incumbent)
                self._stand.release(yard.reference)
            raise
        return made

    def _yardstick(
        self, shape: Shape, incumbent: Kernel, build: Build, result: BaselineResult
    ) -> Yardstick:
        stand = self._stand
        lane = stand.open_kernel(
            GroupRole.INCUMBENT, build, incumbent.runtime, shape.ranks, Stage.BENCHMARK
        )
        with stand.kept_if_well(lane):
            verify_shape(lane, shape, BASELINE_PLAN, Tally(), stand.checkpoint)
            call_ns = self.call_ns(lane)
            limits = bound(stand.workload.limit, shape, self._ceilings(shape.ranks))
            reference = open_baseline(stand, result.best, shape.ranks)
            with stand.kept_if_well(reference):
                yard = Yardstick(
                    shape=shape,
                    incumbent=lane,
                    reference=reference,
                    reference_name=result.best,
                    bound_ns=limits.time_ns,
                    floor_ns=believed_floor(limits.floor_ns, result.fastest_ns),
                )
                yard.fit(stand.protocol, call_ns, set_bytes(stand.workload, shape))
                if yard.sets != lane.sets:
                    lane.teardown()
                    lane.setup(shape, yard.sets)
                reference.setup(shape, yard.sets)
        return yard

    def call_ns(self, lane: Lane) -> float:
        """The time of a call among many: a single one has the way to the device and back in it."""
        with self._stand.machine():
            return self._call_ns(lane)

    def _call_ns(self, lane: Lane) -> float:
        protocol, timer = self._stand.protocol, self._stand.timer
        once = timer.burst(lane, 1, check=True).value_ns
        calls = min(protocol.most_sets, ceil(protocol.sample_ns / once))
        if calls < 2:
            return once
        assert lane.shape is not None
        graph = protocol.in_graph(once, lane.shape.ranks)
        return min(once, timer.burst(lane, calls, kept=1, graph=graph).value_ns)

    def noise_rounds(self, yardsticks: Mapping[str, Yardstick], seconds: float) -> int:
        """How many rounds of an incumbent against itself fit into so many seconds of work."""
        protocol = self._stand.protocol
        round_ns = sum(2 * yard.kept * yard.calls * yard.call_ns for yard in yardsticks.values())
        affordable = int(seconds * 1e9 / max(1.0, round_ns))
        return max(protocol.looks[0], min(protocol.noise_rounds, affordable))

    def noise(
        self, incumbent: Kernel, yardsticks: Mapping[str, Yardstick], count: int
    ) -> list[ShapeRounds]:
        """Times the incumbent against itself in another group of processes, as a candidate is.

        Up to `count` rounds on each shape, fewer where the noise is plainly below what matters.
        """
        found: list[ShapeRounds] = []
        build = self._stand.build(incumbent)
        lanes: dict[int, Lane] = {}
        try:
            for name, yard in yardsticks.items():
                self._say(f"noise on {name}")
                ranks = yard.shape.ranks
                if ranks not in lanes:
                    lanes[ranks] = self._stand.open_kernel(
                        GroupRole.INCUMBENT, build, incumbent.runtime, ranks, Stage.BENCHMARK
                    )
                lane = lanes[ranks]
                lane.setup(yard.shape, yard.sets)
                rounds = yard.rounds(lane)
                while len(rounds.candidate) < count and not self._is_quiet(rounds):
                    step = min(self._stand.protocol.early_look, count - len(rounds.candidate))
                    warm = bool(rounds.candidate)
                    self._stand.timer.rounds(
                        rounds, step, lane, yard.incumbent, yard.reference, warm=warm
                    )
                lane.teardown()
                yard.remember(rounds.reference_ratios, rounds.graph)
                yard.noise = median_interval(rounds.log_ratios).half_width
                found.append(rounds)
        finally:
            for lane in lanes.values():
                self._stand.release(lane)
        return found

    def _is_quiet(self, rounds: ShapeRounds) -> bool:
        """Whether further rounds could not make a difference count that does not count now."""
        if len(rounds.candidate) < self._stand.protocol.early_look:
            return False
        half_width = median_interval(rounds.log_ratios).half_width
        return 4 * half_width < self._stand.protocol.least_delta

    def delta(self, noise: list[ShapeRounds]) -> tuple[float, float]:
        """The A/A half-width over all shapes, and the smallest difference that counts with it."""
        half_width = combined_interval([[part.log_ratios] for part in noise]).half_width
        return half_width, max(self._stand.protocol.least_delta, 2 * half_width)

    def run(self, incumbent: Kernel) -> tuple[CalibrationResult, dict[str, Yardstick]]:
        """Does all of it.

        Raises:
            EvaluationError: The incumbent or every baseline fails, or the end was asked for.
        """
        begin = time.monotonic_ns()
        try:
            baselines = self.baselines()
            yardsticks = self.yardsticks(incumbent, baselines)
            count = self.noise_rounds(yardsticks, self._stand.protocol.noise_s)
            rounds = self.noise(incumbent, yardsticks, count)
        except (WrongOutput, LaneFailure) as error:
            raise EvaluationError(f"the incumbent fails in its own calibration: {error}") from error
        half_width, delta = self.delta(rounds)
        shapes = tuple(
            ShapeCalibration(
                shape=name,
                bound_ns=yard.bound_ns,
                bound_kind=bound(
                    self._stand.workload.limit, yard.shape, self._ceilings(yard.shape.ranks)
                ).kind,
                floor_ns=yard.floor_ns,
                reference=yard.reference_name,
                baselines=tuple(
                    _baseline_time(baseline, times)
                    for baseline, times in baselines[name].times.items()
                ),
                noise=yard.noise,
                reachable_ns=reachable_ns(
                    self._stand.workload.limit,
                    yard.shape,
                    self._ceilings(yard.shape.ranks),
                    self._stand.target.multiprocessors,
                ),
            )
            for name, yard in yardsticks.items()
        )
        record = {
            "seconds": round((time.monotonic_ns() - begin) / 1e9, 3),
            "noise": [part.to_record() for part in rounds],
            "refused": {name: result.refused for name, result in baselines.items()},
        }
        return CalibrationResult(delta, half_width, shapes, (), record), yardsticks


def open_baseline(stand: Stand, name: str, ranks: int) -> Lane:
    """Opens a baseline: a kernel file of the workload by that name, or one that is built in."""
    kernel = baseline_kernel(stand.workload.kernels, name)
    if kernel is None:
        return stand.open_baseline(name, ranks)
    build = stand.build(kernel)
    return stand.open_kernel(GroupRole.BASELINE, build, kernel.runtime, ranks, Stage.BENCHMARK)


def _baseline_time(name: str, times: list[float]) -> BaselineTime:
    interval = median_interval([math.log(value) for value in times])
    middle = math.exp(interval.estimate)
    half = max(middle - math.exp(interval.low), math.exp(interval.high) - middle)
    return BaselineTime(name, round(middle), round(half))
