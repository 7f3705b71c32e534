"""What a candidate launches on the shapes that matter: grid, shared memory, CTAs on an SM, waves and tail.

The compiler does not know how its kernels are launched, and the dynamic shared memory of a launch decides
how many CTAs fit. So a call is captured in a group that has verified and timed the kernel and is about to
end: nothing that is timed can be touched by it, and whatever goes wrong in it is no fault of the kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from kerneltui.evaluation.lane import Lane
from kerneltui.evaluation.stand import Stand
from kerneltui.model.workload import Shape
from kerneltui.targets.errors import RankFailure, TargetError
from kerneltui.targets.port import Build
from kerneltui.targets.python import is_python

__all__ = ["LaunchReader", "launches_on", "main_shapes"]

_SETS = 3
_SECONDS = 1.0
_LONGEST = 300


@runtime_checkable
class LaunchReader(Protocol):
    """A toolchain whose kernels are launched on a device."""

    def launch_record(self, answer: Mapping[str, Any], multiprocessors: int) -> Mapping[str, Any]:
        """What a rank told of the launches of a call, with how they fit, as plain data.

        Raises:
            TargetError: It cannot be.
        """
        ...


def main_shapes(shapes: Iterable[Shape]) -> list[Shape]:
    """Shapes with the most work first."""

    def work(shape: Shape) -> int:
        total = 1
        for value in shape.dimensions.values():
            total *= value
        return total

    return sorted(shapes, key=work, reverse=True)


def launches_on(
    stand: Stand, build: Build, lane_for: Callable[[int], Lane | None], shapes: Iterable[Shape]
) -> Mapping[str, Any]:
    """Captures a call on shapes, until some time has gone; for the record of an evaluation.

    Args:
        stand: Target and judge.
        build: The kernel.
        lane_for: A lane with nothing set up, for a number of ranks; it must make no call after this.
        shapes: In this order.

    Returns:
        "launches", by shape, and "unread", why those of a shape cannot be told. Empty on a target that
        launches nothing, and for Python kernels.
    """
    toolchain = stand.target.toolchain
    if not isinstance(toolchain, LaunchReader) or is_python(build.library):
        return {}
    found: list[dict[str, Any]] = []
    until = time.monotonic() + _SECONDS
    for shape in shapes:
        lane = lane_for(shape.ranks)
        if lane is None:
            continue
        try:
            lane.setup(shape, _SETS)
            told = toolchain.launch_record(lane.launches(), stand.target.multiprocessors)
            found.append({"shape": shape.name, **told})
            lane.teardown()
        except (RankFailure, TargetError) as error:
            stand.checkpoint()  # what was killed on request failed for that alone
            return {"launches": found, "unread": f"{shape.name}: {error}"[:_LONGEST]}
        if time.monotonic() > until:
            break
    return {"launches": found}
