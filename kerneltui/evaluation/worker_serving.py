"""Calls after pauses, and calls without any, in a rank on a GPU: the structures of `serving.cu`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch

from kerneltui.evaluation.worker_abi import SampleArguments
from kerneltui.evaluation.worker_kernel import CHarness, KernelError
from kerneltui.targets.errors import FailureKind

__all__ = ["CacheEmptier", "Serving", "ServingArrays", "serving_of"]

_pointer, _u64 = ctypes.c_void_p, ctypes.c_uint64
_CACHES = 4


class Serving(ctypes.Structure):
    """ht_serving of the harness."""

    _fields_ = (
        ("call", _pointer),
        ("gaps_ns", _pointer),
        ("count", _u64),
        ("evict", _pointer),
        ("evict_bytes", _u64),
        ("launch_ns", _pointer),
        ("latency_ns", _pointer),
        ("device_ns", _pointer),
    )


class ServingArrays:
    """A `Serving` and the arrays that it points to.

    Args:
        call: What each call is made from.
        gaps_ns: The pause before each.
    """

    def __init__(self, call: SampleArguments, gaps_ns: list[int]) -> None:
        count = len(gaps_ns)
        half = max(1, (count + 1) // 2)
        self._gaps = (_u64 * max(1, count))(*gaps_ns)
        self._launch, self._latency, self._device = ((_u64 * half)() for _ in range(3))
        self._count = count
        self.face = Serving(
            call=ctypes.addressof(call),
            gaps_ns=ctypes.addressof(self._gaps),
            count=count,
            launch_ns=ctypes.addressof(self._launch),
            latency_ns=ctypes.addressof(self._latency),
            device_ns=ctypes.addressof(self._device),
        )

    def found(self) -> dict[str, list[int]]:
        """What was measured."""
        even, odd = (self._count + 1) // 2, self._count // 2
        return {
            "launch_ns": list(self._launch)[:even],
            "latency_ns": list(self._latency)[:even],
            "device_ns": list(self._device)[:odd],
        }


def serving_of(call: SampleArguments, request: Mapping[str, Any]) -> ServingArrays:
    """The structures for a request."""
    return ServingArrays(call, [int(gap) for gap in request["gaps_ns"]])


class CacheEmptier:
    """Empties the second-level cache by reading memory of several times its size.

    Args:
        device: Which GPU.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._zeros = (0, 0)

    def zeros(self, harness: CHarness) -> tuple[int, int]:
        """Address and size of what is read; made at the first use.

        Raises:
            KernelError: If there is no room.
        """
        if not self._zeros[0]:
            cache = torch.cuda.get_device_properties(self._device).L2_cache_size
            nbytes = _CACHES * cache // 16 * 16
            allocate = harness.library.ht_allocate_zeros
            allocate.restype = _pointer
            place = allocate(_u64(nbytes))
            if not place:
                raise KernelError("no room for emptying the cache", FailureKind.OUT_OF_MEMORY)
            self._zeros = (place, nbytes)
        return self._zeros

    def empty(
        self, harness: CHarness, device: ctypes.Structure, check: Callable[[int, int], None]
    ) -> None:
        """Empties it now; `check` raises what a result of the harness means."""
        place, nbytes = self.zeros(harness)
        code = ctypes.c_int32()
        harness.failure.set = 0
        result = harness.library.ht_evict(
            ctypes.byref(device),
            _pointer(place),
            _u64(nbytes),
            ctypes.byref(harness.failure),
            ctypes.byref(code),
        )
        check(result, code.value)
