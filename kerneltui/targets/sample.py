"""What a number of back-to-back calls took: as one rank saw it, and over all ranks."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RankSample", "Sample"]


@dataclass(frozen=True, slots=True)
class RankSample:
    """What one rank saw of one sample, in nanoseconds.

    Clock readings are of CLOCK_MONOTONIC. A GPU's are of its own timer, set so that the start gate,
    which all ranks pass together, lies at one moment of CLOCK_MONOTONIC for all of them.

    Attributes:
        start_ns: Before the first call, after the gate and the rank's own delay.
        call_ends_ns: After each call; on a GPU after the last one alone, unless asked for more.
        ticks_ns: The same interval by another clock, 0 where there is none: the processor's cycle
            counter, or for a GPU the clock of its host.
        cpu_ns: Processor time of all threads of the process in the interval.
        minor_faults: Page faults in the interval.
        involuntary_switches: Times the scheduler took a processor away.
        threads_before: Threads of the process before the calls.
        threads_after: Threads of the process after the calls.
        enqueue_ns: Of a GPU: time of the host in which the calls were enqueued behind the gate.
        unheld: Of a GPU: the gate opened before that, since a call waited for the device.
    """

    start_ns: int
    call_ends_ns: tuple[int, ...]
    ticks_ns: int
    cpu_ns: int
    minor_faults: int
    involuntary_switches: int
    threads_before: int
    threads_after: int
    enqueue_ns: int = 0
    unheld: bool = False

    @property
    def end_ns(self) -> int:
        """After the last call."""
        return self.call_ends_ns[-1]


@dataclass(frozen=True, slots=True)
class Sample:
    """A number of back-to-back calls on all ranks.

    Attributes:
        calls: Calls per rank.
        first_set: Buffer set of the first call; the next calls take the next sets, in rotation.
        epoch: Epoch of the first call.
        ranks: What each rank saw.
        wall_ns: From the engine's request to the last answer, by the engine's own clock.
        slack_ns: How far the clocks of two ranks may lie apart.
        clock_conflict: One line if clocks contradict each other (a tampered timer), else None.
    """

    calls: int
    first_set: int
    epoch: int
    ranks: tuple[RankSample, ...]
    wall_ns: int
    clock_conflict: str | None
    slack_ns: int = 0

    @property
    def elapsed_ns(self) -> int:
        """From the earliest start to the latest end over all ranks."""
        return max(r.end_ns for r in self.ranks) - min(r.start_ns for r in self.ranks)

    @property
    def duration_ns(self) -> float:
        """Time of one call: `elapsed_ns` over the number of calls."""
        return self.elapsed_ns / self.calls

    @property
    def enqueue_ns(self) -> int:
        """Time in which calls were enqueued and nothing ran, on the slowest rank."""
        return max(r.enqueue_ns for r in self.ranks)

    @property
    def held(self) -> bool:
        """Whether no rank's gate opened before all its calls were enqueued."""
        return not any(r.unheld for r in self.ranks)

    @property
    def skew_ns(self) -> int:
        """How far apart the ranks started."""
        return max(r.start_ns for r in self.ranks) - min(r.start_ns for r in self.ranks)
