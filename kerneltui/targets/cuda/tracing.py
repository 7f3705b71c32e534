"""What makes a second build of a kernel say which of its launches fails; see `launch_trace.cpp`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["TRACED_NAMES", "trace_flags", "trace_sources"]

TRACED_NAMES: Mapping[str, str] = {
    "kerneltui_setup": "kerneltui_traced_setup",
    "kerneltui_run": "kerneltui_traced_run",
}
"""Macros: functions of the contract under other names, so that the trace stands in front of them."""

_FILE = "launch_trace.cpp"
_WRAPPED = (
    "__cudaLaunchKernel",  # what the stubs of nvcc 13 call; older ones call the next
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaLaunchCooperativeKernel",
    "cudaGraphLaunch",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "cudaStreamDestroy",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
)


def trace_sources() -> dict[str, str]:
    """Files to compile beside the kernel, by name."""
    return {_FILE: (Path(__file__).parent / _FILE).read_text()}


def trace_flags() -> list[str]:
    """Options of the linker, one by one: launches of the kernel and ends of streams go to the trace."""
    return [f"--wrap={name}" for name in _WRAPPED]
