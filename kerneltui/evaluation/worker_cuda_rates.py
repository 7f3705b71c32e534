"""What a GPU can do at best while its peers do the same: a quick measurement.

Products and copies are those of the vendor; stores into a peer's memory and flags are the harness's.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from kerneltui.evaluation.inputs import torch_dtype
from kerneltui.evaluation.worker_kernel import CHarness, KernelError

__all__ = ["measure_flag", "measure_rates"]

_GEMM_SHAPES = ((4096, 8192, 8192), (8192, 8192, 8192), (8192, 16384, 16384))
_COPY_BYTES = 1 << 30
_REPEATS = 10
_WARM_S = 0.1
_PAUSE_S = 0.01  # bursts have pauses too, in which inputs are written; without any, clocks go down
_SUSTAINED_S = 2.0
_STORE_CTAS = (8, 16, 32, 64, 132)
_BULK_CTAS = (8, 32, 132)
_STORE_BYTES = 256 << 20
_FEWER_REPEATS, _SHORTER_WARM_S = 4, 0.02
_BULK_CAPABILITY = (9, 0)
_FLAG_WAYS = 2000


def measure_rates(
    devices: Sequence[int], rank: int, dtype: str, harness: CHarness
) -> dict[str, Any]:
    """Measures the rates of one rank; all ranks are to be asked at the same time.

    Args:
        devices: The GPU of each rank.
        rank: Whose are measured.
        dtype: Element type of the products.
        harness: Stores into the memory of a peer.

    Returns:
        Per second: `flops` of the best of some vendor products in bursts, `sustained_flops` of one that
        is repeated without a pause until clocks have settled, `memory_bytes` read and written by a copy
        on the device, and `links`: bytes to the next rank's device by each way to get there, in words
        (empty with one rank).

    Raises:
        KernelError: If the peer cannot be reached.
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
    links: dict[str, float] = {}
    if len(devices) > 1:
        there = torch.device("cuda", devices[(rank + 1) % len(devices)])
        far = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=there)
        links["copy engine"] = _COPY_BYTES / _best_s(lambda: far.copy_(source))
        links |= _stores(harness, here, there, source, far)
    return {
        "flops": flops,
        "sustained_flops": sustained,
        "memory_bytes": memory,
        "links": links,
    }


def measure_flag(devices: Sequence[int], harness: CHarness) -> float:
    """Nanoseconds that a flag takes from the first rank's device to the second's, while nothing else runs.

    Raises:
        KernelError: If it never comes, or the devices do not reach one another.
    """
    took = ctypes.c_double()
    _ask(
        harness,
        "ht_flag_way",
        devices[0],
        devices[1],
        ctypes.c_uint64(_FLAG_WAYS),
        ctypes.byref(took),
    )
    if took.value <= 0:
        raise KernelError(f"a flag from GPU {devices[0]} to GPU {devices[1]} does not arrive")
    return took.value


def _stores(
    harness: CHarness, here: torch.device, there: torch.device, source: Any, far: Any
) -> dict[str, float]:
    """Bytes per second by stores of CTAs: 16 bytes a thread, and in bulk where the device can."""
    _ask(harness, "ht_reach_peer", here.index, there.index)
    size, goal = ctypes.c_uint64(_STORE_BYTES), ctypes.c_void_p(far.data_ptr())
    stream = ctypes.c_void_p(torch.cuda.current_stream(here).cuda_stream)
    begin = ctypes.c_void_p(source.data_ptr())

    def rate(function: str, *arguments: object) -> float:
        work = partial(_ask, harness, function, *arguments)
        return _STORE_BYTES / _best_s(work, _FEWER_REPEATS, _SHORTER_WARM_S)

    found: dict[str, float] = {}
    for ctas in _STORE_CTAS:
        count = ctypes.c_uint32(ctas)
        found[f"stores of {ctas} CTAs"] = rate("ht_push_stores", begin, goal, size, count, stream)
    if torch.cuda.get_device_capability(here) >= _BULK_CAPABILITY:
        for ctas in _BULK_CTAS:
            count = ctypes.c_uint32(ctas)
            found[f"bulk stores of {ctas} CTAs"] = rate("ht_push_bulk", goal, size, count, stream)
    return found


def _ask(harness: CHarness, function: str, *arguments: object) -> None:
    """Calls a function of the harness whose last arguments take the reason of a failure."""
    code = ctypes.c_int32()
    harness.failure.set = 0
    called = getattr(harness.library, function)
    called.restype = ctypes.c_int
    if called(*arguments, ctypes.byref(harness.failure), ctypes.byref(code)):
        raise KernelError(harness.reason)


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


def _best_s(work: Callable[[], Any], repeats: int = _REPEATS, warm_s: float = _WARM_S) -> float:
    """Seconds of one call in a burst, the best of several."""
    until = time.monotonic() + warm_s
    while time.monotonic() < until:
        work()
        torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(repeats):
        time.sleep(_PAUSE_S)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times)
