"""Runs kernel files of `gemm_allgather` on two GPUs, in two processes, without the rest of kerneltui.

    python3 tests/gpu/kernel_driver.py --out DIR [--verify] [--time] [--budget SECONDS]
        kernels/gemm_allgather/host_nccl.cu kernels/gemm_allgather/lsa_fused_sm90.cu@STAGES=4,C_BOXES=2

A kernel may be followed by `@NAME=VALUE,...`: tunables, compile-time (`#define`) or run-time. Every kernel
is compiled, verified (odd and large shapes, fresh inputs, poisoned outputs, exact on 0/1 inputs, a late
rank) and timed against its competitors in turn. A table comes last; numbers go to DIR/driver.json.

It needs torch with CUDA, nvcc, two GPUs that reach each other. A call that hangs for ten seconds ends
both processes; the kernel is left out and the rest goes on.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import math
import multiprocessing as mp
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RANKS = 2
SETS = 3
HANG_SECONDS = 10.0
ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}

VERIFY_SHAPES = [
    (256, 256, 64),
    (512, 512, 512),
    (1000, 1000, 1000),
    (1024, 768, 320),
    (3000, 2056, 1048),
    (257, 136, 72),
    (130, 8, 8),
    (2, 24, 40),
    (1, 64, 64),
    (129, 67, 33),
    (4096, 4096, 4096),
    (8192, 8192, 2048),
]
TIME_SHAPES = [
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 8192, 4096),
    (16384, 16384, 16384),
    (8192, 28672, 8192),
]

_pointer = ctypes.c_void_p
_u32, _u64, _i64, _i32 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int


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
        ("reserved", _u32 * 7),
    )


class Tensor(ctypes.Structure):
    """kt_tensor."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", _i32),
        ("role", _i32),
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
        ("dimensions", _pointer),
        ("tunable_count", _u32),
        ("tunables", _pointer),
        ("sets", _u32),
        ("buffers", ctypes.POINTER(BufferSet)),
        ("scratch", _pointer),
        ("scratch_bytes", _u64),
        ("window", _pointer),
        ("window_bytes", _u64),
        ("signals", _pointer),
        ("signal_words", _u32),
        ("vendor", ctypes.POINTER(Vendor)),
        ("host", ctypes.POINTER(Host)),
        ("stream", _pointer),
        ("side_streams", _pointer),
        ("device_comm", _pointer),
        ("fail", _pointer),
        ("fail_self", _pointer),
    )


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


FailFunction = ctypes.CFUNCTYPE(None, _pointer, ctypes.c_char_p)


class DriverFault(RuntimeError):
    """A call of CUDA, NCCL or the kernel failed."""


# ---- Kernels ----------------------------------------------------------------------------------------


@dataclass
class Spec:
    """A kernel file with values of its tunables."""

    text: str
    label: str
    source: Path
    defines: dict[str, str] = field(default_factory=dict)
    runtime: dict[str, int] = field(default_factory=dict)
    library: str = ""
    build_log: str = ""


def parse_spec(text: str) -> Spec:
    """Reads `file.cu@NAME=VALUE,...`; a NAME that the file declares `runtime` is a run-time tunable."""
    name, _, values = text.partition("@")
    path = Path(name)
    source = path.read_text()
    runtime = {
        match[1]: int(match[2])
        for match in re.finditer(r"kerneltui: runtime (\w+) in .*? default (-?\d+)", source)
    }
    spec = Spec(text, path.stem + (f"@{values}" if values else ""), path, runtime=runtime)
    for item in filter(None, values.split(",")):
        key, _, value = item.partition("=")
        if key in runtime:
            runtime[key] = int(value)
        elif re.search(rf"kerneltui: tunable {key} in ", source):
            spec.defines[key] = value
        else:
            raise SystemExit(f"{name}: no tunable '{key}'")
    return spec


