"""What a GPU can do at best while its peers do the same: a quick measurement by vendor functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from kerneltui.evaluation.inputs import torch_dtype

__all__ = ["measure_rates"]

_GEMM_SHAPES = ((4096, 8192, 8192), (8192, 8192, 8192), (8192, 16384, 16384))
_COPY_BYTES = 1 << 30
_REPEATS = 10
_WARM_S = 0.1
_PAUSE_S = 0.01  # bursts have pauses too, in which inputs are written; without any, clocks go down
_SUSTAINED_S = 2.0


def measure_rates(devices: Sequence[int], rank: int, dtype: str) -> dict[str, Any]:
    """Measures the rates of one rank; all ranks are to be asked at the same time.

    Args:
        devices: The GPU of each rank.
        rank: Whose are measured.
        dtype: Element type of the products.

    Returns:
        Per second: `flops` of the best of some vendor products in bursts, `sustained_flops` of one that
        is repeated without a pause until clocks have settled, `memory_bytes` read and written by a copy
        on the device, `link_bytes` of a copy to the next rank's device (0 with one rank).
    """
    here = torch.device("cuda", devices[rank])
    torch.cuda.set_device(here)
    products = [_product(shape, here, torch_dtype(dtype)) for shape in _GEMM_SHAPES]
    work = [2.0 * m * n * k for m, n, k in _GEMM_SHAPES]
    flops = max(w / _best_s(call) for w, call in zip(work, products, strict=True))
    sustained = work[0] / _sustained_s(products[0])
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=here)
    goal = torch.empty_like(source)
    memory = 2.0 * _COPY_BYTES / _best_s(lambda: goal.copy_(source))
    link = 0.0
    if len(devices) > 1:
        there = torch.device("cuda", devices[(rank + 1) % len(devices)])
        far = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=there)
        link = _COPY_BYTES / _best_s(lambda: far.copy_(source))
    return {
        "flops": flops,
        "sustained_flops": sustained,
        "memory_bytes": memory,
        "link_bytes": link,
    }


def _product(
    shape: tuple[int, int, int], where: torch.device, kind: torch.dtype
) -> Callable[[], Any]:
    m, n, k = shape
    # Random values: zeros draw less power, and so run faster than anything real.
    a = torch.randn(m, k, device=where, dtype=torch.float32).to(kind)
    b = torch.randn(k, n, device=where, dtype=torch.float32).to(kind)
    return partial(torch.matmul, a, b, out=torch.empty(m, n, device=where, dtype=kind))


def _sustained_s(work: Callable[[], Any]) -> float:
    """Seconds of one call when it is repeated without a pause: the median of the later half."""
    events: list[Any] = []
    begin = time.monotonic()
    while time.monotonic() - begin < _SUSTAINED_S:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        events.append(event)
        work()
        if len(events) > 2:
            events[-3].synchronize()  # two are always waiting behind the one that runs
    torch.cuda.synchronize()
    later = events[len(events) // 2 :]
    return median(a.elapsed_time(b) for a, b in pairwise(later)) / 1e3


def _best_s(work: Callable[[], Any]) -> float:
    """Seconds of one call in a burst, the best of several."""
    until = time.monotonic() + _WARM_S
    while time.monotonic() < until:
        work()
        torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(_REPEATS):
        time.sleep(_PAUSE_S)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times)
