"""What candidates are held against on all shapes, and how it changes with the incumbent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kerneltui.evaluation.benchmark import Yardstick
from kerneltui.evaluation.calibration import Calibrator, open_baseline
from kerneltui.evaluation.lane import Lane, set_bytes
from kerneltui.evaluation.outcome import CalibrationResult, HarnessFault, KernelFault
from kerneltui.evaluation.stand import Stand
from kerneltui.model.kernel import Kernel
from kerneltui.model.limit import Ceilings
from kerneltui.model.measurement import Stage
from kerneltui.model.workload import TargetSpec
from kerneltui.targets.errors import RankFailure
from kerneltui.targets.port import Build, GroupRole

__all__ = ["Yardsticks"]

_ALIKE = 1.5
"""Incumbents that differ by less are measured with samples of the same number of calls."""


def _silent(text: str) -> None:
    """Says nothing."""


@dataclass(frozen=True, slots=True)
class _Noise:
    """What was measured of an incumbent: delta, and by shape its noise and its ratios to the reference."""

    delta: float
    shapes: Mapping[str, tuple[float, Mapping[bool, list[float]]]]

    @classmethod
    def of(cls, delta: float, yardsticks: Mapping[str, Yardstick]) -> _Noise:
        shapes = {n: (y.noise, dict(y.reference_ratios)) for n, y in yardsticks.items()}
        return cls(delta, shapes)

    def restore(self, yardsticks: Mapping[str, Yardstick]) -> float:
        for name, (noise, ratios) in self.shapes.items():
            yardsticks[name].noise = noise
            yardsticks[name].reference_ratios = dict(ratios)
        return self.delta


class Yardsticks:
    """The incumbent and the best baseline, set up on every shape, with what was measured of them.

    Args:
        stand: Target and judge.
        spec: The workload on this target.
        ceilings: Measured rates, for a number of ranks.

    Attributes:
        by_shape: The yardstick of each shape; empty before `calibrate`.
        delta: Smallest log-ratio that counts as a difference.
    """

    def __init__(self, stand: Stand, spec: TargetSpec, ceilings: Callable[[int], Ceilings]) -> None:
        self.by_shape: dict[str, Yardstick] = {}
        self.delta = 0.0
        self._stand = stand
        self._spec = spec
        self._ceilings = ceilings
        self._incumbent: Kernel | None = None
        self._noise: dict[str, _Noise] = {}

    def calibrate(self, incumbent: Kernel, say: Callable[[str], None]) -> CalibrationResult:
        """Measures baselines, bounds and noise, and forgets what was before.

        Raises:
            EvaluationError: The incumbent or every baseline fails, or the end was asked for.
        """
        self._drop()
        result, self.by_shape = self._calibrator(say).run(incumbent)
        self._incumbent = incumbent
        self.delta = result.delta
        return result

    def set_incumbent(self, kernel: Kernel, say: Callable[[str], None] = _silent) -> None:
        """Makes a kernel the one that verdicts are against; it must have been verified.

        Its noise is measured as the first incumbent's was, since kernels differ in it and the smallest
        difference that counts follows from it. What was measured once is kept, for an undo. Samples are as
        long as it needs them.

        Raises:
            EvaluationError: It cannot be built, loaded or set up any more.
            WrongOutput: A timed call left a wrong output behind.
            LaneFailure: A group failed.
        """
        if self._incumbent is not None:
            if _identity(kernel) == _identity(self._incumbent):
                return
            self._noise[_identity(self._incumbent)] = _Noise.of(self.delta, self.by_shape)
        build = self._stand.build(kernel)
        self._incumbent = None  # until everything below has worked
        calibrator = self._calibrator(say)
        for yard in self.by_shape.values():
            fresh = self._incumbent_lane(kernel, build, yard)
            self._stand.release(yard.incumbent)
            yard.incumbent = fresh
            yard.reference_ratios = {}
            self._fit(yard, calibrator.call_ns(fresh))
        known = self._noise.get(_identity(kernel))
        if known is not None:
            self.delta = known.restore(self.by_shape)
        else:
            count = calibrator.noise_rounds(self.by_shape, self._stand.protocol.later_noise_s)
            _, self.delta = calibrator.delta(calibrator.noise(kernel, self.by_shape, count))
        self._incumbent = kernel

    def _fit(self, yard: Yardstick, call_ns: float) -> None:
        """Has samples as long as this incumbent needs them, where it is not about as fast as the last one."""
        times = (call_ns, yard.call_ns)
        if max(times) < _ALIKE * min(times):
            return
        sets = yard.sets
        yard.fit(self._stand.protocol, call_ns, set_bytes(self._stand.workload, yard.shape))
        if yard.sets != sets:
            self._set_up_again(yard)

    def show_again(self) -> None:
        """Shows all memory to a new judge, after the death of the old one."""
        for yard in self.by_shape.values():
            self._set_up_again(yard)

    def renew_dead(self) -> None:
        """Opens every lane again that has ended, by whatever way."""
        for yard in self.by_shape.values():
            for lane in (yard.incumbent, yard.reference):
                if not lane.group.alive:
                    self.renew(lane)

    def renew(self, lane: Lane) -> None:
        """Opens a lane again that has failed, if it is one of these."""
        for yard in self.by_shape.values():
            if yard.incumbent is lane and self._incumbent is not None:
                self._stand.release(lane)
                build = self._stand.build(self._incumbent)
                yard.incumbent = self._incumbent_lane(self._incumbent, build, yard)
            elif yard.reference is lane:
                self._stand.release(lane)
                fresh = open_baseline(self._stand, yard.reference_name, yard.shape.ranks)
                with self._stand.kept_if_well(fresh):
                    fresh.setup(yard.shape, yard.sets)
                yard.reference = fresh

    def _set_up_again(self, yard: Yardstick) -> None:
        for lane in (yard.incumbent, yard.reference):
            try:
                lane.teardown()
                lane.setup(yard.shape, yard.sets)
            except RankFailure:
                self.renew(lane)

    def _calibrator(self, say: Callable[[str], None]) -> Calibrator:
        return Calibrator(self._stand, self._spec, self._ceilings, say)

    def _incumbent_lane(self, kernel: Kernel, build: Build, yard: Yardstick) -> Lane:
        try:
            lane = self._stand.open_kernel(
                GroupRole.INCUMBENT, build, kernel.runtime, yard.shape.ranks, Stage.BENCHMARK
            )
        except KernelFault as fault:  # it was verified: no candidate is to blame
            raise HarnessFault(f"the incumbent cannot be loaded any more: {fault}") from fault
        with self._stand.kept_if_well(lane):
            lane.setup(yard.shape, yard.sets)
        return lane

    def _drop(self) -> None:
        for yard in self.by_shape.values():
            self._stand.release(yard.incumbent)
            self._stand.release(yard.reference)
        self.by_shape = {}
        self._incumbent = None
        self._noise = {}


def _identity(kernel: Kernel) -> str:
    """What a kernel does: its text as built, and its run-time tunables."""
    return f"{kernel.build_text()}\0{sorted(kernel.runtime.items())}"
