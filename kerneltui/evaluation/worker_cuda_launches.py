"""What a call launches, and how: grid, CTA, dynamic shared memory, and how many CTAs fit on the device.

A call is captured into a graph that is never run. So nothing stands between a kernel and its launches
when it is verified or timed, and nothing has to be compiled again. The graph says what the driver was
asked for, launches of libraries included; the driver says how much of it fits.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from kerneltui.evaluation.worker_kernel import KernelError
from kerneltui.targets.cuda import driver

__all__ = ["MOST_NODES", "read_launches"]

MOST_NODES = 512
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_KERNEL = 0  # CU_GRAPH_NODE_TYPE_KERNEL
_CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_STATIC, _REGISTERS, _CLUSTER_WIDTH = 1, 4, 11  # of CUfunction_attribute; height and depth follow
_OTHERS: Mapping[int, str] = {
    1: "copies",
    2: "memsets",
    3: "host functions",
    4: "graphs",
    10: "allocations",
    11: "frees",
    12: "memory operations",
    13: "conditions",
}
"""Of CUgraphNodeType, what else does something."""

_pointer, _u32, _int = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int


class _NodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    _fields_ = (
        ("function", _pointer),
        ("grid", _u32 * 3),
        ("block", _u32 * 3),
        ("shared", _u32),
        ("parameters", _pointer),
        ("extra", _pointer),
        ("kernel", _pointer),
        ("context", _pointer),
    )


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h, as far as a cluster's size goes; its value has 64 bytes."""

    _fields_ = (("id", _int), ("pad", _int), ("value", _u32 * 16))


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        ("grid", _u32 * 3),
        ("block", _u32 * 3),
        ("shared", _u32),
        ("stream", _pointer),
        ("attributes", _pointer),
        ("attribute_count", _u32),
    )


def read_launches(run: Callable[[], int], stream: int) -> dict[str, Any]:
    """Captures a call and reads its launches.

    Args:
        run: Makes the call on the stream; its code.
        stream: Where it begins and ends.

    Returns:
        "launches", each with how often it is made, and "others": how many of what else.

    Raises:
        KernelError: The call cannot be captured, such as one that waits for the device.
    """
    graph = _pointer()
    try:
        driver.call("cuStreamBeginCapture_v2", _pointer(stream), _RELAXED)
        code = run()
        driver.call("cuStreamEndCapture", _pointer(stream), ctypes.byref(graph))
        if code:
            raise KernelError(f"it returned {code} when it was captured")
        try:
            return _read(graph)
        finally:
            driver.call("cuGraphDestroy", graph)
    except driver.DriverError as error:
        raise KernelError(f"the call cannot be captured: {error}") from error
    except AttributeError as error:
        raise KernelError(f"the driver is too old to tell of launches: {error}") from error


def _read(graph: ctypes.c_void_p) -> dict[str, Any]:
    count = ctypes.c_size_t()
    driver.call("cuGraphGetNodes", graph, None, ctypes.byref(count))
    count = ctypes.c_size_t(min(count.value, MOST_NODES))
    nodes = (_pointer * max(1, count.value))()
    if count.value:
        driver.call("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    others: Counter[str] = Counter()
    for place in range(count.value):
        node, kind = _pointer(nodes[place]), _int()
        driver.call("cuGraphNodeGetType", node, ctypes.byref(kind))
        if kind.value == _KERNEL:
            launch = _launch(node)
            key = tuple(launch.values())
            found.setdefault(key, {**launch, "count": 0})["count"] += 1
        elif kind.value in _OTHERS:
            others[_OTHERS[kind.value]] += 1
    return {"launches": [*found.values()], "others": dict(others)}


def _launch(node: ctypes.c_void_p) -> dict[str, Any]:
    params = _NodeParams()
    driver.call("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(params))
    function = _pointer(params.function)
    if not params.function:
        driver.call("cuKernelGetFunction", ctypes.byref(function), _pointer(params.kernel))
    name = ctypes.c_char_p()
    driver.call("cuFuncGetName", ctypes.byref(name), function)
    block, shared = tuple(params.block), int(params.shared)
    sides = _cluster(node, function)
    cluster = sides[0] * sides[1] * sides[2]
    return {
        "symbol": (name.value or b"").decode("utf-8", "replace"),
        "grid": tuple(params.grid),
        "block": block,
        "dynamic": shared,
        "static": _attribute(function, _STATIC),
        "registers": _attribute(function, _REGISTERS),
        "cluster": cluster,
        "ctas": _ctas(function, block, shared),
        "clusters": _clusters(function, params, sides) if cluster > 1 else 0,
    }


def _attribute(function: ctypes.c_void_p, which: int) -> int:
    value = _int()
    driver.call("cuFuncGetAttribute", ctypes.byref(value), which, function)
    return value.value


def _cluster(node: ctypes.c_void_p, function: ctypes.c_void_p) -> list[int]:
    """The sides of a cluster, by the launch or by how the kernel was compiled; 1 each without clusters."""
    value = (_u32 * 16)()
    try:
        driver.call("cuGraphKernelNodeGetAttribute", node, _CLUSTER, value)
        sides = [int(side) for side in value[:3]]
        if not all(sides):
            sides = [_attribute(function, _CLUSTER_WIDTH + place) for place in range(3)]
    except driver.DriverError:  # a device without clusters
        return [1, 1, 1]
    return [max(1, side) for side in sides]


def _ctas(function: ctypes.c_void_p, block: tuple[int, ...], shared: int) -> int:
    """CTAs that fit on an SM."""
    count = _int()
    threads = block[0] * block[1] * block[2]
    driver.call(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        ctypes.byref(count), function, threads, ctypes.c_size_t(shared),
    )  # fmt: skip
    return count.value


def _clusters(function: ctypes.c_void_p, params: _NodeParams, sides: list[int]) -> int:
    """Clusters that fit on the device at one time; 0 if the driver does not say."""
    size = _Attribute(id=_CLUSTER)
    size.value[0], size.value[1], size.value[2] = sides
    config = _LaunchConfig(
        grid=params.grid,
        block=params.block,
        shared=params.shared,
        attributes=ctypes.addressof(size),
        attribute_count=1,
    )
    count = _int()
    try:
        driver.call(
            "cuOccupancyMaxActiveClusters",
            ctypes.byref(count), function, ctypes.byref(config),
        )  # fmt: skip
    except driver.DriverError:
        return 0
    return count.value
