"""The structures of `kernel.h` and of the timing harness, for ctypes. A test holds their sizes."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from kerneltui.model.workload import Role
from kerneltui.targets.windows import DType

__all__ = [
    "ABI_VERSION",
    "DTYPE_CODES",
    "HARNESS_REASONS",
    "ROLE_CODES",
    "BarrierFunction",
    "BufferSet",
    "Context",
    "Failure",
    "GatherFunction",
    "Host",
    "NamedValue",
    "Requirements",
    "RunFunction",
    "SampleArguments",
    "Tensor",
    "Vendor",
    "VendorSelf",
    "named_values",
]

ABI_VERSION = 1

DTYPE_CODES = {
    DType.FLOAT32: 0,
    DType.FLOAT64: 1,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 3,
    DType.INT32: 4,
    DType.INT64: 5,
}
ROLE_CODES = {Role.INPUT: 0, Role.OUTPUT: 1, Role.INOUT: 2, Role.SCALE: 3}

RETURNED, THREW, NO_MEMORY, LATE = 1, 2, 3, 4
HARNESS_REASONS = {RETURNED: "returned", THREW: "threw", NO_MEMORY: "no memory", LATE: "late"}

_pointer = ctypes.c_void_p
_u32, _u64, _i64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64

RunFunction = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, _u32, _u64, _pointer)
GatherFunction = ctypes.CFUNCTYPE(
    ctypes.c_int, _pointer, _pointer, _pointer, ctypes.POINTER(_u64), _pointer
)
BarrierFunction = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, _pointer)


class NamedValue(ctypes.Structure):
    """kt_named_value."""

    _fields_ = (("name", ctypes.c_char_p), ("value", _i64))


class Requirements(ctypes.Structure):
    """kt_requirements."""

    _fields_ = (
        ("abi_version", _u32),
        ("signal_words", _u32),
        ("scratch_bytes", _u64),
        ("window_bytes", _u64),
        ("side_streams", _u32),
        ("barriers", _u32),
        ("cluster_size", _u32),
        ("graph_safe", _u32),
        ("host_collectives", _u32),
        ("nccl_windows", _u32),
        ("gin_signals", _u32),
        ("reserved", _u32 * 5),
    )


class Tensor(ctypes.Structure):
    """kt_tensor."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("role", ctypes.c_int),
        ("dims", _u32),
        ("shape", _i64 * 4),
        ("offset", _i64 * 4),
        ("bytes", _u64),
        ("local", _pointer),
        ("peers", _pointer),
        ("window", _pointer),
    )


class BufferSet(ctypes.Structure):
    """kt_buffer_set."""

    _fields_ = (("tensor_count", _u32), ("tensors", ctypes.POINTER(Tensor)))


class Vendor(ctypes.Structure):
    """kt_vendor."""

    _fields_ = (("gemm", _pointer), ("self", _pointer))


class VendorSelf(ctypes.Structure):
    """ht_vendor of the harness."""

    _fields_ = (("sgemm", _pointer), ("dgemm", _pointer), ("dtype", ctypes.c_int32))


class Host(ctypes.Structure):
    """kt_host."""

    _fields_ = (("all_gather", _pointer), ("barrier", _pointer), ("self", _pointer))


class Context(ctypes.Structure):
    """kt_context."""

    _fields_ = (
        ("abi_version", _u32),
        ("rank", _u32),
        ("ranks", _u32),
        ("threads", _u32),
        ("dimension_count", _u32),
        ("dimensions", ctypes.POINTER(NamedValue)),
        ("tunable_count", _u32),
        ("tunables", ctypes.POINTER(NamedValue)),
        ("sets", _u32),
        ("buffers", ctypes.POINTER(BufferSet)),
        ("scratch", _pointer),
        ("scratch_bytes", _u64),
        ("window", ctypes.POINTER(_pointer)),
        ("window_bytes", _u64),
        ("signals", ctypes.POINTER(_pointer)),
        ("signal_words", _u32),
        ("vendor", ctypes.POINTER(Vendor)),
        ("host", ctypes.POINTER(Host)),
        ("stream", _pointer),
        ("side_streams", _pointer),
        ("device_comm", _pointer),
        ("fail", _pointer),
        ("fail_self", _pointer),
    )


class Failure(ctypes.Structure):
    """ht_failure of the harness."""

    _fields_ = (("text", ctypes.c_char * 1024), ("set", _u32))


class SampleArguments(ctypes.Structure):
    """ht_sample of the harness."""

    _fields_ = (
        ("run", _pointer),
        ("state", _pointer),
        ("control", _pointer),
        ("rank", _u32),
        ("ranks", _u32),
        ("sets", _u32),
        ("first_set", _u32),
        ("calls", _u64),
        ("epoch", _u64),
        ("gate", _u64),
        ("delay_ns", _u64),
        ("deadline_ns", _u64),
        ("ends_ns", _pointer),
        ("start_ns", _u64),
        ("ticks", _u64),
        ("cpu_ns", _u64),
        ("minor_faults", _i64),
        ("involuntary_switches", _i64),
        ("code", ctypes.c_int32),
        ("late_rank", _u32),
        ("failed_call", _u64),
    )


def named_values(values: Mapping[str, int]) -> ctypes.Array[NamedValue]:
    """An array of kt_named_value; it keeps its names alive."""
    items = [NamedValue(name.encode(), value) for name, value in values.items()]
    return (NamedValue * max(1, len(items)))(*items)
