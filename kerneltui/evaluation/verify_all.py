"""A kernel on all shapes, without timing: what `kerneltui verify` asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kerneltui.evaluation.launch_shapes import launches_on, main_shapes
from kerneltui.evaluation.outcome import Step, Update, fault_of
from kerneltui.evaluation.stand import Stand
from kerneltui.evaluation.verify import Tally, VerifyPlan, verify_idle, verify_shape
from kerneltui.model.kernel import Kernel
from kerneltui.model.measurement import Stage
from kerneltui.targets.errors import RankFailure
from kerneltui.targets.port import Build, GroupRole

__all__ = ["verify_all"]


def verify_all(
    stand: Stand,
    kernel: Kernel,
    build: Build,
    report: Callable[[Update], None],
    launched: Callable[[Mapping[str, Any]], None],
) -> str:
    """Verifies a kernel on the shapes that are not for benches alone; what was checked, in one line.

    Args:
        stand: Target and judge, which are ready.
        kernel: Which.
        build: What the compiler made of it.
        report: Told of every shape.
        launched: Told of the launches of main shapes, for each number of ranks, if the target knows any.

    Raises:
        KernelFault: The kernel is refused.
        Interrupted: The end was asked for.
    """
    tally = Tally()
    wanted = [shape for shape in stand.workload.shapes if set(shape.tags) - {"bench"}]
    for ranks in sorted({shape.ranks for shape in wanted}):
        lane = stand.open_kernel(GroupRole.CANDIDATE, build, kernel.runtime, ranks, Stage.VERIFY)
        try:
            shapes = [shape for shape in wanted if shape.ranks == ranks]
            for index, shape in enumerate(shapes):
                report(Step(Stage.VERIFY, shape.name, index, len(shapes)))
                plan = VerifyPlan.for_shape(shape)
                verify_shape(lane, shape, plan, tally, stand.checkpoint)
                if index == 0:
                    verify_idle(lane)
                lane.teardown()
            main = main_shapes(shape for shape in shapes if "tune" in shape.tags)
            told = launches_on(stand, build, {ranks: lane}.get, main)
            if told:
                launched(told)
        except RankFailure as error:
            raise fault_of(error, Stage.VERIFY) from error
        finally:
            stand.release(lane)
    return tally.note
