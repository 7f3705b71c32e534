"""Rounds: samples of candidate, incumbent and reference in turn, reduced to paired log-ratios.

A sample is the time from the first rank's start to the last rank's end, over the number of calls: the
slowest rank counts. A round has `kept` samples of each lane, taken in turn and in alternating order
(C I R, R I C, C I R, ...): the burst of a lane is its samples of a round. Neighbours in time make a pair,
because what else runs on a processor comes and goes within tenths of a second and takes half of the speed;
two samples that lie further apart often differ by that alone. A lane's first sample after a pause is
discarded. Before every sample the judge writes fresh inputs into exactly the buffer sets that it uses,
outside of the timed window.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from kerneltui.evaluation.gpu_use import Readings, Watch, no_readings
from kerneltui.evaluation.lane import LATE, MASKED, Lane
from kerneltui.evaluation.rounds import Burst, ShapeRounds
from kerneltui.evaluation.values import Report
from kerneltui.targets.errors import RankFailure
from kerneltui.targets.sample import Sample

_MANY_SETS = 16
_WATCH_EVERY_S = 0.5  # two GPUs take some 13 ms, three times in a round

STREAM_NS = 200.0
"""By so much two streams of an H200 differ in each short call, for as long as they live (docs/results.md)."""

__all__ = [
    "GPU_PROTOCOL",
    "STREAM_NS",
    "LaneFailure",
    "Timer",
    "TimingProtocol",
    "WrongOutput",
]


@dataclass(frozen=True, slots=True)
class TimingProtocol:
    """Numbers of the timing.

    Attributes:
        sets: Buffer sets that calls rotate over, at least.
        most_sets: And at most, for calls so short that a sample takes many.
        rotation_bytes: Small problems rotate over more sets, up to so much memory: where the pages of a
            set happen to lie makes a few percent in a cache, and many sets even that out.
        sample_ns: What a sample of the incumbent takes at least, as far as `most_sets` allows: every call of
            a sample has a buffer set of its own.
        kept: Samples kept of each lane in a round, at least.
        most_kept: And at most, for problems so small that a round would be over in no time. Their times
            vary most, and all shapes count the same.
        round_ns: Work of a lane in a round, as far as `most_kept` allows.
        early_look: Rounds of the screening; who is SLOWER then, or cannot be FASTER, is let go.
        looks: Rounds after which a verdict is tried.
        abandon: Slower than the incumbent by this factor: no benchmark.
        noise_rounds: Rounds of an incumbent against itself, at most.
        noise_s: Work in them of the first incumbent; never fewer rounds than the first look.
        later_noise_s: The same for a later one.
        reference_every: The reference takes part in one of so many rounds.
        confirm_groups: Fresh process groups of the confirmation.
        confirm_rounds: Rounds in each of them; half as many once the difference is plain.
        graph_below_ns: Shorter calls of one rank are timed as one CUDA graph for each sample, if all lanes
            can be captured; 0 for never. One by one they take up to 0.2 us more or less by the stream, and
            steadily, so pairs of samples do not even it out.
        benchmark_s: Limit for screening and benchmark together.
        least_delta: Smallest log-ratio that may count as a difference.
        library_factor: Faster than the best library by more than this: quarantined.
    """

    sets: int = 3
    most_sets: int = 64
    rotation_bytes: int = 96 << 20
    sample_ns: int = 3_000_000
    kept: int = 3
    most_kept: int = 9
    round_ns: int = 40_000_000
    early_look: int = 4
    looks: tuple[int, ...] = (11, 22, 44)
    abandon: float = 1.5
    noise_rounds: int = 44
    noise_s: float = 16.0
    later_noise_s: float = 8.0
    reference_every: int = 5
    confirm_groups: int = 3
    confirm_rounds: int = 4
    graph_below_ns: int = 0
    benchmark_s: float = 120.0
    least_delta: float = 0.01
    library_factor: float = 3.0

    def samples(self, calls: int, call_ns: float) -> int:
        """Returns the number of kept samples of each lane in a round."""
        wanted = math.ceil(self.round_ns / max(1.0, calls * call_ns))
        return max(self.kept, min(self.most_kept, wanted))

    def in_graph(self, call_ns: float, ranks: int) -> bool:
        """Whether calls that take so long are timed as a graph."""
        return ranks == 1 and call_ns < self.graph_below_ns

    def rotation(self, set_bytes: int, calls: int = 1) -> int:
        """Returns the number of buffer sets for a problem, of `set_bytes` over all ranks."""
        roomy = self.rotation_bytes // max(1, set_bytes)
        return min(self.most_sets, max(self.sets, calls, min(roomy, _MANY_SETS)))


GPU_PROTOCOL = TimingProtocol(
    sample_ns=2_000_000, most_kept=5, round_ns=5_000_000, graph_below_ns=100_000
)
"""A GPU's timer between gate and stamp is exact to a microsecond and nothing else runs: less is enough."""


