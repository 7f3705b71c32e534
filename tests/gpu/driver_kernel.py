"""Kernel files of the drivers: read with values of their tunables, built, opened and set up.

Only standard library and the structures of `kernel.h`, so that a driver runs wherever torch and nvcc are.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kerneltui.evaluation.worker_abi import (
    ABI_VERSION,
    BufferSet,
    Context,
    Requirements,
    named_values,
)

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = "arch=compute_90a,code=sm_90a"
"""What nvcc compiles for, unless told otherwise."""

Shape = tuple[int, int, int]
FailFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)


class DriverFault(RuntimeError):
    """A call of CUDA, NCCL or the kernel failed."""


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


def parse_shapes(text: str) -> list[Shape]:
    """Reads `M,N,K;...`."""
    shapes: list[Shape] = []
    for item in text.split(";"):
        m, n, k = (int(size) for size in item.split(","))
        shapes.append((m, n, k))
    return shapes


@dataclass(frozen=True)
class Unit:
    """What goes into a library, and so names it."""

    source: str
    architecture: str
    element: str

    @property
    def name(self) -> str:
        """The library's name, without a folder."""
        text = self.source + self.architecture + self.element
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def unit_of(spec: Spec, architecture: str, dtype: str) -> Unit:
    """The source of a kernel with its compile-time tunables put in."""
    source = spec.source.read_text()
    for key, value in spec.defines.items():
        source, count = re.subn(rf"(?m)^#define {key} .*$", f"#define {key} {value}", source)
        if count != 1:
            raise SystemExit(f"{spec.source}: '#define {key}' found {count} times")
    return Unit(source, architecture, f"-DKT_ELEMENT=KT_ELEMENT_{dtype.upper()}")


def build(unit: Unit, folder: Path) -> tuple[str, str]:
    """Compiles a library unless it is there; gives its path, '' if it failed, and what nvcc said."""
    library, part = folder / f"{unit.name}.so", folder / f"{unit.name}.tmp.so"
    if library.exists():
        return str(library), ""
    file = folder / f"{unit.name}.cu"
    file.write_text(unit.source)
    command = [
        *("nvcc", "-std=c++17", "-O3", "-gencode", unit.architecture, "-Xptxas", "-v", "-shared"),
        *(unit.element, "-Xcompiler", "-fPIC", "-I", str(ROOT / "kerneltui/include"), str(file)),
        *("-o", str(part)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    log = done.stdout + done.stderr
    if done.returncode:
        return "", log
    part.replace(library)
    return str(library), log


def build_all(
    specs: Sequence[Spec],
    folder: Path,
    architecture: str,
    dtype: str = "bfloat16",
    *,
    threads: int,
) -> int:
    """Builds the libraries of kernels for an element type; returns how many there are.

    Kernels that differ in run-time tunables only have the same library. It is built once: two compilers
    at one file would take it from each other.
    """
    groups: dict[Unit, list[Spec]] = {}
    for spec in specs:
        groups.setdefault(unit_of(spec, architecture, dtype), []).append(spec)
    with ThreadPoolExecutor(threads) as pool:
        built = list(pool.map(lambda unit: build(unit, folder), groups))
    for group, (library, log) in zip(groups.values(), built, strict=True):
        for spec in group:
            spec.library, spec.build_log = library, log
    return len(groups)


class Opened:
    """A kernel's library and what it is told of one problem, on one rank."""

    def __init__(
        self, spec: Spec, shape: Shape, values: Mapping[str, int], *, rank: int = 0, ranks: int = 1
    ) -> None:
        """Asks for the requirements; `values` override the run-time tunables of the spec."""
        self.library = ctypes.CDLL(spec.library)
        self.rank, self.ranks, self.reason = rank, ranks, ""
        runtime = spec.runtime | dict(values)
        self.dimensions = named_values(dict(zip("MNK", shape, strict=True)))
        self.tunables, self.tunable_count = named_values(runtime), len(runtime)
        self.state = ctypes.c_void_p()
        self.fail = FailFunction(self._fail)
        self.asked = Requirements()
        number = ctypes.c_uint32
        code = self.library.kerneltui_requirements(
            *(self.dimensions, number(3), self.tunables, number(self.tunable_count)),
            *(number(rank), number(ranks), ctypes.byref(self.asked)),
        )
        if code or self.asked.abi_version != ABI_VERSION:
            raise DriverFault(f"requirements returned {code}, version {self.asked.abi_version}")

    def set_up(self, buffers: ctypes.Array[BufferSet], scratch: int, **fields: Any) -> None:
        """Calls setup with buffer sets, the address of scratch, and further fields of the context."""
        self.context = Context(
            abi_version=ABI_VERSION, rank=self.rank, ranks=self.ranks, threads=1,
            dimension_count=3, dimensions=self.dimensions,
            tunable_count=self.tunable_count, tunables=self.tunables,
            sets=len(buffers), buffers=buffers,
            scratch=scratch, scratch_bytes=self.asked.scratch_bytes,
            fail=ctypes.cast(self.fail, ctypes.c_void_p).value, **fields,
        )  # fmt: skip
        self.check(
            "setup",
            self.library.kerneltui_setup(ctypes.byref(self.context), ctypes.byref(self.state)),
        )

    def _fail(self, _self: int, text: bytes) -> None:
        self.reason = text.decode(errors="replace")

    def check(self, what: str, code: int) -> None:
        """Raises if a step of the kernel failed."""
        if code:
            raise DriverFault(f"{what} returned {code}: {self.reason or 'no reason given'}")

    def tear_down(self) -> int:
        """Calls teardown; returns its code."""
        return self.library.kerneltui_teardown(self.state)
