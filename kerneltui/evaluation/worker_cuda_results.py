"""What the results of the harness mean that only GPUs have, in words."""

from __future__ import annotations

from kerneltui.evaluation.worker_kernel import CHarness, KernelError
from kerneltui.targets.errors import FailureKind

__all__ = ["check_result"]

# Of the harness, after those that all targets have.
_CUDA, _HUNG, _UNSETTLED, _OUT_OF_ORDER = 5, 6, 7, 8
_OUT_OF_MEMORY = 2
_HINTS = {
    1: "an argument of a CUDA call is wrong; so is asking for more shared memory than there is",
    2: "the GPU has no memory left",
    98: "a kernel was not compiled for this GPU",
    209: "a kernel was not compiled for this GPU",
    700: "a kernel read or wrote at an illegal address",
    701: "a launch asks for too many threads, registers or too much shared memory",
    702: "a kernel ran longer than the GPU allows",
    716: "a kernel read or wrote at a misaligned address",
    719: "a kernel broke off on the GPU",
    900: "short calls are captured into a graph; clear graph_safe if run cannot be",
    901: "short calls are captured into a graph; clear graph_safe if run cannot be",
    904: "short calls are captured into a graph: a stream that run forks must be joined again",
    905: "short calls are captured into a graph: run waits for an event of a call before",
    907: "short calls are captured into a graph: run waits for an event of a call before",
}


def check_result(harness: CHarness, result: int, code: int) -> None:
    """Looks at a result of the harness.

    Args:
        harness: Has the words of the failure.
        result: What its function returned.
        code: Of the error of the CUDA runtime, if there was one.

    Raises:
        KernelError: If it is one that only GPUs have.
    """
    if result == _HUNG:
        raise KernelError("the GPU did not finish the calls in time", FailureKind.HANG)
    if result == _UNSETTLED:
        raise KernelError(
            "the outputs changed after everything on the stream had run: a stream is not joined, "
            "or run does not wait for what its peers store"
        )
    if result == _OUT_OF_ORDER:
        raise KernelError(harness.reason)
    if result == _CUDA:
        hint = f": {_HINTS[code]}" if code in _HINTS else ""
        kind = FailureKind.OUT_OF_MEMORY if code == _OUT_OF_MEMORY else FailureKind.DEVICE
        raise KernelError(f"{harness.reason}{hint}", kind)
    if result:
        raise KernelError(f"the harness gave {result}, which this version does not know")
