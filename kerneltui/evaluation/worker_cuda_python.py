"""What Python kernels get on a GPU: tensors over device memory, streams, flags on streams, compilers."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.worker_kernel import CHarness, address_of
from kerneltui.evaluation.worker_python_context import PythonFace
from kerneltui.targets.cuda import driver

__all__ = ["cuda_face", "find_driver", "settle_compilers"]

_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TRITON_HOME": "triton-home",
    "CUPY_CACHE_DIR": "cupy",
    "CUDA_CACHE_PATH": "cuda",
    "TORCH_EXTENSIONS_DIR": "torch",
}


def settle_compilers(own: Path) -> None:
    """Has all that compiles in this process keep its files in a folder of its own."""
    for variable, name in _CACHES.items():
        os.environ[variable] = str(own / name)
    tempfile.tempdir = None  # asked for before TMPDIR was set here


def find_driver() -> None:
    """Tells Triton where the driver is, which it would start a program to find out."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if "libcuda.so" in path:
            os.environ["TRITON_LIBCUDA_PATH"] = str(Path(f"/{path}").parent)
            return


def cuda_face(
    index: int,
    context: abi.Context,
    needs: abi.Requirements,
    *,
    harness: CHarness,
    host: abi.Host,
    compiling: Callable[[], AbstractContextManager[None]],
) -> PythonFace:
    """Makes the caller's stream the current one of torch and CuPy, and lends the rest.

    Args:
        index: The GPU.
        context: An equipped context.
        needs: What the kernel asked for.
        harness: Gathers and waits.
        host: Who gathers and waits.
        compiling: Within it, compilers run.
    """
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    pointer = int(context.stream)
    stream = torch.cuda.ExternalStream(pointer, device=device)
    torch.cuda.set_stream(stream)
    if "cupy" in sys.modules:
        cupy: Any = sys.modules["cupy"]
        cupy.cuda.Device(index).use()
        cupy.cuda.ExternalStream(pointer, index).use()
    streams = (ctypes.c_void_p * needs.side_streams).from_address(int(context.side_streams))
    gather = abi.GatherFunction(address_of(harness.library.ht_all_gather))
    meet = abi.BarrierFunction(address_of(harness.library.ht_barrier))

    def all_gather(send: int, receive: int, counts: Sequence[int]) -> int:
        sizes = (ctypes.c_uint64 * len(counts))(*counts)
        current = torch.cuda.current_stream(device).cuda_stream
        return gather(host.self, send, receive, sizes, current)

    return PythonFace(
        device=device,
        view=lambda address, nbytes: _view(address, nbytes, device),
        stream=stream,
        side_streams=tuple(
            torch.cuda.ExternalStream(int(one or 0), device=device) for one in streams
        ),
        all_gather=all_gather,
        barrier=lambda: meet(host.self, torch.cuda.current_stream(device).cuda_stream),
        raise_flag=lambda place, value: driver.write_flag(
            torch.cuda.current_stream(device).cuda_stream, place, value
        ),
        wait_flag=lambda place, value: driver.wait_flag(
            torch.cuda.current_stream(device).cuda_stream, place, value
        ),
        setting_up=compiling,
        before_calls=_calls_begin,
        after_calls=_calls_are_over,
    )


def _calls_begin() -> None:
    # From here on an operation that makes the host wait for the device is an error of the kernel.
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")


def _calls_are_over() -> None:
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


def _view(address: int, nbytes: int, device: torch.device) -> torch.Tensor:
    """A flat uint8 tensor on a device, over memory that is mapped for it, wherever it lies.

    By the array interface torch would take the memory of a peer to be on the peer's device, and copy.
    """
    empty = torch.empty(0, dtype=torch.uint8, device=device)
    if nbytes == 0:
        return empty
    storage = torch._C._construct_storage_from_data_pointer(address, device, nbytes)
    return empty.set_(storage)