def build(spec: Spec, folder: Path, architecture: str, dtype: str = "bfloat16") -> None:
    """Compiles a kernel for an element type; the library is named after what went into it."""
    source = spec.source.read_text()
    for key, value in spec.defines.items():
        source, count = re.subn(rf"(?m)^#define {key} .*$", f"#define {key} {value}", source)
        if count != 1:
            raise SystemExit(f"{spec.source}: '#define {key}' found {count} times")
    element = f"-DKT_ELEMENT=KT_ELEMENT_{dtype.upper()}"
    name = hashlib.sha256((source + architecture + element).encode()).hexdigest()[:16]
    file, library = folder / f"{name}.cu", folder / f"{name}.so"
    spec.library = str(library)
    if library.exists():
        return
    file.write_text(source)
    command = [
        *("nvcc", "-std=c++17", "-O3", "-gencode", architecture, "-Xptxas", "-v", "-shared"),
        *(element, "-Xcompiler", "-fPIC", "-I", str(ROOT / "kerneltui/include"), str(file)),
        *("-o", str(folder / f"{name}.tmp.so")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    spec.build_log = done.stdout + done.stderr
    if done.returncode:
        spec.library = ""
        return
    (folder / f"{name}.tmp.so").replace(library)


# ---- One rank ---------------------------------------------------------------------------------------


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", _i32),
        ("handle_types", _i32),
        ("location_type", _i32),
        ("location_id", _i32),
        ("win32", _pointer),
        ("flags", ctypes.c_ubyte * 8),
    )


class AccessDescription(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location_type", _i32), ("location_id", _i32), ("flags", _i32))


class Raw:
    """Device memory as torch sees it."""

    def __init__(self, address: int, elements: int, type_string: str) -> None:
        """Wraps `elements` elements at `address`."""
        self.__cuda_array_interface__ = {
            "shape": (elements,),
            "typestr": type_string,
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


class Window:
    """Memory of this rank and of its peers, from the virtual-memory API."""

    def __init__(self, rank: Rank, size: int) -> None:
        """Makes `size` bytes on this rank and maps the peers'. All ranks call it together."""
        self.rank = rank
        granularity = 2 << 20
        self.size = (max(1, size) + granularity - 1) // granularity * granularity
        prop = AllocationProp(1, 1, 1, rank.rank)
        handle = _u64()
        rank.cu(
            "cuMemCreate",
            ctypes.byref(handle),
            ctypes.c_size_t(self.size),
            ctypes.byref(prop),
            _u64(0),
        )
        fd = _i32(-1)
        rank.cu("cuMemExportToShareableHandle", ctypes.byref(fd), handle, _i32(1), _u64(0))
        socket.send_fds(rank.socket, [b"w"], [fd.value])
        _, fds, _, _ = socket.recv_fds(rank.socket, 1, 1)
        os.close(fd.value)
        other = _u64()
        rank.cu("cuMemImportFromShareableHandle", ctypes.byref(other), _pointer(fds[0]), _i32(1))
        os.close(fds[0])
        self.addresses = [0, 0]
        for owner, item in ((rank.rank, handle), (1 - rank.rank, other)):
            address = _u64()
            rank.cu(
                *("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(self.size)),
                *(ctypes.c_size_t(granularity), _u64(0), _u64(0)),
            )
            rank.cu(
                "cuMemMap", address, ctypes.c_size_t(self.size), ctypes.c_size_t(0), item, _u64(0)
            )
            access = AccessDescription(1, rank.rank, 3)
            rank.cu(
                "cuMemSetAccess",
                address,
                ctypes.c_size_t(self.size),
                ctypes.byref(access),
                ctypes.c_size_t(1),
            )
            rank.cu("cuMemRelease", item)
            self.addresses[owner] = address.value

    @property
    def local(self) -> int:
        """The address of this rank's own memory."""
        return self.addresses[self.rank.rank]

    def close(self) -> None:
        """Unmaps; the owner's memory goes when the last mapping has gone."""
        for address in self.addresses:
            self.rank.cu("cuMemUnmap", _u64(address), ctypes.c_size_t(self.size))
            self.rank.cu("cuMemAddressFree", _u64(address), ctypes.c_size_t(self.size))

    def tensor(self, offset: int, elements: int, dtype: Any) -> Any:
        """A torch view of this rank's own memory."""
        torch = self.rank.torch
        code = {torch.bfloat16: "<i2", torch.int64: "<i8"}[dtype]
        return torch.as_tensor(
            Raw(self.local + offset, elements, code), device=f"cuda:{self.rank.rank}"
        ).view(dtype)


def nccl_path() -> str:
    """The NCCL that torch uses: the wheel beside it, else the system's."""
    for folder in sys.path:
        file = Path(folder) / "nvidia/nccl/lib/libnccl.so.2"
        if file.exists():
            return str(file)
    return "libnccl.so.2"


class Rank:
    """The libraries, streams and signals of one rank."""

    def __init__(self, rank: int, link: socket.socket, helper: str) -> None:
        """Makes the CUDA context, cuBLAS handle and NCCL communicator."""
        import torch

        self.torch, self.rank, self.socket = torch, rank, link
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
        self.socket.sendall(b"m")
        if self.socket.recv(1) != b"m":
            raise DriverFault("the other rank has gone")

    def swap(self, value: float) -> float:
        """Gives a number to the other rank and takes its."""
        text = f"{value!r:>32}"[:32].encode()
        self.socket.sendall(text)
        data = b""
        while len(data) < 32:
            part = self.socket.recv(32 - len(data))
            if not part:
                raise DriverFault("the other rank has gone")
            data += part
        return float(data)

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
        self.workspace = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        library.cublasSetWorkspace_v2(
            handle, _pointer(self.workspace.data_ptr()), ctypes.c_size_t(64 << 20)
        )
        address = lambda f: ctypes.cast(f, _pointer).value  # noqa: E731
        self.cublas = Cublas(
            handle.value, address(library.cublasSetStream_v2), address(library.cublasGemmEx)
        )
        self.vendor = Vendor(
            address(self.helper.kd_gemm), ctypes.cast(ctypes.pointer(self.cublas), _pointer).value
        )

    def _nccl(self) -> None:
        library = ctypes.CDLL(nccl_path())
        identifier = UniqueId()
        if self.rank == 0:
            if library.ncclGetUniqueId(ctypes.byref(identifier)):
                raise DriverFault("ncclGetUniqueId failed")
            self.socket.sendall(bytes(identifier))
        else:
            data = b""
            while len(data) < 128:
                data += self.socket.recv(128 - len(data))
            ctypes.memmove(ctypes.byref(identifier), data, 128)
        comm = _pointer()
        library.ncclCommInitRank.argtypes = [_pointer, _i32, UniqueId, _i32]
        if library.ncclCommInitRank(ctypes.byref(comm), RANKS, identifier, self.rank):
            raise DriverFault("ncclCommInitRank failed")
        address = lambda f: ctypes.cast(f, _pointer).value  # noqa: E731
        self.nccl = Nccl(
            *(
                comm.value,
                self.rank,
                RANKS,
                address(library.ncclAllGather),
                address(library.ncclBroadcast),
            ),
            *(address(library.ncclGroupStart), address(library.ncclGroupEnd)),
        )
        self.host = Host(
            address(self.helper.kd_all_gather),
            None,
            ctypes.cast(ctypes.pointer(self.nccl), _pointer).value,
        )

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


class Problem:
    """The buffers of one shape."""

    def __init__(self, rank: Rank, shape: tuple[int, int, int], sets: int) -> None:
        """Makes `sets` sets of A, B and a symmetric C."""
        torch = rank.torch
        self.rank, self.shape, self.sets = rank, shape, sets
        m, n, k = shape
        self.first = rank.rank * m // RANKS
        self.rows = (rank.rank + 1) * m // RANKS - self.first
        self.a = [
            torch.empty(max(1, self.rows), k, device="cuda", dtype=torch.bfloat16)
            for _ in range(sets)
        ]
        self.b = [torch.empty(k, n, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
        self.windows = [Window(rank, m * n * 2) for _ in range(sets)]
        self.c = [w.tensor(0, m * n, torch.bfloat16).view(m, n) for w in self.windows]
        self.keep: list[Any] = []
        sets_array = (BufferSet * sets)()
        for i in range(sets):
            peers = (_pointer * RANKS)(*self.windows[i].addresses)
            pointer = ctypes.cast(peers, _pointer).value
            tensors = (Tensor * 3)(
                self._tensor(
                    b"A", 0, (self.rows, k), self.first, local=self.a[i].data_ptr(), peers=None
                ),
                self._tensor(b"B", 0, (k, n), 0, local=self.b[i].data_ptr(), peers=None),
                self._tensor(b"C", 1, (m, n), 0, local=self.windows[i].local, peers=pointer),
            )
            sets_array[i] = BufferSet(3, tensors)
            self.keep += [peers, tensors]
        self.buffers = sets_array

    @staticmethod
    def _tensor(
        name: bytes, role: int, shape: tuple[int, int], first: int, *, local: int, peers: int | None
    ) -> Tensor:
        four = _i64 * 4
        return Tensor(
            *(name, 3, role, 2, four(*shape, 0, 0), four(first, 0, 0, 0), shape[0] * shape[1] * 2),
            *(local, peers, None),
        )

    def fill(self, seed: int, integers: bool) -> None:
        """New inputs in all sets, the same on both ranks where they share them."""
        torch = self.rank.torch
        m, n, k = self.shape
        for i in range(self.sets):
            generator = torch.Generator("cuda").manual_seed(seed * 64 + i)
            for name, target, rows in (("b", self.b[i], k), ("a", self.a[i], m)):
                width = n if name == "b" else k
                if m * k > 1 << 24:  # large: each rank draws its own shard of A
                    if name == "a":
                        generator.manual_seed(seed * 64 + i + 7919 * (1 + self.rank.rank))
                    full = target
                else:
                    full = torch.empty(rows, width, device="cuda", dtype=torch.bfloat16)
                if integers:
                    full.random_(0, 2, generator=generator)
                else:
                    full.normal_(generator=generator)
                if full is not target:
                    target.copy_(
                        full if name == "b" else full[self.first : self.first + max(1, self.rows)]
                    )

    def full_a(self, seed: int, integers: bool, i: int) -> Any:
        """All rows of A in set i."""
        torch = self.rank.torch
        m, n, k = self.shape
        draw = lambda x, g: x.random_(0, 2, generator=g) if integers else x.normal_(generator=g)  # noqa: E731
        full = torch.empty(m, k, device="cuda", dtype=torch.bfloat16)
        if m * k > 1 << 24:
            for r in range(RANKS):
                g = torch.Generator("cuda").manual_seed(seed * 64 + i + 7919 * (1 + r))
                draw(full[r * m // RANKS : (r + 1) * m // RANKS], g)
            return full
        g = torch.Generator("cuda").manual_seed(seed * 64 + i)
        draw(torch.empty(k, n, device="cuda", dtype=torch.bfloat16), g)
        return draw(full, g)

    def poison(self) -> None:
        """NaN in all outputs."""
        for c in self.c:
            c.fill_(math.nan)
        self.rank.torch.cuda.synchronize()

    def close(self) -> None:
        """Gives the windows back."""
        self.rank.torch.cuda.synchronize()
        self.rank.meet()
        self.c.clear()
        for window in self.windows:
            window.close()


class Loaded:
    """A kernel that is set up for one problem."""

    signals: Window | None = None
    epoch = 0

    def __init__(self, rank: Rank, problem: Problem, spec: Spec) -> None:
        """Calls requirements and setup."""
        torch = rank.torch
        self.rank, self.problem, self.spec = rank, problem, spec
        self.library = ctypes.CDLL(spec.library)
        self.reason = ""
        dimensions = [(b"M", problem.shape[0]), (b"N", problem.shape[1]), (b"K", problem.shape[2])]
        self.dimensions = (NamedValue * 3)(*(NamedValue(*item) for item in dimensions))
        tunables = [NamedValue(name.encode(), value) for name, value in spec.runtime.items()]
        self.tunables = (NamedValue * max(1, len(tunables)))(*tunables)
        requirements = Requirements()
        code = self.library.kerneltui_requirements(
            *(
                self.dimensions,
                _u32(3),
                self.tunables,
                _u32(len(tunables)),
                _u32(rank.rank),
                _u32(RANKS),
            ),
            ctypes.byref(requirements),
        )
        if code or requirements.abi_version != 1:
            raise DriverFault(f"requirements returned {code}, version {requirements.abi_version}")
        if requirements.side_streams > len(rank.side):
            raise DriverFault("more side streams than the driver has")
        self.scratch = torch.full(
            (max(256, requirements.scratch_bytes),), 0xA5, dtype=torch.uint8, device="cuda"
        )
        words = max(1, requirements.signal_words)
        # Every kernel has a signal area of its own, zeroed once and kept over all shapes.
        if not hasattr(rank, "signal_areas"):
            rank.signal_areas = {}
        area = rank.signal_areas.get(spec.text)
        if area is None:
            area = Window(rank, words * 8)
            area.tensor(0, words, torch.int64).zero_()
            torch.cuda.synchronize()
            rank.meet()
            rank.signal_areas[spec.text] = area
        self.signals = (_pointer * RANKS)(*area.addresses)
        self.side = (_pointer * 2)(*(s.cuda_stream for s in rank.side))
        self.fail = FailFunction(self._fail)
        self.context = Context(
            abi_version=1, rank=rank.rank, ranks=RANKS, threads=1,
            dimension_count=3, dimensions=ctypes.cast(self.dimensions, _pointer).value,
            tunable_count=len(tunables), tunables=ctypes.cast(self.tunables, _pointer).value,
            sets=problem.sets, buffers=problem.buffers,
            scratch=self.scratch.data_ptr(), scratch_bytes=requirements.scratch_bytes,
            signals=ctypes.cast(self.signals, _pointer).value, signal_words=requirements.signal_words,
            vendor=ctypes.pointer(rank.vendor), host=ctypes.pointer(rank.host),
            stream=rank.stream.cuda_stream, side_streams=ctypes.cast(self.side, _pointer).value,
            fail=ctypes.cast(self.fail, _pointer).value,
        )  # fmt: skip
        self.state = _pointer()
        self.check(
            "setup",
            self.library.kerneltui_setup(ctypes.byref(self.context), ctypes.byref(self.state)),
        )
        torch.cuda.synchronize()
        rank.meet()

    def _fail(self, _self: int, text: bytes) -> None:
        self.reason = text.decode(errors="replace")

    def check(self, what: str, code: int) -> None:
        """Raises if a step of the kernel failed."""
        if code:
            raise DriverFault(f"{what} returned {code}: {self.reason or 'no reason given'}")

    def call(self, count: int = 1) -> None:
        """Enqueues calls on the stream. Both ranks make the same calls."""
        self.check(
            "run",
            self.rank.helper.kd_batch(
                *(
                    ctypes.cast(self.library.kerneltui_run, _pointer),
                    self.state,
                    _u32(self.problem.sets),
                ),
                *(_u64(Loaded.epoch + 1), _u32(count), _pointer(self.rank.stream.cuda_stream)),
            ),
        )
        Loaded.epoch += count

    def last_set(self) -> int:
        """The set of the last call."""
        return Loaded.epoch % self.problem.sets

    def close(self) -> None:
        """Calls teardown."""
        self.rank.torch.cuda.synchronize()
        self.rank.meet()
        self.check("teardown", self.library.kerneltui_teardown(self.state))


# ---- What a rank does -------------------------------------------------------------------------------


def relative_error(torch: Any, out: Any, reference: Any) -> float:
    """The relative Frobenius norm of the difference, block by block; NaN in the output gives NaN."""
    square = base = 0.0
    for i in range(0, out.shape[0], 2048):
        part, ref = out[i : i + 2048].float(), reference[i : i + 2048].float()
        square += (part - ref).square().sum(dtype=torch.float64).item()
        base += ref.square().sum(dtype=torch.float64).item()
    return math.sqrt(square / base) if base else math.sqrt(square)


def verify(
    rank: Rank, report: Any, specs: list[Spec], shapes: list[tuple[int, int, int]], sets: int
) -> None:
    """Every kernel on every shape: several calls, fresh inputs, poison, 0/1 inputs, a late rank."""
    torch = rank.torch
    for number, shape in enumerate(shapes):
        problem = Problem(rank, shape, sets)
        for case, (integers, late) in enumerate(((True, None), (False, 0), (False, 1))):
            seed = 1 + number * 16 + case
            problem.fill(seed, integers)
            small = shape[0] * shape[1] * shape[2] <= 1 << 31
            wide = torch.float64 if small else torch.float32
            references = [
                (problem.full_a(seed, integers, i).to(wide) @ problem.b[i].to(wide)).float()
                for i in range(sets)
            ]
            torch.cuda.synchronize()
            for index, spec in enumerate(specs):
                report("begin", f"verify {spec.text} {shape}")
                problem.poison()
                rank.meet()
                error = ""
                worst = 0.0
                try:
                    kernel = Loaded(rank, problem, spec)
                    if late == rank.rank:
                        rank.helper.kd_sleep(_u64(3_000_000), _pointer(rank.stream.cuda_stream))
                    calls = sets + (2 if case == 0 else 0)
                    kernel.call(calls)
                    rank.stream.synchronize()
                    for i in range(sets):
                        out, reference = problem.c[i], references[i]
                        if integers and not torch.equal(out, reference.bfloat16()):
                            wrong = (out != reference.bfloat16()).nonzero()
                            error = (
                                f"set {i}: {wrong.shape[0]} of {out.numel()} wrong on 0/1,"
                                f" first {wrong[0].tolist()}"
                            )
                            break
                        worst = max(worst, relative_error(torch, out, reference))
                        if not worst < 4e-3:
                            error = f"set {i}: relative error {worst:.3g}"
                            break
                    kernel.close()
                except DriverFault as fault:
                    error = str(fault)
                report("verified", (index, spec.text, shape, case, error, worst))
        problem.close()


def sample(rank: Rank, enqueue: Any, calls: int, before: Any, pause_s: float) -> float:
    """Milliseconds per call of a batch, on this rank; both ranks start together.

    A pause before it lets clocks and power settle, so that no kernel pays for its predecessor. The gate
    opens when a few calls are enqueued: a stream holds about a thousand operations, then the host waits.
    """
    torch = rank.torch
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    time.sleep(pause_s)
    rank.meet()
    rank.close_gate()
    before()
    begin.record(rank.stream)
    ahead = min(calls, 6)
    enqueue(ahead)
    rank.open_gate()
    enqueue(calls - ahead)
    end.record(rank.stream)
    rank.stream.synchronize()
    return begin.elapsed_time(end) / calls


def time_kernels(rank: Rank, report: Any, specs: list[Spec], job: dict[str, Any]) -> None:
    """Kernel by kernel, in an order of its own each round; the slowest rank of each sample counts."""
    torch = rank.torch
    pause_s = job["pause_s"]
    for number, shape in enumerate(job["time"]):
        n = shape[1]
        problem = Problem(rank, shape, SETS)
        problem.fill(1000 + number, False)
        problem.poison()
        contenders: list[tuple[str, Any, Loaded | None]] = []

        def gemm(calls: int, problem: Problem = problem) -> None:
            with torch.cuda.stream(rank.stream):
                for i in range(calls):
                    j = i % SETS
                    rows = problem.c[j][problem.first : problem.first + problem.rows]
                    torch.mm(problem.a[j], problem.b[j], out=rows)

        def gather(calls: int, problem: Problem = problem, n: int = n) -> None:
            counts = (_u64 * RANKS)(*(problem.rows * n * 2 for _ in range(RANKS)))
            for i in range(calls):
                window = problem.windows[i % SETS]
                own = window.local + problem.first * n * 2
                rank.helper.kd_all_gather(
                    *(_pointer(rank.host.self), _pointer(own), _pointer(window.local), counts),
                    _pointer(rank.stream.cuda_stream),
                )

        contenders.append(("gemm alone", gemm, None))
        contenders.append(("all-gather", gather, None))
        for spec in specs:
            report("begin", f"time {spec.text} {shape}")
            try:
                loaded = Loaded(rank, problem, spec)
                contenders.append((spec.text, loaded.call, loaded))
            except DriverFault as fault:
                report("timing_failed", (spec.text, shape, str(fault)))
        times: dict[str, list[float]] = {name: [] for name, _, _ in contenders}
        plan: dict[str, int] = {}
        for name, enqueue, _ in contenders:
            report("begin", f"time {name} {shape}")
            enqueue(2)
            one = sample(rank, enqueue, 3, partial(enqueue, 1), pause_s)
            one = max(one, rank.swap(one))
            plan[name] = max(
                job["min_calls"], min(job["max_calls"], math.ceil(job["batch_ms"] / one))
            )
        for turn in range(job["rounds"]):
            order = list(contenders)
            random.Random(number * 1000 + turn).shuffle(order)  # the same on both ranks
            for name, enqueue, _ in order:
                report("begin", f"time {name} {shape}")
                first = {"self": enqueue, "gemm": gemm, "gather": gather}.get(job["before"])
                before = (lambda: None) if first is None else partial(first, 1)
                own = sample(rank, enqueue, plan[name], before, pause_s)
                times[name].append(max(own, rank.swap(own)))
        errors: dict[str, float] = {}
        references = [
            torch.mm(problem.full_a(1000 + number, False, i), problem.b[i]) for i in range(SETS)
        ]
        for name, _, loaded in contenders:
            if loaded is None:
                continue
            report("begin", f"check {name} {shape}")
            problem.poison()
            rank.meet()
            loaded.call(SETS)
            rank.stream.synchronize()
            errors[name] = max(
                relative_error(torch, problem.c[i], references[i]) for i in range(SETS)
            )
            if math.isnan(errors[name]):
                errors[name] = math.inf
            loaded.close()
        del references
        report("timed", (shape, times, errors, plan))
        problem.close()
        del problem, contenders, gemm, gather
        torch.cuda.empty_cache()


def worker(rank_number: int, link: socket.socket, pipe: Connection, job: dict[str, Any]) -> None:
    """The process of one rank."""

    def report(kind: str, value: Any) -> None:
        pipe.send((kind, value))

    try:
        rank = Rank(rank_number, link, job["helper"])
        report("ready", "")
        if job["verify"]:
            checked = [s for s in job["specs"] if s.text not in job["diagnostic"]]
            verify(rank, report, checked, job["verify"], job["sets"])
        if job["time"]:
            time_kernels(rank, report, job["specs"], job)
        report("end", "")
    except BaseException:
        report("fault", traceback.format_exc())
        raise


# ---- The parent -------------------------------------------------------------------------------------


def run_group(job: dict[str, Any], results: dict[str, Any], deadline: float) -> str:
    """Runs both ranks. Returns what hung or broke ('' if nothing), in the words of its last `begin`."""
    context = mp.get_context("spawn")
    links = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pipes = [context.Pipe(duplex=False) for _ in range(RANKS)]
    processes = [
        context.Process(target=worker, args=(r, links[r], pipes[r][1], job), daemon=True)
        for r in range(RANKS)
    ]
    for process in processes:
        process.start()
    for link, (_, sender) in zip(links, pipes, strict=True):
        link.close()
        sender.close()
    open_pipes = {receiver: r for r, (receiver, _) in enumerate(pipes)}
    doing = ["start"] * RANKS
    heard = time.monotonic() + 60  # the start may take longer than a call
    trouble = ""
    while open_pipes:
        now = time.monotonic()
        if now > deadline:
            trouble = "out of time"
            break
        if now > heard + HANG_SECONDS:
            trouble = f"hang: {doing}"
            break
        for pipe in wait(list(open_pipes), timeout=0.5):
            r = open_pipes[pipe]
            try:
                kind, value = pipe.recv()
            except EOFError:
                del open_pipes[pipe]
                continue
            heard = max(heard, time.monotonic()) if doing[r] == "start" else time.monotonic()
            if kind == "begin":
                doing[r] = value
            elif kind == "ready":
                doing[r], heard = "ready", time.monotonic()
            elif kind == "fault":
                trouble = trouble or f"fault in rank {r}: {doing[r]}\n{value}"
            elif kind != "end":
                results.setdefault(kind, []).append((r, value))
        if trouble:
            time.sleep(0.3)
            break
    for process in processes:
        process.join(timeout=5 if not trouble else 0.2)
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
        elif process.exitcode and not trouble:
            trouble = f"rank ended with {process.exitcode}: {doing}"
    return trouble


def print_tables(specs: list[Spec], results: dict[str, Any], out: Path) -> None:
    """Prints what was verified and timed, and writes it to driver.json."""
    verified: dict[str, dict[str, Any]] = {}
    for r, (_, text, shape, case, error, worst) in results.get("verified", []):
        entry = verified.setdefault(text, {"checks": 0, "failures": [], "worst": 0.0})
        entry["checks"] += 1
        entry["worst"] = max(entry["worst"], worst)
        if error:
            entry["failures"].append({"rank": r, "shape": shape, "case": case, "error": error})
    print("\nverified (checks = shape x case x rank)")
    for text, entry in verified.items():
        print(
            f"  {text}: {entry['checks'] - len(entry['failures'])}/{entry['checks']}"
            f" worst {entry['worst']:.2e}"
        )
        for failure in entry["failures"][:6]:
            print(
                f"    rank {failure['rank']} {failure['shape']} case {failure['case']}: {failure['error']}"
            )
    for r, value in results.get("timing_failed", []):
        print("  not timed:", r, value)
    timed: list[dict[str, Any]] = []
    for r, (shape, times, errors, plan) in results.get("timed", []):
        if r != 0:
            continue
        median = {name: statistics.median(values) for name, values in times.items()}
        timed.append(
            {"shape": shape, "ms": median, "samples": times, "errors": errors, "calls": plan}
        )
    shares: dict[str, list[float]] = {}
    gains: dict[str, list[float]] = {}
    sequence = next((s.text for s in specs if s.source.stem == "host_nccl"), None)
    for entry in timed:
        ms = entry["ms"]
        bound = max(ms["gemm alone"], ms["all-gather"])
        print(f"\n{entry['shape']}: bound {bound:.4f} ms")
        for name, value in ms.items():
            spread = (max(entry["samples"][name]) - min(entry["samples"][name])) / value
            text = f"  {value:9.4f} ms  spread {spread:5.1%}  bound/t {bound / value:5.3f}"
            if sequence in ms:
                text += f"  seq/t {ms[sequence] / value:5.3f}"
            if name in entry["errors"]:
                text += f"  err {entry['errors'][name]:.1e}"
                shares.setdefault(name, []).append(bound / value)
                if sequence in ms:
                    gains.setdefault(name, []).append(ms[sequence] / value)
            print(text, " ", name)
    print("\ngeomean over the shapes timed: share of bound, gain over the sequence")
    for name, values in shares.items():
        gain = statistics.geometric_mean(gains[name]) if name in gains else math.nan
        print(
            f"  {statistics.geometric_mean(values):.3f}  {gain:.3f}  ({len(values)} shapes)  {name}"
        )
    (out / "driver.json").write_text(
        json.dumps(
            {"verified": verified, "timed": timed, "trouble": results.get("trouble", [])}, indent=1
        )
    )


def main() -> int:
    """Builds, verifies, times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="+")
    parser.add_argument(
        "--diagnostic", action="append", default=[], help="a kernel that is only timed"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--build", type=Path, default=ROOT / "build/driver")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--verify-shapes", help="M,N,K;... instead of the usual ones")
    parser.add_argument("--sets", type=int, default=SETS, help="buffer sets of the verification")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--time-shapes", help="M,N,K;... instead of the five")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-ms", type=float, default=20.0)
    parser.add_argument("--max-calls", type=int, default=100, help="of a batch")
    parser.add_argument("--min-calls", type=int, default=3, help="of a batch")
    parser.add_argument(
        "--before",
        choices=("self", "gemm", "gather", "none"),
        default="self",
        help="a batch: one call",
    )
    parser.add_argument("--pause-ms", type=float, default=80.0, help="before a batch")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for everything")
    parser.add_argument("--arch", default="arch=compute_90a,code=sm_90a")
    options = parser.parse_args()
    deadline = time.monotonic() + options.budget
    os.environ.update(ENVIRONMENT)
    options.out.mkdir(parents=True, exist_ok=True)
    options.build.mkdir(parents=True, exist_ok=True)
    specs = [parse_spec(text) for text in [*options.kernels, *options.diagnostic]]
    helper = parse_spec(str(Path(__file__).with_suffix(".cu")))
    unique = {(str(s.source), tuple(sorted(s.defines.items()))): s for s in [helper, *specs]}
    started = time.monotonic()
    with ThreadPoolExecutor(max(1, min(24, (os.cpu_count() or 2) - 2))) as pool:
        list(pool.map(lambda s: build(s, options.build, options.arch), unique.values()))
    for spec in specs:
        build(spec, options.build, options.arch)  # finds the library
        for line in spec.build_log.splitlines():
            if (
                re.search(r"error|C75|warning|spill (stores|loads)", line)
                and " 0 bytes spill" not in line
            ):
                print(f"{spec.text}: {line}")
    print(f"built {len(unique)} libraries in {time.monotonic() - started:.1f} s")
    specs = [s for s in specs if s.library]
    if options.build_only or not helper.library:
        return 0 if helper.library else 1
    parse = lambda text: [tuple(int(x) for x in item.split(",")) for item in text.split(";")]  # noqa: E731
    results: dict[str, Any] = {}
    remaining = specs
    job: dict[str, Any] = {
        "helper": helper.library,
        "rounds": options.rounds,
        "sets": options.sets,
        "batch_ms": options.batch_ms,
        "max_calls": options.max_calls,
        "min_calls": options.min_calls,
        "before": options.before,
        "pause_s": options.pause_ms / 1e3,
    }
    phases = []
    if options.verify:
        phases.append("verify")
    if options.time:
        phases.append("time")
    verify_shapes = parse(options.verify_shapes) if options.verify_shapes else VERIFY_SHAPES
    time_shapes = parse(options.time_shapes) if options.time_shapes else TIME_SHAPES
    attempts = 0
    while phases and remaining and attempts < 6:
        attempts += 1
        both = len(phases) == 2
        job |= {
            "specs": remaining,
            "diagnostic": options.diagnostic,
            "verify": verify_shapes if phases[0] == "verify" else [],
            "time": time_shapes if both or phases[0] == "time" else [],
        }
        trouble = run_group(job, results, deadline)
        if not trouble:
            break
        print("TROUBLE:", trouble)
        results.setdefault("trouble", []).append(trouble)
        if trouble == "out of time":
            break
        guilty = [s for s in remaining if s.text in trouble.split("\n")[0]]
        guilty = [max(guilty, key=lambda s: len(s.text))] if guilty else []
        if not guilty:
            break
        remaining = [s for s in remaining if s is not guilty[0]]
        done = {shape for r, (shape, *_) in results.get("timed", []) if r == 0}
        if done or " time " in trouble or "'time " in trouble:
            phases = ["time"]
        time_shapes = [s for s in time_shapes if s not in done]
    print_tables(specs, results, options.out)
    return 1 if results.get("trouble") else 0


if __name__ == "__main__":
    sys.exit(main())
