"""After a fault on a device: one more run, with launches made one at a time, to name the one that fails.

An error of a GPU comes when it comes, some launches after the one that made it. So the kernel is built again
by a toolchain that can (`LaunchTracer`), runs the shape on which it failed in fresh ranks, and says on
standard error which launch broke off or never ended. A Python kernel runs as it is, with a host that waits
for each launch, so its own line is in the error. Nothing here is timed, and nothing that is found decides: it
is a hint for whoever repairs the kernel.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from kerneltui.evaluation.judge_client import JudgeFailure
from kerneltui.evaluation.kernel_text import element_define, kernel_text
from kerneltui.evaluation.lane import Lane
from kerneltui.evaluation.outcome import EvaluationError, Interrupted, KernelFault, fault_of
from kerneltui.evaluation.stand import COMPILE_LIMIT_S, Stand
from kerneltui.evaluation.values import ValueClass
from kerneltui.model.kernel import Kernel, Language
from kerneltui.model.measurement import FailureKind
from kerneltui.model.workload import Shape
from kerneltui.targets.diagnosis import one_line
from kerneltui.targets.errors import RankFailure, TargetError
from kerneltui.targets.patterns import Poison
from kerneltui.targets.port import Build, GroupRole, Limits

__all__ = ["LaunchTracer", "explain_fault", "traced_lines"]

MARK = "[launch] "
"""How a line of a traced kernel begins."""

_CALLS = 8
_RUN_S = 30.0
_SETS = 3
_LIMITS = Limits(setup_s=30.0, first_call_s=20.0)
_WAITING = "has not ended"
_SHOWN = 2


@runtime_checkable
class LaunchTracer(Protocol):
    """A toolchain that can build a kernel which says which of its launches fails."""

    def compile_traced(
        self, source_text: str, *, defines: Mapping[str, str] | None = None, limit_s: float = 120.0
    ) -> Build:
        """Builds it; lines on standard error begin with `[launch] `.

        Raises:
            CompileFailure: It does not build.
        """
        ...


def explain_fault(stand: Stand, kernel: Kernel, shape: Shape, fault: KernelFault) -> KernelFault:
    """The same fault, with the launch that failed in its reason and its log, if that can be told.

    Args:
        stand: Target and judge; no group of the kernel may be open.
        kernel: What failed.
        shape: On which shape.
        fault: What is known.

    Raises:
        Interrupted: The end was asked for.
    """
    if not fault.in_launch or not _can_trace(stand, kernel, fault):
        return fault
    try:
        lines = _Hunt(stand, kernel, shape, fault).run()
    except Interrupted:
        raise
    except (EvaluationError, TargetError, JudgeFailure) as error:
        stand.checkpoint()  # what was killed on request explains nothing
        lines = [f"not told which launch: {error}"]
    found = "; ".join(lines[:_SHOWN])
    text = "\n".join(["Launches made one at a time, on the same shape:", *lines])
    return KernelFault(
        fault.stage,
        fault.kind,
        one_line(f"{fault.reason}; {found}"),
        "\n".join(part for part in (fault.log, text) if part),
    )


def traced_lines(written: str) -> list[str]:
    """What a traced kernel said in an output, each line once; errors before launches that never ended."""
    lines = [
        one_line(line.removeprefix(MARK)) for line in written.splitlines() if line.startswith(MARK)
    ]
    return sorted(dict.fromkeys(lines), key=lambda line: _WAITING in line)


def _can_trace(stand: Stand, kernel: Kernel, fault: KernelFault) -> bool:
    if kernel.language is Language.PYTHON:
        # A host that waits for a launch without an end cannot say where it waits.
        return stand.target.name == "cuda" and fault.kind is not FailureKind.HANG
    return isinstance(stand.target.toolchain, LaunchTracer)


class _Hunt:
    def __init__(self, stand: Stand, kernel: Kernel, shape: Shape, fault: KernelFault) -> None:
        self._stand = stand
        self._kernel = kernel
        self._shape = shape
        self._fault = fault

    def run(self) -> list[str]:
        """Lines that say what was found; never none."""
        build, how = self._build()
        lane = self._stand.open_kernel(
            GroupRole.CANDIDATE,
            build,
            self._kernel.runtime,
            self._shape.ranks,
            self._fault.stage,
            how={"limits": _LIMITS, **how},
        )
        failure: RankFailure | None = None
        try:
            self._call(lane)
        except RankFailure as error:
            failure = error
        finally:
            self._stand.release(lane)
        if failure is not None and isinstance(fault_of(failure, self._fault.stage), Interrupted):
            raise Interrupted(failure.reason)
        said = traced_lines("\n".join(part.text for part in lane.group.output()))
        if said:
            return said
        if failure is not None:
            return [failure.reason]
        return ["it did not fail again with launches made one at a time: timing or values matter"]

    def _build(self) -> tuple[Build, Mapping[str, Any]]:
        toolchain = self._stand.target.toolchain
        if self._kernel.language is Language.PYTHON:
            return self._stand.build(self._kernel), {"blocking": True}
        assert isinstance(toolchain, LaunchTracer)
        text, defines = kernel_text(self._kernel), element_define(self._stand.workload.dtype)
        return toolchain.compile_traced(text, defines=defines, limit_s=COMPILE_LIMIT_S), {}

    def _call(self, lane: Lane) -> None:
        """Some calls on fresh inputs; a fault need not be in the first."""
        lane.setup(self._shape, _SETS)
        end = time.monotonic() + _RUN_S
        for _ in range(_CALLS):
            self._stand.checkpoint()
            lane.fill(lane.next_sets(1), ValueClass.NATURAL, Poison.NAN)
            lane.run()
            if time.monotonic() > end:
                break
        lane.teardown()