class LaneFailure(Exception):
    """The group of a lane failed in a burst."""

    def __init__(self, lane: Lane, error: RankFailure) -> None:
        super().__init__(error.reason)
        self.lane = lane
        self.error = error


class WrongOutput(Exception):
    """A timed call left a wrong output behind; `how` says what was special of its sample, if anything was."""

    def __init__(self, lane: Lane, report: Report, how: str = "") -> None:
        super().__init__(report.reason + how)
        self.lane = lane
        self.report = report
        self.how = how


class Timer:
    """Takes bursts and rounds.

    Args:
        protocol: Numbers.
        machine: Gives the lock under which a burst runs alone on the machine.
        checkpoint: Called between bursts; raises if the evaluation is to end.
        readings: Asks the GPUs, between samples of some rounds.
    """

    def __init__(
        self,
        protocol: TimingProtocol,
        machine: Callable[[], AbstractContextManager[None]],
        checkpoint: Callable[[], None],
        readings: Readings = no_readings,
    ) -> None:
        self._readings = readings
        self._watched_at = -math.inf
        self.protocol = protocol
        self._machine = machine
        self._checkpoint = checkpoint

    def burst(
        self,
        lane: Lane,
        calls: int,
        *,
        kept: int | None = None,
        check: bool = False,
        graph: bool = False,
    ) -> Burst:
        """Takes samples of one lane that is set up; the first is discarded.

        Args:
            lane: Who runs.
            calls: Calls in a sample.
            kept: Kept samples; the protocol's by default.
            check: Whether the judge looks at one of the timed samples. The kernel cannot know which.
            graph: Whether the calls of a sample are one CUDA graph, where the lane can be captured.

        Raises:
            WrongOutput: The judge found something.
            LaneFailure: The group failed.
        """
        count = 1 + (self.protocol.kept if kept is None else kept)
        chosen = secrets.randbelow(count) if check else -1
        graph = graph and lane.graph_safe
        samples = [self._sample(lane, calls, index == chosen, graph) for index in range(count)]
        return Burst.of(samples[1:])

    def round(
        self,
        lanes: Sequence[Lane],
        calls: int,
        *,
        turned: bool = False,
        discard: Sequence[Lane] = (),
        checked: Sequence[Lane] = (),
        kept: int | None = None,
        graph: bool = False,
    ) -> list[Burst]:
        """Takes the samples of one round: the lanes in turn, in alternating order.

        Args:
            lanes: Who runs, set up for the same shape.
            calls: Calls in a sample.
            turned: Whether the round begins with the last of them.
            discard: Those whose first sample is not kept.
            checked: Those of whose timed samples the judge looks at one.
            kept: Kept samples of each; the protocol's by default.
            graph: Whether the calls of a sample are one CUDA graph.

        Returns:
            A burst for each lane.

        Raises:
            WrongOutput: The judge found something.
            LaneFailure: A group failed.
        """
        count = kept or self.protocol.kept
        chosen = [secrets.randbelow(count) if lane in checked else -1 for lane in lanes]
        samples: list[list[Sample]] = [[] for _ in lanes]
        with self._machine():
            for lane in discard:
                if graph and not lane.called:
                    self._sample(lane, 1, False, False)
                self._sample(lane, calls, False, graph)
            watched = self._watched_turn(count)
            watch = Watch(no_readings, len(lanes))
            for turn in range(count):
                if turn == watched:
                    watch = Watch(self._readings, len(lanes))
                order = range(len(lanes))
                for place in reversed(order) if (turn + turned) % 2 else order:
                    sample = self._sample(lanes[place], calls, turn == chosen[place], graph)
                    if turn == watched:
                        watch.sampled(place, sample)
                    samples[place].append(sample)
        return [Burst.of(taken, watch.burst(place)) for place, taken in enumerate(samples)]

    def _watched_turn(self, count: int) -> int:
        """The turn of this round in which the GPUs are read, or -1: a reading takes longer than a sample."""
        now = time.monotonic()
        if now - self._watched_at < _WATCH_EVERY_S:
            return -1
        self._watched_at = now
        return count - 1

    def rounds(
        self,
        rounds: ShapeRounds,
        count: int,
        candidate: Lane,
        incumbent: Lane,
        reference: Lane | None,
        *,
        warm: bool = False,
        masked: bool = False,
        step: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Adds `count` rounds. One of the candidate's bursts, and at times another's, is verified.

        Args:
            rounds: Where they go.
            count: How many, at least one.
            candidate: Its lane, set up for the shape, as are the next.
            incumbent: Whom it is compared with.
            reference: The best baseline, which takes part in some rounds.
            warm: Whether candidate and incumbent have run just before, so that nothing is discarded.
            masked: Whether the candidate makes a further sample, between two rounds or behind them, which is
                not kept and in which nobody can work before its turn. The kernel cannot know which.
            step: Told how many rounds there are, after each.

        Raises:
            WrongOutput: The judge found something.
            LaneFailure: A group failed.
        """
        inspected, masked_at = secrets.randbelow(count), secrets.randbelow(count) if masked else -1
        trusted = secrets.randbelow(4 * count)  # incumbent and reference are looked at now and then
        ran = [candidate, incumbent] if warm else []
        for index in range(count):
            self._checkpoint()
            number = len(rounds.candidate)
            every = self.protocol.reference_every
            lanes = [candidate, incumbent]
            if reference is not None and number % every == every // 2:
                lanes.append(reference)
            checked = [
                lane for lane in lanes if index == (inspected if lane is candidate else trusted)
            ]
            bursts = self.round(
                lanes,
                rounds.calls,
                turned=number % 2 == 1,
                discard=[lane for lane in lanes if lane not in ran],
                checked=checked,
                kept=rounds.kept or None,
                graph=rounds.graph,
            )
            ran = lanes
            rounds.checked += len(checked)
            rounds.candidate.append(bursts[0])
            rounds.incumbent.append(bursts[1])
            rounds.reference.append(bursts[2] if len(bursts) > 2 else None)
            if index == masked_at and candidate.can_mask(rounds.calls):
                self._masked(candidate, rounds.calls)
                rounds.checked += 1
            step(len(rounds.candidate))

    def _sample(
        self, lane: Lane, calls: int, check: bool, graph: bool, *, may_be_late: bool = True
    ) -> Sample:
        sets = lane.next_sets(calls)
        late = check and may_be_late and lane.enqueues
        try:
            # Also before inputs that come late: who looks while calls are enqueued sees new ones each time.
            lane.fill(sets)
            sample = lane.sample(calls, late_fill=late, graph=graph)
        except RankFailure as error:
            raise LaneFailure(lane, error) from error
        if late and not sample.held:  # it waits for the device in `run`: nothing could be held back
            return self._sample(lane, calls, check, graph, may_be_late=False)
        if check:
            self._look(lane, sets, LATE if late else "")
        return sample

    def _masked(self, lane: Lane, calls: int) -> None:
        """A sample that is only for the judge, in which nobody can work before its turn."""
        sets = lane.next_sets(calls)
        with self._machine():
            try:
                lane.fill(sets)
                lane.sample(calls, masked=True)
            except RankFailure as error:
                raise LaneFailure(lane, error) from error
        self._look(lane, sets, MASKED)

    def _look(self, lane: Lane, sets: Sequence[int], how: str) -> None:
        report = lane.check([secrets.choice(sets)])
        if not report.passed:
            raise WrongOutput(lane, report, how)
