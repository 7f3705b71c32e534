"""The structures of the timing harness for GPUs, for ctypes. A test holds them against its source."""

from __future__ import annotations

import ctypes

from kerneltui.evaluation.worker_abi import SampleArguments

__all__ = [
    "SIDE_STREAMS",
    "CudaHandle",
    "CudaSampleArguments",
    "CudaVendorSelf",
    "Device",
    "Place",
]

SIDE_STREAMS = 16
"""So many a kernel may ask for."""

_pointer = ctypes.c_void_p
_u32, _u64 = ctypes.c_uint32, ctypes.c_uint64


class Device(ctypes.Structure):
    """ht_device of the harness."""

    _fields_ = (
        ("stream", _pointer),
        ("own", _pointer),
        ("board", _pointer),
        ("sum", _pointer),
        ("side_count", _u32),
        ("side", _pointer * SIDE_STREAMS),
    )


class CudaHandle(ctypes.Structure):
    """A handle of cuBLAS in ht_vendor, with the stream that it was made for."""

    _fields_ = (("stream", _pointer), ("handle", _pointer))


class CudaVendorSelf(ctypes.Structure):
    """ht_vendor of the harness."""

    _fields_ = (
        ("create", _pointer),
        ("set_stream", _pointer),
        ("set_workspace", _pointer),
        ("set_math_mode", _pointer),
        ("gemm", _pointer),
        ("dtype", ctypes.c_int32),
        ("handle_count", ctypes.c_int32),
        ("handles", CudaHandle * 8),
    )


class Place(ctypes.Structure):
    """ht_place of the harness."""

    _fields_ = (("bytes", _pointer), ("count", _u64))


class CudaSampleArguments(SampleArguments):
    """ht_sample of the harness for GPUs."""

    _fields_ = (
        ("device", _pointer),
        ("gates", _pointer),
        ("outputs", _pointer),
        ("output_count", _u32),
        ("verifying", _u32),
        ("patience_ns", _u64),
        ("hold", _u64),
        ("graph", _u64),
        ("inputs", _pointer),
        ("input_count", _u32),
        ("masked", _u32),
        ("gate_ns", _u64),
        ("go_ns", _u64),
        ("enqueue_ns", _u64),
        ("end_count", _u64),
        ("unheld", _u32),
    )
