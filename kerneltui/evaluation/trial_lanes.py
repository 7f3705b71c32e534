"""The groups of ranks that a trial has open: the candidate's, and the incumbent's of the confirmation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kerneltui.evaluation.lane import Lane
from kerneltui.evaluation.outcome import HarnessFault, KernelFault, fault_of
from kerneltui.evaluation.stand import Stand
from kerneltui.evaluation.timing import LaneFailure
from kerneltui.model.kernel import Kernel
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.model.workload import Shape
from kerneltui.targets.errors import MemoryFailure, RankFailure
from kerneltui.targets.port import Build, GroupRole

__all__ = ["TrialLanes"]


class TrialLanes:
    """Opens groups of two kernels, finds them again, and ends them.

    Args:
        stand: Where they run.
        candidate: The kernel that is tried.
        incumbent: The kernel on main.

    Attributes:
        output: What the candidate's ranks printed, of the group that ended last and printed anything.
    """

    def __init__(self, stand: Stand, candidate: Kernel, incumbent: Kernel) -> None:
        self._stand = stand
        self._kernels = {GroupRole.CANDIDATE: candidate, GroupRole.INCUMBENT: incumbent}
        self._open: list[Lane] = []
        self.output = ""

    def open(self, role: GroupRole, build: Build, ranks: int, stage: Stage) -> Lane:
        """Starts a group of one of the two kernels.

        Raises:
            KernelFault: The kernel cannot be loaded.
            HarnessFault: The group cannot be opened.
        """
        runtime = self._kernels[role].runtime
        lane = self._stand.open_kernel(role, build, runtime, ranks, stage)
        self._open.append(lane)
        return lane

    def find(self, role: GroupRole, ranks: int) -> Lane | None:
        """The group of a kernel with so many ranks, if one is open."""
        for lane in self._open:
            if lane.group.role is role and lane.group.ranks == ranks:
                return lane
        return None

    def found_or_opened(self, role: GroupRole, build: Build, ranks: int, stage: Stage) -> Lane:
        """The group of a kernel with so many ranks; started if there is none.

        Raises:
            KernelFault: The candidate cannot be loaded.
            HarnessFault: The group cannot be opened, or the incumbent not be loaded, which was once.
        """
        try:
            return self.find(role, ranks) or self.open(role, build, ranks, stage)
        except KernelFault as fault:
            if role is GroupRole.CANDIDATE:
                raise
            raise HarnessFault(f"the incumbent cannot be loaded any more: {fault}") from fault

    @contextmanager
    def blamed(self, lane: Lane, stage: Stage) -> Iterator[None]:
        """Tells what the candidate's group does wrong from what another's does.

        Raises:
            KernelFault: It was the candidate's.
            LaneFailure: It was another.
            Interrupted: The candidate's was ended from outside.
        """
        try:
            yield
        except RankFailure as error:
            if self.owns(lane):
                raise fault_of(error, stage) from error
            raise LaneFailure(lane, error) from error
        except MemoryFailure as error:
            if self.owns(lane):
                raise KernelFault(stage, FailureKind.OUT_OF_MEMORY, str(error)) from error
            raise

    def owns(self, lane: Lane) -> bool:
        """Whether a group is one of these and runs the candidate."""
        return lane in self._open and lane.group.role is GroupRole.CANDIDATE

    def candidate_shape(self) -> Shape | None:
        """What the candidate is set up for, if it is."""
        return next((lane.shape for lane in self._open if self.owns(lane) and lane.shape), None)

    def drop(self, lane: Lane) -> None:
        """Ends a group, unless it has ended."""
        if lane not in self._open:
            return
        self._open.remove(lane)
        self._stand.release(lane)
        if lane.group.role is GroupRole.CANDIDATE:
            printed = "\n".join(part.text for part in lane.group.output() if part.total)
            self.output = printed or self.output

    def close(self) -> None:
        """Ends all groups."""
        for lane in [*self._open]:
            self.drop(lane)
