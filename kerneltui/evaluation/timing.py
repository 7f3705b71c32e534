"""Rounds: bursts of candidate, incumbent and reference in turn, reduced to paired log-ratios (DESIGN 9).

A burst is one discarded sample and `kept` more; its value is their median. A sample is the time from
the first rank's start to the last rank's end, over the number of calls: the slowest rank counts. Rounds
alternate their order (C I R, R I C, ...), so a drift of the machine cancels. Before every sample
the judge writes fresh inputs into exactly the buffer sets that it uses, outside of the timed window.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from kerneltui.evaluation.lane import Lane
from kerneltui.evaluation.values import Report
from kerneltui.targets.errors import RankFailure
from kerneltui.targets.port import Sample

_MANY_SETS = 16

__all__ = ["Burst", "LaneFailure", "ShapeRounds", "Timer", "TimingProtocol", "WrongOutput"]


@dataclass(frozen=True, slots=True)
class TimingProtocol:
    """Numbers of the timing.

    Attributes:
        sets: Buffer sets that calls rotate over, at least.
        most_sets: And at most, for calls so short that a sample takes many.
        rotation_bytes: Small problems rotate over more sets, up to so much memory: where the pages of a
            set happen to lie makes a few percent in a cache, and many sets even that out.
        sample_ns: Least work in a sample.
        kept: Samples kept of a burst.
        early_look: Rounds after which a candidate that is SLOWER without doubt is let go.
        looks: Rounds after which a verdict is tried.
        screen_rounds: Rounds of the screening, with one kept sample each.
        abandon: Slower than the incumbent by this factor: no benchmark.
        noise_rounds: Rounds of the first incumbent against itself, at most; a later one gets as many as
            the first look.
        noise_s: Time for them; never fewer rounds than the first look.
        reference_every: The reference takes part in one of so many rounds.
        confirm_groups: Fresh process groups of the confirmation.
        confirm_rounds: Rounds in each of them; half as many once the difference is plain.
        benchmark_s: Limit for screening and benchmark together.
        least_delta: Smallest log-ratio that may count as a difference.
        library_factor: Faster than the best library by more than this: quarantined.
    """

    sets: int = 3
    most_sets: int = 64
    rotation_bytes: int = 96 << 20
    sample_ns: int = 3_000_000
    kept: int = 3
    early_look: int = 4
    looks: tuple[int, ...] = (11, 22, 44)
    screen_rounds: int = 3
    abandon: float = 1.5
    noise_rounds: int = 22
    noise_s: float = 16.0
    reference_every: int = 5
    confirm_groups: int = 3
    confirm_rounds: int = 4
    benchmark_s: float = 120.0
    least_delta: float = 0.01
    library_factor: float = 3.0

    def rotation(self, set_bytes: int, calls: int = 1) -> int:
        """Returns the number of buffer sets for a problem, of `set_bytes` over all ranks."""
        roomy = self.rotation_bytes // max(1, set_bytes)
        return min(self.most_sets, max(self.sets, calls, min(roomy, _MANY_SETS)))


@dataclass(frozen=True, slots=True)
class Burst:
    """The kept samples of one burst, per call, in nanoseconds."""

    value_ns: float
    samples_ns: tuple[float, ...]
    ranks_ns: tuple[float, ...]
    gap_ns: float
    conflict: str

    @classmethod
    def of(cls, samples: list[Sample]) -> Burst:
        """Reduces the kept samples.

        Raises:
            ValueError: A time is not positive.
        """
        values = [sample.duration_ns for sample in samples]
        if not all(value > 0 and math.isfinite(value) for value in values):
            raise ValueError(f"times of {values} ns")
        count = len(samples[0].ranks)
        ranks = tuple(
            median((s.ranks[r].end_ns - s.ranks[r].start_ns) / s.calls for s in samples)
            for r in range(count)
        )
        return cls(
            value_ns=median(values),
            samples_ns=tuple(values),
            ranks_ns=ranks,
            gap_ns=median(s.wall_ns - s.elapsed_ns for s in samples),
            conflict=next((s.clock_conflict for s in samples if s.clock_conflict), ""),
        )


class LaneFailure(Exception):
    """The group of a lane failed in a burst."""

    def __init__(self, lane: Lane, error: RankFailure) -> None:
        super().__init__(error.reason)
        self.lane = lane
        self.error = error


class WrongOutput(Exception):
    """A timed call left a wrong output behind."""

    def __init__(self, lane: Lane, report: Report) -> None:
        super().__init__(report.reason)
        self.lane = lane
        self.report = report


@dataclass
class ShapeRounds:
    """The rounds of one shape: a burst of each lane per round, or None where it sat out."""

    shape: str
    calls: int
    candidate: list[Burst] = field(default_factory=list[Burst])
    incumbent: list[Burst] = field(default_factory=list[Burst])
    reference: list[Burst | None] = field(default_factory=list[Burst | None])
    checked: int = 0

    @property
    def log_ratios(self) -> list[float]:
        """log(candidate / incumbent), round by round."""
        return [
            math.log(c.value_ns / i.value_ns)
            for c, i in zip(self.candidate, self.incumbent, strict=True)
        ]

    @property
    def reference_ratios(self) -> list[float]:
        """log(incumbent / reference) of the rounds in which the reference took part."""
        return [
            math.log(i.value_ns / r.value_ns)
            for i, r in zip(self.incumbent, self.reference, strict=True)
            if r is not None
        ]

    @property
    def candidate_ns(self) -> float:
        """Median over rounds."""
        return median(burst.value_ns for burst in self.candidate)

    @property
    def incumbent_ns(self) -> float:
        """Median over rounds."""
        return median(burst.value_ns for burst in self.incumbent)

    @property
    def conflict(self) -> str:
        """A contradiction between clocks in more than one of the candidate's bursts, or nothing.

        A single one may be the machine's doing: a stolen moment between two readings.
        """
        found = [burst.conflict for burst in self.candidate if burst.conflict]
        return found[0] if len(found) > 1 else ""

    def hidden_ns(self) -> float:
        """Time that the engine's clock saw and the candidate's samples did not, beyond the incumbent's.

        Both groups answer through the same code, so what a request costs beside the calls cancels.
        """
        own = median(burst.gap_ns for burst in self.candidate)
        return own - median(burst.gap_ns for burst in self.incumbent)

    def to_record(self) -> dict[str, Any]:
        """Per-round medians per lane and rank, in whole nanoseconds."""

        def rows(bursts: list[Any]) -> list[Any]:
            return [
                None if b is None else [round(b.value_ns), *(round(r) for r in b.ranks_ns)]
                for b in bursts
            ]

        return {
            "shape": self.shape,
            "calls": self.calls,
            "checked": self.checked,
            "candidate": rows(self.candidate),
            "incumbent": rows(self.incumbent),
            "reference": rows(self.reference),
        }

    def to_raw(self) -> dict[str, Any]:
        """Every kept sample, in whole nanoseconds."""

        def rows(bursts: list[Any]) -> list[Any]:
            return [None if b is None else [round(s) for s in b.samples_ns] for b in bursts]

        return {
            "shape": self.shape,
            "candidate": rows(self.candidate),
            "incumbent": rows(self.incumbent),
            "reference": rows(self.reference),
        }


class Timer:
    """Takes bursts and rounds.

    Args:
        protocol: Numbers.
        machine: Gives the lock under which a burst runs alone on the machine.
        checkpoint: Called between bursts; raises if the evaluation is to end.
    """

    def __init__(
        self,
        protocol: TimingProtocol,
        machine: Callable[[], AbstractContextManager[None]],
        checkpoint: Callable[[], None],
    ) -> None:
        self.protocol = protocol
        self._machine = machine
        self._checkpoint = checkpoint

    def burst(
        self, lane: Lane, calls: int, *, kept: int | None = None, check: bool = False
    ) -> Burst:
        """Takes one burst of a lane that is set up.

        Args:
            lane: Who runs.
            calls: Calls in a sample.
            kept: Kept samples; the protocol's by default.
            check: Whether the judge looks at one of the timed samples. The kernel cannot know which.

        Raises:
            WrongOutput: The judge found something.
            LaneFailure: The group failed.
        """
        count = 1 + (self.protocol.kept if kept is None else kept)
        chosen = secrets.randbelow(count) if check else -1
        samples: list[Sample] = []
        for index in range(count):
            sets = lane.next_sets(calls)
            lane.fill(sets)
            try:
                samples.append(lane.sample(calls))
            except RankFailure as error:
                raise LaneFailure(lane, error) from error
            if index == chosen:
                report = lane.check([secrets.choice(sets)])
                if not report.passed:
                    raise WrongOutput(lane, report)
        return Burst.of(samples[1:])

    def rounds(
        self,
        rounds: ShapeRounds,
        count: int,
        candidate: Lane,
        incumbent: Lane,
        reference: Lane | None,
        *,
        kept: int | None = None,
        step: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Adds `count` rounds. One of the candidate's bursts, and at times another's, is verified."""
        calls = rounds.calls
        inspected = secrets.randbelow(count)
        trusted = secrets.randbelow(4 * count)  # incumbent and reference are looked at now and then
        for index in range(count):
            self._checkpoint()
            number = len(rounds.candidate)
            with_reference = reference is not None and (
                number % self.protocol.reference_every == self.protocol.reference_every // 2
            )
            lanes = [candidate, incumbent]
            if with_reference and reference is not None:
                lanes.append(reference)
            if number % 2:
                lanes.reverse()
            found: dict[int, Burst] = {}
            with self._machine():
                for lane in lanes:
                    check = index == (inspected if lane is candidate else trusted)
                    found[id(lane)] = self.burst(lane, calls, kept=kept, check=check)
                    rounds.checked += check
            rounds.candidate.append(found[id(candidate)])
            rounds.incumbent.append(found[id(incumbent)])
            rounds.reference.append(found.get(id(reference)))
            step(len(rounds.candidate))
