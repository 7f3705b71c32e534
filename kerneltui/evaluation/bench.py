"""Baselines and kernels side by side: shape by shape, all lanes interleaved in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from kerneltui.evaluation.bench_modes import Timed, Track
from kerneltui.evaluation.bench_plan import BenchPlan
from kerneltui.evaluation.bench_result import LaneResult, Mode, ShapeResult
from kerneltui.evaluation.calibration import BASELINE_PLAN, open_baseline
from kerneltui.evaluation.floors import believed_floor
from kerneltui.evaluation.judge_client import JudgeFailure
from kerneltui.evaluation.lane import Lane, set_bytes
from kerneltui.evaluation.outcome import EvaluationError, Interrupted
from kerneltui.evaluation.stand import Stand
from kerneltui.evaluation.verify import Tally, VerifyPlan, verify_shape
from kerneltui.model.kernel import Kernel
from kerneltui.model.limit import Ceilings, bound
from kerneltui.model.measurement import Stage
from kerneltui.model.workload import Shape, TargetSpec
from kerneltui.targets.errors import MemoryFailure, RankFailure
from kerneltui.targets.port import GroupRole

__all__ = ["SideBySide"]

_GIVEN_UP = 2
"""A baseline that cannot be set up on so many shapes in a row is not tried again."""

_COLD_CACHES = 4
_LARGE = 1 << 32
"""Work from which on a set of outputs is so large that verification looks at one of several."""


@dataclass
class _Lanes:
    """Groups that stay open from shape to shape, and baselines that are not tried any more."""

    open: dict[tuple[str, int], Lane] = field(default_factory=dict[tuple[str, int], Lane])
    failures: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def given_up(self, name: str) -> str:
        """Why a baseline is not tried again, or nothing."""
        reasons = self.failures.get(name, [])
        return reasons[-1] if len(reasons) >= _GIVEN_UP else ""


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
        self._ceilings = cache(ceilings)
        self._kernels = kernels
        self._say = say
        self._lanes = _Lanes()

    def run(self, plan: BenchPlan, found: Callable[[ShapeResult], None]) -> tuple[ShapeResult, ...]:
        """Measures shape by shape; a lane that fails on one has a result that says why.

        So has a shape for which the judge has no room: it is left out, and the next ones are measured.

        Args:
            plan: What is measured.
            found: Told of every shape when it is done.

        Raises:
            HarnessFault: The judge or the machine failed.
            Interrupted: The end was asked for.
        """
        results: list[ShapeResult] = []
        begin = time.monotonic()
        try:
            self._measure_ceilings(plan)
            for number, shape in enumerate(plan.shapes):
                spent = time.monotonic() - begin
                # One shape at least: ceilings may have taken all of a short time.
                if results and plan.budget_s is not None and spent > plan.budget_s:
                    self._say(f"the time is up: {len(plan.shapes) - number} shapes are left out")
                    break
                self._say(f"{number + 1} of {len(plan.shapes)}: {shape.name}")
                with self._stand.devices():
                    result = self._shape_or_reason(shape, plan)
                    results.append(result)
                    found(result)
        finally:
            self._release_all()
        return tuple(results)

    def _measure_ceilings(self, plan: BenchPlan) -> None:
        """Before the first shape: what fails here then costs no times."""
        for ranks in sorted({shape.ranks for shape in plan.shapes}):
            with self._stand.devices():
                self._ceilings(ranks)

    def _shape_or_reason(self, shape: Shape, plan: BenchPlan) -> ShapeResult:
        """The result of a shape, or why it has none: without room the judge fails again each time."""
        try:
            return self._shape(shape, plan)
        except (MemoryFailure, JudgeFailure) as error:
            if isinstance(error, JudgeFailure) and not error.no_room:
                raise
            reason = " ".join(str(error).split())
        self._say(f"{shape.name} is left out: {reason}")
        self._release_all()  # nobody knows how far each of them was
        self._stand.ready()  # another judge, if that one did not outlive it
        return replace(self._outcome(shape, self._sets(shape), 0, []), left_out=reason)

    def _release_all(self) -> None:
        for lane in self._lanes.open.values():
            self._stand.release(lane)
        self._lanes.open = {}

    def _shape(self, shape: Shape, plan: BenchPlan) -> ShapeResult:
        begin = time.monotonic()
        self._stand.spent.take()
        failed: dict[str, str] = {}
        sets = self._sets(shape)
        tracks = self._verified(shape, sets, failed)
        verified = time.monotonic()

        def drop(track: Track, reason: str) -> None:
            failed[track.name] = reason
            self._discard(track.name, shape.ranks)

        def lost(track: Track) -> None:
            self._discard(track.name, shape.ranks)

        timed = Timed(self._stand, plan, tracks, drop, lost=lost, say=self._say)
        timed.settle()
        if plan.offline and timed.tracks:
            timed.offline()
        if plan.server and timed.tracks:
            timed.server(shape.name)
        if shape.name in plan.sustained:
            timed.sustained(_leading(timed.tracks))
        for track in timed.tracks:
            self._teardown(track, shape, failed)
        lanes = [self._result(track) for track in tracks if track.name not in failed]
        for name, reason in failed.items():
            lanes.append(LaneResult(name, name in self._spec.baselines, error=reason))
        spent = {"verifying": round(verified - begin, 3), **self._stand.spent.take()}
        result = self._outcome(shape, sets, timed.calls, lanes)
        seconds = time.monotonic() - begin
        least = max(result.least_delta, timed.stream_share)
        return replace(result, graph=timed.graph, least_delta=least, seconds=seconds, spent=spent)

    def _outcome(self, shape: Shape, sets: int, calls: int, lanes: list[LaneResult]) -> ShapeResult:
        workload = self._stand.workload
        least = bound(workload.limit, shape, self._ceilings(shape.ranks))
        nbytes = set_bytes(workload, shape)
        order = [*self._spec.baselines, *self._kernels]
        cache_bytes = int(getattr(self._stand.target, "cache_bytes", 0))
        result = ShapeResult(
            shape=shape.name,
            dimensions=dict(shape.dimensions),
            flops=workload.limit.flops.number(shape.values) * shape.ranks,
            bound_ns=least.time_ns,
            bound_kind=str(least.kind),
            library_factor=self._stand.protocol.library_factor,
            sets=sets,
            set_bytes=nbytes,
            cold=bool(cache_bytes) and sets * nbytes >= _COLD_CACHES * cache_bytes,
            calls=calls,
            lanes=tuple(sorted(lanes, key=lambda lane: order.index(lane.name))),
            seconds=0.0,
            least_delta=self._stand.protocol.least_delta,
            multiprocessors=int(getattr(self._stand.target, "multiprocessors", 0)) * shape.ranks,
        )
        return replace(result, floor_ns=believed_floor(least.floor_ns, result.fastest_ns))

    def _sets(self, shape: Shape) -> int:
        """So many that they are several times the cache together, as far as that goes."""
        protocol = self._stand.protocol
        nbytes = set_bytes(self._stand.workload, shape)
        wanted = _COLD_CACHES * int(getattr(self._stand.target, "cache_bytes", 0))
        return max(protocol.rotation(nbytes), min(protocol.most_sets, -(-wanted // nbytes)))

    def _verified(self, shape: Shape, sets: int, failed: dict[str, str]) -> list[Track]:
        """Lanes that are set up on the shape and right on it."""
        plan = _verify_plan(shape, sets)
        tracks: list[Track] = []
        for name in (*self._spec.baselines, *self._kernels):
            self._stand.checkpoint()
            given_up = self._lanes.given_up(name)
            if given_up:
                failed[name] = given_up
                continue
            try:
                lane = self._lane(name, shape.ranks)
                verify_shape(lane, shape, plan, Tally(), self._stand.checkpoint)
            except Interrupted:
                raise
            except EvaluationError as error:
                self._stand.checkpoint()
                failed[name] = str(error)
                if name in self._spec.baselines:
                    self._lanes.failures.setdefault(name, []).append(str(error))
                self._discard(name, shape.ranks)
                continue
            self._lanes.failures.pop(name, None)
            tracks.append(Track(name, lane, name in self._spec.baselines))
        return tracks

    def _result(self, track: Track) -> LaneResult:
        facts: Mapping[str, Any] = track.lane.group.facts
        note: dict[str, Any] = dict(facts.get("note", {}))
        if facts.get("from_python"):
            note["called"] = "through Python"
        note |= track.note
        favoured = str(note.pop("favoured", ""))
        return LaneResult(track.name, track.baseline, dict(track.times), note, favoured)

    def _teardown(self, track: Track, shape: Shape, failed: dict[str, str]) -> None:
        try:
            track.lane.teardown()
        except RankFailure as error:
            failed[track.name] = f"at its end: {error.reason}"
            self._discard(track.name, shape.ranks)

    def _lane(self, name: str, ranks: int) -> Lane:
        key = (name, ranks)
        lanes = self._lanes.open
        if key not in lanes:
            self._say(f"starting {name}")
            if name in self._spec.baselines:
                lanes[key] = open_baseline(self._stand, name, ranks)
            else:
                kernel = self._kernels[name]
                build = self._stand.build(kernel)
                lanes[key] = self._stand.open_kernel(
                    GroupRole.CANDIDATE, build, kernel.runtime, ranks, Stage.BENCHMARK
                )
        return lanes[key]

    def _discard(self, name: str, ranks: int) -> None:
        lane = self._lanes.open.pop((name, ranks), None)
        if lane is not None:
            self._stand.release(lane)


def _verify_plan(shape: Shape, sets: int) -> VerifyPlan:
    work = 1
    for value in shape.dimensions.values():
        work *= value
    return replace(BASELINE_PLAN, sets=sets, all_sets=work < _LARGE)


def _leading(tracks: Any) -> list[Track]:
    """The fastest baseline, the fastest that is not favoured, and all kernels."""
    baselines = [track for track in tracks if track.baseline]
    first = Mode.OFFLINE if all(Mode.OFFLINE in track.times for track in baselines) else Mode.SERVER
    baselines.sort(key=lambda track: track.times[first].time_ns)
    plain = [track for track in baselines if not track.lane.group.facts.get("wants_fills")]
    kernels = [track for track in tracks if not track.baseline]
    return [*dict.fromkeys([*baselines[:1], *plain[:1], *kernels])]
