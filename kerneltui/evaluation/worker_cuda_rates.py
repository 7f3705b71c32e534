"""What a GPU can do at best while its peers do the same: a quick measurement by vendor functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kerneltui.evaluation.inputs import torch_dtype

__all__ = ["measure_rates"]

_GEMM_EDGE = 8192
_COPY_BYTES = 1 << 30
_REPEATS = 10
_WARM_S = 0.2


def measure_rates(devices: Sequence[int], rank: int, dtype: str) -> dict[str, Any]:
    """Measures the rates of one rank; all ranks are to be asked at the same time.

    Args:
        devices: The GPU of each rank.
        rank: Whose are measured.
        dtype: Element type of the products.

    Returns:
        Per second: `flops` of a square vendor product, `memory_bytes` read and written by a copy on
        the device, `link_bytes` of a copy to the next rank's device (0 with one rank).
    """
    here = torch.device("cuda", devices[rank])
    torch.cuda.set_device(here)
    kind = torch_dtype(dtype)
    # Random values: zeros draw less power, and so run faster than anything real.
    a = torch.randn(_GEMM_EDGE, _GEMM_EDGE, device=here, dtype=torch.float32).to(kind)
    b = torch.randn(_GEMM_EDGE, _GEMM_EDGE, device=here, dtype=torch.float32).to(kind)
    c = torch.empty_like(a)
    flops = 2.0 * _GEMM_EDGE**3 / _best_s(lambda: torch.matmul(a, b, out=c))
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=here)
    goal = torch.empty_like(source)
    memory = 2.0 * _COPY_BYTES / _best_s(lambda: goal.copy_(source))
    link = 0.0
    if len(devices) > 1:
        there = torch.device("cuda", devices[(rank + 1) % len(devices)])
        far = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=there)
        link = _COPY_BYTES / _best_s(lambda: far.copy_(source))
    return {"flops": flops, "memory_bytes": memory, "link_bytes": link}


def _best_s(work: Callable[[], Any]) -> float:
    """Seconds of one call, the best of several, after a time in which clocks settle."""
    until = time.monotonic() + _WARM_S
    while time.monotonic() < until:
        work()
        torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(_REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times)
