"""Screening, benchmark and confirmation: from rounds to a measurement."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kerneltui.evaluation.lane import Lane
from kerneltui.evaluation.outcome import KernelFault
from kerneltui.evaluation.rounds import ShapeRounds
from kerneltui.evaluation.timing import STREAM_NS, Timer, TimingProtocol
from kerneltui.model.measurement import (
    FailureKind,
    Measurement,
    MeasurementStage,
    ShapeMeasurement,
    Stage,
)
from kerneltui.model.statistics import (
    Interval,
    Verdict,
    combined_interval,
    geometric_mean,
    judge_interval,
    median_interval,
    summed_interval,
    undecided,
)
from kerneltui.model.units import milliseconds
from kerneltui.model.workload import Shape

__all__ = [
    "Benchmark",
    "Yardstick",
    "build_measurement",
    "enqueueing_remarks",
    "quarantine_reason",
    "telling_delta",
]

_FIRST_LOOK, _LATER_LOOK = 0.95, 0.99
# Answers come late on a busy machine; what is hidden by a patched clock is a good part of the work, and
# less than that shows in the processor's cycles (`Sample.clock_conflict`).
_HIDDEN_NS, _HIDDEN_SHARE = 500_000, 0.25
_FEW = 3  # bursts
_POOL = 132  # ratios


@dataclass
class Yardstick:
    """What a candidate is held against on one shape: set-up lanes and calibrated numbers.

    Attributes:
        shape: The problem size.
        incumbent: The incumbent's lane, set up.
        reference: The lane of the best verified baseline, set up.
        reference_name: Its name.
        call_ns: Time of one call of the incumbent, about; what follows from it: `fit`.
        calls: Calls in a sample.
        kept: Samples of a lane in a round.
        sets: Buffer sets.
        bound_ns: Least time by the measured ceilings.
        floor_ns: No honest kernel is faster.
        short: Calls are so short that they are timed as CUDA graphs, if every lane can be captured.
        noise: Half-width of the A/A interval of this shape.
        reference_ratios: log(incumbent / reference), gathered over the session: of rounds whose calls were
            graphs, and of others, which differ.
    """

    shape: Shape
    incumbent: Lane
    reference: Lane
    reference_name: str
    bound_ns: int
    floor_ns: int
    calls: int = 1
    sets: int = 1
    call_ns: float = 0.0
    kept: int = 0
    short: bool = False
    noise: float = 0.0
    reference_ratios: dict[bool, list[float]] = field(default_factory=dict[bool, list[float]])

    def fit(self, protocol: TimingProtocol, call_ns: float, set_bytes: int) -> None:
        """Sets what a sample is, for an incumbent whose call takes so long; lanes may need other sets."""
        calls = max(1, math.ceil(protocol.sample_ns / call_ns))
        self.sets = protocol.rotation(set_bytes, calls)
        self.calls = min(calls, self.sets)
        self.kept = protocol.samples(self.calls, call_ns)
        self.short = protocol.in_graph(call_ns, self.shape.ranks)
        self.call_ns = call_ns

    def rounds(self, candidate: Lane, incumbent: Lane | None = None) -> ShapeRounds:
        """Empty rounds for a candidate's lane and the incumbent's, set up for the shape."""
        lanes = (candidate, incumbent or self.incumbent, self.reference)
        graph = self.short and all(lane.graph_safe for lane in lanes)
        return ShapeRounds(self.shape.name, self.calls, kept=self.kept, graph=graph)

    def remember(self, ratios: Sequence[float], graph: bool) -> None:
        """Keeps the latest log-ratios of incumbent and reference, as graphs or one by one."""
        known = self.reference_ratios.get(graph, [])
        self.reference_ratios[graph] = [*known, *ratios][-_POOL:]

    def to_reference(self, graph: bool) -> Sequence[float]:
        """Those ratios; the others where there are none."""
        known = self.reference_ratios
        return known.get(graph) or known.get(not graph, [])

    def stream_share(self, rounds: Sequence[ShapeRounds]) -> float:
        """By how much equal kernels may differ in these rounds by their streams alone, as a log-ratio.

        Nothing, unless short calls were enqueued one by one.
        """
        if not self.short or all(part.graph for part in rounds):
            return 0.0
        timed = [part for part in rounds if part.candidate]
        times = [min(part.candidate_ns, part.incumbent_ns) for part in timed]
        return STREAM_NS / min([self.call_ns, *times])


class Benchmark:
    """Measures one candidate.

    Args:
        timer: Takes the rounds.
        yardsticks: By name of the shape, in order.
        delta: Smallest log-ratio that counts.
        against: Id of the incumbent, for the record.
        step: Told of every round: stage, text, done, total.
    """

    def __init__(
        self,
        timer: Timer,
        yardsticks: Mapping[str, Yardstick],
        delta: float,
        against: str,
        step: Callable[[Stage, str, int, int], None],
    ) -> None:
        self._timer = timer
        self._yardsticks = yardsticks
        self._least_delta = delta
        self._against = against
        self._step = step
        self.rounds: dict[str, ShapeRounds] = {}
        self.looks = 0
        self._deadline = time.monotonic() + timer.protocol.benchmark_s

    def screen(self, lane: Lane) -> None:
        """Takes the first rounds on the shape that the lane is set up for.

        One, another one where it would be abandoned, and the others up to the early look unless the
        shapes so far show it SLOWER already.

        Raises:
            KernelFault: The candidate is too slow to be worth a benchmark.
        """
        assert lane.shape is not None
        name = lane.shape.name
        protocol = self._timer.protocol
        self._step(Stage.SCREEN, name, len(self.rounds) + 1, len(self._yardsticks))
        self._take(lane, name, 1)
        rounds = self.rounds[name]
        if self._hopeless() > 0:
            # A neighbour may have struck all pairs so far: only who is to be abandoned is asked again.
            self._take(lane, name, 1, warm=True)
        if (mean := self._hopeless()) > 0:
            raise KernelFault(
                Stage.SCREEN,
                FailureKind.TOO_SLOW,
                f"at least {mean:.2f} times the incumbent's time on {', '.join(self.rounds)} "
                f"({milliseconds(rounds.candidate_ns)} ms against {milliseconds(rounds.incumbent_ns)} ms on "
                f"{name}); abandoned above {protocol.abandon:g}",
            )
        if judge_interval(self._early(), self._delta) is not Verdict.SLOWER:
            self._take(lane, name, protocol.early_look - len(rounds.candidate), warm=True)

    def _hopeless(self) -> float:
        """How many times the incumbent's time a candidate to be abandoned takes at least; 0 for others."""
        # By the best of the pairs, so that a noisy moment alone abandons nobody.
        mean = geometric_mean([math.exp(min(part.log_ratios)) for part in self.rounds.values()])
        limit = self._timer.protocol.abandon
        enough = len(self.rounds) >= min(2, len(self._yardsticks))
        return mean if mean > limit and (enough or mean > limit**2) else 0.0

    def settled(self) -> bool:
        """Whether the few rounds so far settle it: SLOWER, or UNCLEAR and no way to FASTER.

        What leans to the slow side without being SLOWER goes on.
        """
        interval = self._early()
        if judge_interval(interval, self._delta) is Verdict.SLOWER:
            return True
        return interval.low > -self._delta and interval.estimate < self._delta

    def measure(self, lane: Lane, shape: str, total: int) -> None:
        """Adds rounds, up to `total`, on a shape that the lane is set up for."""
        self._take(lane, shape, total - len(self.rounds[shape].candidate), total=total)

    def _take(
        self, lane: Lane, shape: str, count: int, *, warm: bool = False, total: int = 0
    ) -> None:
        if count < 1:
            return
        yard = self._yardsticks[shape]
        rounds = self.rounds.setdefault(shape, yard.rounds(lane))
        seen = len(rounds.reference_ratios)

        def step(done: int) -> None:
            if total:
                self._step(Stage.BENCHMARK, shape, done, total)

        self._timer.rounds(
            rounds, count, lane, yard.incumbent, yard.reference, warm=warm, step=step
        )
        yard.remember(rounds.reference_ratios[seen:], rounds.graph)

    def _early(self) -> Interval:
        return combined_interval([[r.log_ratios] for r in self.rounds.values()], _LATER_LOOK)

    def more(self) -> list[str]:
        """Shapes that further rounds should go to: none once the verdict stands or time is up.

        On the slow side the first look is enough: nobody waits for the difference between UNCLEAR and
        SLOWER any longer.
        """
        self.looks += 1
        interval = self.geomean()
        if time.monotonic() > self._deadline or not undecided(interval, self._delta):
            return []
        if interval.estimate > 0:
            return []
        wide = {
            name: parts.high - parts.low
            for name, parts in (
                (name, median_interval(rounds.log_ratios, self._confidence))
                for name, rounds in self.rounds.items()
            )
        }
        return [name for name, width in wide.items() if width >= max(wide.values()) / 2]

    @property
    def _delta(self) -> float:
        groups = {name: [part] for name, part in self.rounds.items()}
        return telling_delta(self._yardsticks, groups, self._least_delta)

    @property
    def _confidence(self) -> float:
        """0.95 for the first full look; 0.99 for an early end and for what looked more often."""
        return _FIRST_LOOK if self.looks == 1 else _LATER_LOOK

    def geomean(self) -> Interval:
        """Over all shapes, of the rounds so far."""
        return combined_interval([[r.log_ratios] for r in self.rounds.values()], self._confidence)

    def result(self) -> Measurement:
        """The measurement as it stands."""
        return build_measurement(
            self._yardsticks,
            {name: [self.rounds[name]] for name in self._yardsticks},
            delta=self._least_delta,
            against=self._against,
            confidence=self._confidence,
            stage=MeasurementStage.BENCHMARK,
        )


