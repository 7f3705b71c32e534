"""Baselines and kernels side by side: every tune shape, all lanes interleaved in one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil
from statistics import median

from kerneltui.evaluation.calibration import BASELINE_PLAN, open_baseline
from kerneltui.evaluation.lane import Lane, set_bytes
from kerneltui.evaluation.outcome import BenchRow, EvaluationError, HarnessFault
from kerneltui.evaluation.stand import Stand
from kerneltui.evaluation.timing import Burst, LaneFailure, WrongOutput
from kerneltui.evaluation.verify import Tally, verify_shape
from kerneltui.model.kernel import Kernel
from kerneltui.model.limit import Ceilings, bound
from kerneltui.model.measurement import Stage
from kerneltui.model.statistics import judge_interval, median_interval
from kerneltui.model.workload import Shape, TargetSpec
from kerneltui.targets.port import GroupRole

__all__ = ["SideBySide"]


class SideBySide:
    """One benchmark run.

    Args:
        stand: Target and judge.
        spec: The workload on this target; names the baselines.
        ceilings: Measured rates, for a number of ranks.
        kernels: Name to kernel.
        say: Told what goes on, in one line.
    """

    def __init__(
        self,
        stand: Stand,
        spec: TargetSpec,
        ceilings: Callable[[int], Ceilings],
        kernels: Mapping[str, Kernel],
        say: Callable[[str], None],
    ) -> None:
        doubled = [name for name in kernels if name in spec.baselines]
        if doubled:
            raise ValueError(f"kernel {doubled[0]} has the name of a baseline")
        self._stand = stand
        self._spec = spec
        self._ceilings = ceilings
        self._kernels = kernels
        self._say = say
        self._lanes: dict[tuple[str, int], Lane] = {}

    def run(self, rounds: int) -> tuple[BenchRow, ...]:
        """Measures everything; a kernel that fails on a shape gets a row that says why.

        Raises:
            HarnessFault: No baseline is right on some shape.
            Interrupted: The end was asked for.
        """
        rows: list[BenchRow] = []
        try:
            for shape in self._stand.workload.shapes_for("tune"):
                rows += self._shape(shape, rounds)
        finally:
            for lane in self._lanes.values():
                self._stand.release(lane)
            self._lanes = {}
        return tuple(rows)

    def _shape(self, shape: Shape, rounds: int) -> list[BenchRow]:
        failed: dict[str, str] = {}
        ready: dict[str, Lane] = {}
        sets = self._stand.protocol.rotation(set_bytes(self._stand.workload, shape))
        plan = replace(BASELINE_PLAN, sets=sets)
        for name in (*self._spec.baselines, *self._kernels):
            self._stand.checkpoint()
            self._say(f"{shape.name}: verifying {name}")
            try:
                lane = self._lane(name, shape.ranks)
                verify_shape(lane, shape, plan, Tally(), self._stand.checkpoint)
                ready[name] = lane
            except EvaluationError as error:
                self._stand.checkpoint()
                failed[name] = str(error)
                self._discard(name, shape.ranks)
        bursts = self._interleave(shape, ready, failed, rounds)
        for name in bursts:
            ready[name].teardown()
        return self._rows(shape, bursts, failed)

    def _interleave(
        self, shape: Shape, ready: Mapping[str, Lane], failed: dict[str, str], rounds: int
    ) -> dict[str, list[Burst]]:
        timer = self._stand.timer
        protocol = self._stand.protocol
        bursts: dict[str, list[Burst]] = {name: [] for name in ready}
        calls = 1
        if ready:
            first = next(iter(ready.values()))
            with self._stand.machine():
                once = timer.burst(first, 1).value_ns
            calls = min(first.sets, max(1, ceil(protocol.sample_ns / once)))
        number = 0
        while bursts and number < rounds:
            self._stand.checkpoint()
            self._say(f"{shape.name}: round {number + 1} of {rounds}")
            lanes = [ready[name] for name in bursts]
            cold = lanes if number == 0 else []
            try:
                found = timer.round(
                    lanes, calls, turned=number % 2 == 1, discard=cold, checked=cold
                )
            except (LaneFailure, WrongOutput) as error:  # the round is taken again without it
                name = next(name for name in bursts if ready[name] is error.lane)
                failed[name] = str(error)
                del bursts[name]
                self._discard(name, shape.ranks)
                continue
            for name, burst in zip(bursts, found, strict=True):
                bursts[name].append(burst)
            number += 1
        return bursts

    def _rows(
        self, shape: Shape, bursts: Mapping[str, list[Burst]], failed: Mapping[str, str]
    ) -> list[BenchRow]:
        baselines = [name for name in self._spec.baselines if name in bursts]
        if not baselines:
            reasons = "; ".join(f"{name}: {text}" for name, text in failed.items())
            raise HarnessFault(f"no baseline is right on {shape.name}: {reasons}")
        times = {name: median(b.value_ns for b in parts) for name, parts in bursts.items()}
        reference = min(baselines, key=lambda name: times[name])
        least = bound(self._stand.workload.limit, shape, self._ceilings(shape.ranks)).time_ns
        rows: list[BenchRow] = []
        for name, own in bursts.items():
            pairs = zip(own, bursts[reference], strict=True)
            interval = median_interval(
                [d for burst, other in pairs for d in burst.log_ratios(other)]
            )
            time_ns = times[name]
            rows.append(
                BenchRow(
                    shape=shape.name,
                    kernel=name,
                    reference=reference,
                    time_ns=round(time_ns),
                    interval=interval,
                    verdict=judge_interval(interval, self._stand.protocol.least_delta),
                    bound_ns=least,
                    bound_share=least / time_ns,
                )
            )
        rows += [
            BenchRow(shape.name, name, reference, 0, None, None, least, 0.0, text)
            for name, text in failed.items()
        ]
        return rows

    def _lane(self, name: str, ranks: int) -> Lane:
        key = (name, ranks)
        if key not in self._lanes:
            if name in self._spec.baselines:
                self._lanes[key] = open_baseline(self._stand, name, ranks)
            else:
                kernel = self._kernels[name]
                build = self._stand.build(kernel)
                self._lanes[key] = self._stand.open_kernel(
                    GroupRole.CANDIDATE, build, kernel.runtime, ranks, Stage.BENCHMARK
                )
        return self._lanes[key]

    def _discard(self, name: str, ranks: int) -> None:
        lane = self._lanes.pop((name, ranks), None)
        if lane is not None:
            self._stand.release(lane)
