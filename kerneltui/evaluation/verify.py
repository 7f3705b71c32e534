"""Verification: calls on secret inputs of every class, on every kind of shape, before any timing."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from kerneltui.evaluation.guards import causality_broken, left_running, producers
from kerneltui.evaluation.lane import MASKED, Lane
from kerneltui.evaluation.outcome import EvaluationError, KernelFault, fault_of
from kerneltui.evaluation.values import FaultKind, Report, ValueClass
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.model.workload import Shape
from kerneltui.targets.errors import MemoryFailure, RankFailure
from kerneltui.targets.patterns import Poison
from kerneltui.targets.sample import Sample

__all__ = ["Tally", "VerifyPlan", "mismatch", "verify_idle", "verify_shape"]

_KINDS = {FaultKind.INPUT_CHANGED: FailureKind.TAMPERING}
_SHIFT_STEP = 256
_MOST_CONFLICTS = 3


@dataclass(frozen=True, slots=True)
class VerifyPlan:
    """How much is tried on a shape.

    Attributes:
        sets: Buffer sets.
        classes: Value classes, one call each, on fresh inputs.
        edit: Whether a call follows in which a single element of the inputs changed.
        repeats: Further calls on one input, with outputs poisoned in between.
        back_to_back: Calls without a barrier in between, on a set each.
        all_sets: Whether all of these are compared, or one that the kernel cannot know.
        masked: Whether calls in a row follow whose inputs are wrong until the call before has ended, where
            the target can do that.
        late_ranks: Whether each rank in turn begins that much later than the others.
        most_delay_ns: Ranks start up to so much apart.
    """

    sets: int = 3
    classes: tuple[ValueClass, ...] = tuple(ValueClass)
    edit: bool = True
    repeats: int = 3
    back_to_back: int = 3
    all_sets: bool = True
    masked: bool = True
    late_ranks: bool = True
    most_delay_ns: int = 5_000_000

    @classmethod
    def for_shape(cls, shape: Shape, *, repeats: int = 3) -> VerifyPlan:
        """Everything on small shapes; on large ones the calls that only their size can spoil."""
        work = prod(shape.dimensions.values())
        if work <= 1 << 26:
            return cls(repeats=repeats)
        if work <= 1 << 28:
            return cls(classes=(ValueClass.NATURAL, ValueClass.EXACT), repeats=1, late_ranks=False)
        return cls(
            classes=(), edit=False, repeats=0, all_sets=False, masked=False, late_ranks=False
        )


@dataclass
class Tally:
    """What the verification of a candidate has seen, for its note."""

    calls: int = 0
    shapes: int = 0
    error: float = 0.0
    repeatable: bool = True
    threads_left: bool = False
    conflicts: int = 0
    conflict: str = ""
    classes: set[ValueClass] = field(default_factory=set[ValueClass])

    @property
    def note(self) -> str:
        """One line."""
        text = (
            f"{self.calls} calls on {self.shapes} shapes, {len(self.classes)} value classes; "
            f"largest error {100 * self.error:.0f} % of the tolerance"
        )
        if not self.repeatable:
            text += "; not bitwise repeatable"
        if self.threads_left:
            text += "; leaves threads behind"
        return text


def verify_shape(
    lane: Lane, shape: Shape, plan: VerifyPlan, tally: Tally, checkpoint: Callable[[], None]
) -> None:
    """Sets a lane up for a shape and verifies it; the lane stays set up.

    Raises:
        KernelFault: The kernel is wrong, or failed.
        HarnessFault: The ranks could not be started.
        Interrupted: The group was ended from outside.
        JudgeFailure: The judge failed.
    """
    try:
        lane.setup(shape, plan.sets, address_shift=_SHIFT_STEP * secrets.randbelow(8))
        _Verification(lane, plan, tally, checkpoint).run()
    except RankFailure as error:
        raise fault_of(error, Stage.VERIFY) from error
    except MemoryFailure as error:
        raise KernelFault(Stage.VERIFY, FailureKind.OUT_OF_MEMORY, str(error)) from error
    tally.shapes += 1


def verify_idle(lane: Lane) -> None:
    """Looks whether anything of the kernel still runs when nothing is asked of it.

    Raises:
        KernelFault: It does.
    """
    lane.thaw()
    share = left_running(lane.group.pids)
    lane.freeze()
    if share:
        raise KernelFault(
            Stage.VERIFY,
            FailureKind.TAMPERING,
            f"the kernel goes on working after run has returned: {100 * share:.0f} % of a core while idle",
        )


class _Verification:
    def __init__(
        self, lane: Lane, plan: VerifyPlan, tally: Tally, checkpoint: Callable[[], None]
    ) -> None:
        self._lane = lane
        self._plan = plan
        self._tally = tally
        self._checkpoint = checkpoint
        assert lane.shape is not None
        self._needed = producers(lane.workload, lane.shape)

    def run(self) -> None:
        """Goes through the plan."""
        order = list(self._plan.classes)
        secrets.SystemRandom().shuffle(order)
        for values in order:
            self._checkpoint()
            self._fresh_call(values)
        if self._plan.edit:
            self._again(edit=True)
        if self._plan.repeats:
            digests = {self._again() for _ in range(self._plan.repeats)}
            self._tally.repeatable &= len(digests) == 1
        if self._plan.late_ranks:
            for rank in range(self._lane.group.ranks):
                self._late(rank)
        if self._plan.back_to_back:
            self._checkpoint()
            self._in_a_row(self._plan.back_to_back)
        if self._plan.masked and self._lane.can_mask(self._plan.back_to_back):
            self._checkpoint()
            self._in_a_row(self._plan.back_to_back, masked=True)

    def _fresh_call(self, values: ValueClass) -> None:
        sets = self._lane.next_sets(1)
        self._lane.fill(sets, values, secrets.choice(list(Poison)))
        seen = self._call()
        self._require(self._lane.check(sets), seen)
        self._tally.classes.add(values)

    def _again(self, *, edit: bool = False) -> str:
        """Another call on a buffer set that was just used; returns a digest of its outputs."""
        sets = self._lane.next_sets(1)
        if edit:
            self._lane.fill(sets, ValueClass.NATURAL, Poison.PLAUSIBLE)
            self._call()
            self._lane.repeat_set(sets[0])
            self._lane.edit(sets)
        else:
            previous = (sets[0] - 1) % self._lane.sets
            self._lane.repeat_set(previous)
            sets = [previous]
            self._lane.poison(sets, secrets.choice(list(Poison)))
        seen = self._call()
        report = self._lane.check(sets, digest=True)
        self._require(report, seen)
        return report.digests[0]

    def _late(self, rank: int) -> None:
        """A call that one rank begins late: nobody may be done before it."""
        delays = [0] * self._lane.group.ranks
        delays[rank] = self._plan.most_delay_ns
        sets = self._lane.next_sets(1)
        self._lane.fill(sets, ValueClass.NATURAL, secrets.choice(list(Poison)))
        self._tally.calls += 1
        seen = self._lane.run(delays)
        self._require(self._lane.check(sets), seen)

    def _look_at(self, seen: Sample) -> None:
        """What ranks report must not contradict itself."""
        text = causality_broken(seen, self._needed)
        if text:
            raise KernelFault(Stage.VERIFY, FailureKind.MISMATCH, text)
        if seen.clock_conflict:
            # Some may be the machine's doing: a stolen moment between two clock readings.
            self._tally.conflicts += 1
            self._tally.conflict = seen.clock_conflict
            if self._tally.conflicts > max(_MOST_CONFLICTS, self._tally.calls // 10):
                raise KernelFault(Stage.VERIFY, FailureKind.TAMPERING, seen.clock_conflict)

    def _in_a_row(self, calls: int, *, masked: bool = False) -> None:
        sets = self._lane.next_sets(calls)
        self._lane.fill(sets, ValueClass.NATURAL, Poison.NAN)
        seen = self._lane.sample(calls, self._delays(), verifying=True, masked=masked)
        self._tally.calls += calls
        self._tally.classes.add(ValueClass.NATURAL)
        chosen = sets if self._plan.all_sets else [secrets.choice(sets)]
        self._require(self._lane.check(chosen), seen, MASKED if masked else "")

    def _call(self) -> Sample:
        seen = self._lane.run(self._delays() if secrets.randbelow(2) else ())
        self._tally.calls += 1
        # The first calls may start a pool; more threads after a later one are left behind by it.
        if self._lane.samples > 2 and any(r.threads_after > r.threads_before for r in seen.ranks):
            self._tally.threads_left = True
        return seen

    def _delays(self) -> list[int]:
        most = self._plan.most_delay_ns
        return [secrets.randbelow(most + 1) for _ in range(self._lane.group.ranks)]

    def _require(self, report: Report, seen: Sample, how: str = "") -> None:
        self._tally.error = max(self._tally.error, report.error)
        if not report.passed:
            raise mismatch(Stage.VERIFY, report, how)
        self._look_at(seen)


def mismatch(stage: Stage, report: Report, how: str = "") -> EvaluationError:
    """Turns what the judge found into the fault of a kernel; `how` ends its reason."""
    kind = _KINDS.get(report.faults[0].kind, FailureKind.MISMATCH)
    text = "\n".join(fault.text for fault in report.faults)
    return KernelFault(stage, kind, report.reason + how, text)