def build_measurement(
    yardsticks: Mapping[str, Yardstick],
    groups: Mapping[str, Sequence[ShapeRounds]],
    *,
    delta: float,
    against: str,
    confidence: float,
    stage: MeasurementStage,
) -> Measurement:
    """Reduces rounds, by shape and process group, to a measurement."""
    shapes: list[ShapeMeasurement] = []
    for name, parts in groups.items():
        yard = yardsticks[name]
        ratios = [part.log_ratios for part in parts]
        interval = combined_interval([ratios], confidence)
        if len(parts) == 1:
            interval = median_interval(ratios[0], confidence)
        known = yard.to_reference(all(part.graph for part in parts))
        to_reference = summed_interval([ratios, [known]], confidence)
        candidate_ns = sum(part.candidate_ns for part in parts) / len(parts)
        shapes.append(
            ShapeMeasurement(
                shape=name,
                rounds=sum(len(part.candidate) for part in parts),
                candidate_ns=round(candidate_ns),
                incumbent_ns=round(sum(part.incumbent_ns for part in parts) / len(parts)),
                reference_ns=round(candidate_ns * math.exp(-to_reference.estimate)),
                reference=yard.reference_name,
                interval=interval,
                reference_interval=to_reference,
                # A shape alone is noisier than all together, so its own noise counts too.
                verdict=judge_interval(
                    interval, max(delta, 2 * yard.noise, yard.stream_share(parts))
                ),
                bound_share=yard.bound_ns / candidate_ns,
                graph=all(part.graph for part in parts),
            )
        )
    geomean = combined_interval(
        [[part.log_ratios for part in parts] for parts in groups.values()], confidence
    )
    delta = telling_delta(yardsticks, groups, delta)
    return Measurement(
        stage=stage,
        against=against,
        delta=delta,
        shapes=tuple(shapes),
        geomean=geomean,
        verdict=judge_interval(geomean, delta),
        ratio=geometric_mean([part.ratio for part in shapes]),
        bound_share=geometric_mean([part.bound_share for part in shapes]),
        groups=max(len(parts) for parts in groups.values()),
        quarantine="",
    )


