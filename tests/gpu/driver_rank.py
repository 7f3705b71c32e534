"""One rank of the driver for two GPUs: its CUDA, cuBLAS and NCCL, and its talk with the other rank."""

from __future__ import annotations

import ctypes
import socket
import sys
from pathlib import Path
from typing import Any

from driver_kernel import DriverFault
from driver_memory import Window

from kerneltui.evaluation.worker_abi import Host, Vendor

RANKS = 2
WORKSPACE_BYTES = 64 << 20
_pointer, _u64, _i32 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int


class Cublas(ctypes.Structure):
    """Cublas of kernel_driver.cu."""

    _fields_ = (("handle", _pointer), ("set_stream", _pointer), ("gemm_ex", _pointer))


class Nccl(ctypes.Structure):
    """Nccl of kernel_driver.cu."""

    _fields_ = (
        ("comm", _pointer),
        ("rank", _i32),
        ("ranks", _i32),
        ("all_gather", _pointer),
        ("broadcast", _pointer),
        ("group_start", _pointer),
        ("group_end", _pointer),
    )


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("bytes", ctypes.c_char * 128),)


def nccl_path() -> str:
    """The NCCL that torch uses: the wheel beside it, else the system's."""
    for folder in sys.path:
        file = Path(folder) / "nvidia/nccl/lib/libnccl.so.2"
        if file.exists():
            return str(file)
    return "libnccl.so.2"


def address_of(thing: Any) -> int | None:
    """The address of a function, or of what a pointer points to."""
    return ctypes.cast(thing, _pointer).value


class Rank:
    """The libraries, streams and signals of one rank."""

    def __init__(self, rank: int, link: socket.socket, helper: str) -> None:
        """Makes the CUDA context, cuBLAS handle and NCCL communicator."""
        import torch

        self.torch: Any = torch
        self.rank, self.link = rank, link
        torch.cuda.set_device(rank)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.zeros(1, device="cuda")
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.helper = ctypes.CDLL(helper)
        self.stream = torch.cuda.Stream()
        self.side = [torch.cuda.Stream(priority=-1) for _ in range(2)]
        self._cublas()
        self._nccl()
        self.word = torch.zeros(1, dtype=torch.int64).pin_memory()
        self.gates = Window(self, 4096)
        self.gates.tensor(0, 512, torch.int64).zero_()
        self.areas: dict[str, Window] = {}
        torch.cuda.synchronize()
        self.meet()
        self.token = 0

    def cu(self, name: str, *arguments: Any) -> None:
        """Calls the driver; an error raises."""
        code = getattr(self.driver, name)(*arguments)
        if code:
            raise DriverFault(f"{name} failed with error {code}")

    def meet(self) -> None:
        """Waits for the other rank's process."""
        self.link.sendall(b"m")
        if self.link.recv(1) != b"m":
            raise DriverFault("the other rank has gone")

    def swap(self, value: float) -> float:
        """Gives a number to the other rank and takes its."""
        self.link.sendall(f"{value!r:>32}"[:32].encode())
        return float(self._receive(32))

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.link.recv(size - len(data))
            if not part:
                raise DriverFault("the other rank has gone")
            data += part
        return data

    def _cublas(self) -> None:
        torch = self.torch
        x = torch.ones(16, 16, device="cuda", dtype=torch.bfloat16)
        (x @ x).sum().item()  # loads the library
        with Path("/proc/self/maps").open() as maps:
            path = next(line.split()[-1] for line in maps if "libcublas.so" in line)
        library = ctypes.CDLL(path)
        handle = _pointer()
        if library.cublasCreate_v2(ctypes.byref(handle)):
            raise DriverFault("cublasCreate failed")
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        library.cublasSetWorkspace_v2(
            handle, _pointer(self.workspace.data_ptr()), ctypes.c_size_t(WORKSPACE_BYTES)
        )
        self.cublas = Cublas(
            handle.value,
            address_of(library.cublasSetStream_v2),
            address_of(library.cublasGemmEx),
        )
        self.vendor = Vendor(
            address_of(self.helper.kd_gemm), address_of(ctypes.pointer(self.cublas))
        )

    def _nccl(self) -> None:
        library = ctypes.CDLL(nccl_path())
        identifier = UniqueId()
        if self.rank == 0:
            if library.ncclGetUniqueId(ctypes.byref(identifier)):
                raise DriverFault("ncclGetUniqueId failed")
            self.link.sendall(bytes(identifier))
        else:
            ctypes.memmove(ctypes.byref(identifier), self._receive(128), 128)
        comm = _pointer()
        library.ncclCommInitRank.argtypes = [_pointer, _i32, UniqueId, _i32]
        if library.ncclCommInitRank(ctypes.byref(comm), RANKS, identifier, self.rank):
            raise DriverFault("ncclCommInitRank failed")
        self.nccl = Nccl(
            comm.value,
            self.rank,
            RANKS,
            address_of(library.ncclAllGather),
            address_of(library.ncclBroadcast),
            address_of(library.ncclGroupStart),
            address_of(library.ncclGroupEnd),
        )
        self.host = Host(
            address_of(self.helper.kd_all_gather), None, address_of(ctypes.pointer(self.nccl))
        )

    def signal_area(self, kernel: str, words: int) -> Window:
        """The signal area of a kernel: zeroed once and kept over all shapes."""
        area = self.areas.get(kernel)
        if area is None:
            area = Window(self, words * 8)
            area.tensor(0, words, self.torch.int64).zero_()
            self.torch.cuda.synchronize()
            self.meet()
            self.areas[kernel] = area
        return area

    def close_gate(self) -> None:
        """Enqueues the start gate: what comes behind waits for `open_gate` of both ranks."""
        self.token += 1
        gates = self.gates
        code = self.helper.kd_gate(
            *(_pointer(self.word.data_ptr()), _pointer(gates.addresses[1 - self.rank])),
            *(_pointer(gates.local), _u64(self.token), _pointer(self.stream.cuda_stream)),
        )
        if code:
            raise DriverFault(f"the gate failed with error {code}")

    def open_gate(self) -> None:
        """Says that this rank has enqueued everything."""
        ctypes.c_int64.from_address(self.word.data_ptr()).value = self.token