def telling_delta(
    yardsticks: Mapping[str, Yardstick], groups: Mapping[str, Sequence[ShapeRounds]], delta: float
) -> float:
    """The smallest difference over all shapes that counts: at least what streams can make."""
    shares = [yardsticks[name].stream_share(parts) for name, parts in groups.items()]
    return max(delta, sum(shares) / max(1, len(shares)))


def enqueueing_remarks(
    yardsticks: Mapping[str, Yardstick], groups: Mapping[str, Sequence[ShapeRounds]]
) -> tuple[str, ...]:
    """Short calls that had to be enqueued one by one, in one line; nothing without any."""
    names = [
        name
        for name, parts in groups.items()
        if yardsticks[name].short and not all(part.graph for part in parts)
    ]
    if not names:
        return ()
    return (
        f"{', '.join(names)}: short calls, enqueued one by one, since not all lanes are graph_safe: "
        "equal kernels may differ by 0.2 us",
    )


def quarantine_reason(
    yardsticks: Mapping[str, Yardstick],
    measurement: Measurement,
    rounds: Sequence[ShapeRounds],
    library_factor: float,
) -> str:
    """Why a measurement is too good to be true, or contradicts itself; empty if it is plausible."""
    verdicts = {shape.shape: shape.verdict for shape in measurement.shapes}
    for part in rounds:
        if part.conflict:
            return f"{part.shape}: {part.conflict}"
        slower = (
            measurement.verdict is Verdict.SLOWER and verdicts[part.shape] is not Verdict.FASTER
        )
        if slower and len(part.candidate) < _FEW:
            continue  # a moment of the machine's, and nothing that one could gain by hiding it
        hidden = part.hidden_ns()
        work = part.candidate_ns * part.calls
        if hidden > max(_HIDDEN_NS, _HIDDEN_SHARE * work):
            return (
                f"{part.shape}: the engine's clock saw {milliseconds(hidden)} ms more in each sample than "
                f"the {milliseconds(work)} ms that were claimed"
            )
    for shape in measurement.shapes:
        floor = yardsticks[shape.shape].floor_ns
        if shape.candidate_ns < floor:
            return (
                f"{shape.shape}: {milliseconds(shape.candidate_ns)} ms is below the floor of "
                f"{milliseconds(floor)} ms at the measured peak of arithmetic"
            )
        # Small collectives of a library vary a lot: only what is beyond doubt is implausible.
        least = shape.reference_interval.ratio()[1]
        if least > library_factor:
            return (
                f"{shape.shape}: at least {least:.1f} times as fast as {shape.reference}, the best "
                f"verified baseline; above {library_factor:g} somebody should look"
            )
    return ""
