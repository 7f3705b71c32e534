"""Builds kernels for CUDA: a confined nvcc, a cache by content, and a report of what came out."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kerneltui.model.errors import RecordError
from kerneltui.model.record import canonical_json, from_plain, parse_json
from kerneltui.targets.building import (
    BuildCache,
    CompilerRules,
    CompilerRun,
    content_key,
    include_directory,
    run_compiler,
)
from kerneltui.targets.cuda.code_record import report_record
from kerneltui.targets.cuda.codegen import CodegenReport, has_kernels, make_report, ptx_lines
from kerneltui.targets.cuda.launch_record import launch_record
from kerneltui.targets.cuda.packages import (
    CudaToolkit,
    Nccl,
    find_cutlass,
    find_disassembler,
    find_nccl,
    find_toolkit,
)
from kerneltui.targets.cuda.policy import DEFAULT_POLICY, MachinePolicy, PolicyRefusal
from kerneltui.targets.cuda.tracing import TRACED_NAMES, trace_flags, trace_sources
from kerneltui.targets.errors import CompileFailure, TargetError
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.port import Build
from kerneltui.targets.torch_files import torch_files, uses_torch

__all__ = ["CudaToolchain", "arch_of"]

_FLAGS = (
    "-std=c++17",
    "-O3",
    "-shared",
    "-lineinfo",
    "-DNVTX_DISABLE",  # the marks of CUB load a library, which the policy forbids
    "--keep",  # the preprocessed text and the PTX are what the policy looks at
    "-Xptxas",
    "-v",
    "-Xcompiler",
    "-fPIC,-fdiagnostics-color=never,-fmax-errors=100",
    "-Xlinker",
    "-z,now,-z,noexecstack",
)
_ERROR_LINE = re.compile(
    rb"\): (?:catastrophic )?error\b|: (?:fatal )?error: (?!ld returned)"
    rb"|; (?:error|fatal)\s*:|^nvcc (?:error|fatal)\s*:|^nvlink (?:error|fatal)\s*:"
    rb"|^ptxas (?:error|fatal)\s*: (?!Ptx assembly aborted)"
    rb"|(?<!warning: )undefined reference|multiple definition|cannot find -l"
)
_UNDEFINED = re.compile(r"warning: undefined reference to [`'\"]([^'\"]+)['\"]")
# The driver's, NCCL's, and those of torch for GPUs: what a machine without a GPU may lack.
_ELSEWHERE = re.compile(r"cu[A-Z]\w*|nccl\w*|(?:aoti_)?torch_\w+")
_PTX_PLACE = re.compile(r"ptxas (?:\S*/)?kernel\.ptx, line (\d+);")
_ARCH = re.compile(r"sm_\d{2,3}[af]?")
_USES_NCCL = re.compile(r"^\s*#\s*include\s*[<\"]nccl", re.MULTILINE)
_USES_CUTLASS = re.compile(r"^\s*#\s*include\s*[<\"](?:cutlass|cute)/", re.MULTILINE)
_MEMORY_BYTES = 24 << 30  # address space: ptxas reserves much more than it uses
_SASS_LIMIT_S = 60.0
_SASS_FILE = "kernel.sass"
_EXTRAS = {"kernel.ptx": "ptx", "kernel.cubin": "cubin"}


class CudaToolchain:
    """Compiles CUDA kernels. Safe to use from several threads.

    Args:
        cache: Folder for built libraries; made if missing. May be shared and may be deleted.
        arch: What to compile for, such as "sm_80" or "sm_90a"; see `arch_of`.
        nvcc: The command; found on this machine by default.
        nccl_home: Folder of NCCL's headers and library; found on this machine by default.
        policy: What kernels may not do on this machine.
        lock: Keeps compiles away from timing bursts.

    Raises:
        TargetError: The architecture has no such name.
    """

    def __init__(
        self,
        cache: Path,
        *,
        arch: str,
        nvcc: str | None = None,
        nccl_home: Path | None = None,
        policy: MachinePolicy = DEFAULT_POLICY,
        lock: MachineLock | None = None,
    ) -> None:
        if not _ARCH.fullmatch(arch):
            raise TargetError(f"'{arch}' is no architecture; write it as sm_80 or sm_90a")
        self.arch = arch
        self.policy = policy
        self._cache = BuildCache(cache)
        self._wanted = nvcc
        self._nccl_home = nccl_home
        self._lock = lock or MachineLock()
        self._toolkit: CudaToolkit | None = None
        self._finding = threading.Lock()

    @property
    def toolkit(self) -> CudaToolkit:
        """The CUDA toolkit.

        Raises:
            TargetError: There is none.
        """
        with self._finding:
            if self._toolkit is None:
                self._toolkit = find_toolkit(self._wanted)
            return self._toolkit

    @property
    def nccl(self) -> Nccl:
        """NCCL's headers and library.

        Raises:
            TargetError: There is none for this CUDA.
        """
        return find_nccl(self.toolkit.major, self._nccl_home)

    @property
    def version(self) -> str:
        """Nvcc's version and what it builds for."""
        return f"nvcc {self.toolkit.version}, for {self.arch}"

    def compile(
        self,
        source_text: str,
        *,
        defines: Mapping[str, str] | None = None,
        limit_s: float = 120.0,
        stop: Callable[[], bool] | None = None,
        needs_lock: bool = True,
        traced: bool = False,
    ) -> Build:
        """Builds a kernel, or gives the stored build of the same text.

        Args:
            source_text: The whole .cu file.
            defines: Further macros.
            limit_s: Time for the compiler, without the wait for the machine.
            stop: Asked while waiting and compiling; True ends it.
            needs_lock: False for callers that hold the machine already.
            traced: See `compile_traced`.

        Raises:
            PolicyRefusal: It uses what the machine's policy forbids.
            CompileFailure: It does not build, or not in time.
            TargetError: nvcc or headers are missing, or the cache cannot be written.
        """
        found = self.policy.check_source(source_text)
        if found:
            raise PolicyRefusal(found)
        toolkit = self.toolkit
        packages, readable, versions = self._packages(source_text)
        macros = [f"-D{name}={value}" for name, value in sorted((defines or {}).items())]
        flags = [*_FLAGS, *_target(self.arch), *macros, *packages]
        sources = {"kernel.cu": source_text}
        if traced:
            sources |= trace_sources()
            flags += [word for option in trace_flags() for word in ("-Xlinker", option)]
        identity = (toolkit.version, str(toolkit.nvcc), *versions, self.policy.digest)
        key = content_key((*sources.values(), *flags, *identity))
        extras = {} if traced else _EXTRAS
        stored = self._cache.find(key, extras.values())
        if stored:
            return stored
        command = [
            str(toolkit.nvcc),
            *flags,
            f"-I{include_directory()}",
            *sources,
            "-o",
            "kernel.so",
            *_driver(toolkit),
        ]
        rules = CompilerRules(_ERROR_LINE, (toolkit.root, *readable), _MEMORY_BYTES)

        def run(folder: Path) -> CompilerRun:
            if not needs_lock:
                return run_compiler(command, folder, rules, limit_s=limit_s, stop=stop)
            with self._lock.compiling(stop=stop):
                return run_compiler(command, folder, rules, limit_s=limit_s, stop=stop)

        def located(folder: Path) -> CompilerRun:
            return _with_source_line(run(folder), folder / "kernel.ptx")

        return self._cache.build(
            key,
            sources,
            "kernel.so",
            located,
            extras=extras,
            inspect=self._inspect,
        )

    def compile_traced(
        self, source_text: str, *, defines: Mapping[str, str] | None = None, limit_s: float = 120.0
    ) -> Build:
        """Builds a kernel that makes its launches one at a time and says which of them fails.

        It says so on standard error, in lines that begin with `[launch]`. For a run after a fault, never
        for one that is timed.

        Raises:
            CompileFailure: As `compile` does.
            TargetError: As `compile` does.
        """
        names = {**TRACED_NAMES, **(defines or {})}
        return self.compile(source_text, defines=names, limit_s=limit_s, traced=True)

    def codegen(self, build: Build) -> CodegenReport:
        """What the compiler made of a build: made when first asked for, and stored beside it.

        Raises:
            TargetError: The files of the build are gone from the cache.
        """
        disassembler = find_disassembler(self.toolkit)
        stored = self._stored_report(build)
        if stored and not (stored.missing and disassembler):
            return stored
        ptx = self._read(build, "ptx")
        sass = missing = ""
        try:
            if has_kernels(build.log):
                sass = self.sass(build)
        except TargetError as error:
            missing = str(error)
        report = make_report(
            build.log, ptx, sass, arch=self.arch, compiler=self.toolkit.version, missing=missing
        )
        self._cache.write(build.key, "codegen.json", canonical_json(report).decode())
        return report

    def code_record(self, build: Build) -> Mapping[str, Any]:
        """The report as plain data, for the record of an evaluation; see `code_record`.

        Raises:
            TargetError: The files of the build are gone from the cache.
        """
        return report_record(self.codegen(build))

    def launch_record(self, answer: Mapping[str, Any], multiprocessors: int) -> Mapping[str, Any]:
        """What a rank told of the launches of a call; see `launch_record`."""
        return launch_record(answer, self.arch, multiprocessors)

    def sass(self, build: Build) -> str:
        """The machine code of a build, as `nvdisasm` prints it.

        Raises:
            TargetError: There is no disassembler, or the build is gone from the cache.
        """
        kept = self._cache.extra(build.key, "sass")
        if kept.exists():
            return kept.read_text()
        disassembler = find_disassembler(self.toolkit)
        if disassembler is None:
            raise TargetError(
                "no nvdisasm, so instructions are not counted: pip install nvidia-cuda-nvdisasm"
            )
        cubin = self._cache.extra(build.key, "cubin")

        def run(folder: Path) -> CompilerRun:
            script = f'exec "$0" -c kernel.cubin > {_SASS_FILE}'
            shutil.copyfile(cubin, folder / "kernel.cubin")
            command = ["/bin/sh", "-c", script, str(disassembler)]
            rules = CompilerRules(re.compile(rb"^nvdisasm (?:error|fatal)"), (disassembler.parent,))
            return run_compiler(command, folder, rules, limit_s=_SASS_LIMIT_S)

        try:
            self._cache.keep(build.key, "sass", _SASS_FILE, run)
        except CompileFailure as error:
            raise TargetError(f"{disassembler.name} failed: {error.reason}") from error
        return kept.read_text()

    def _packages(self, source_text: str) -> tuple[list[str], list[Path], list[str]]:
        """Flags for the packages that a source uses, what may be read for them, their versions."""
        flags: list[str] = []
        readable: list[Path] = []
        versions: list[str] = []
        if _USES_NCCL.search(source_text):
            nccl = self.nccl
            if nccl.cuda_major not in (None, self.toolkit.major):
                raise TargetError(
                    f"NCCL is {nccl.origin}, but nvcc is of CUDA {self.toolkit.major}; "
                    f"pip install nvidia-nccl-cu{self.toolkit.major}"
                )
            flags.append(f"-I{nccl.include}")
            readable.append(nccl.include)
            versions.append(f"nccl {nccl.code}")
            if nccl.library is not None:
                flags += [f"-L{nccl.library.parent}", f"-l:{nccl.library.name}"]
                readable.append(nccl.library.parent)
        if _USES_CUTLASS.search(source_text):
            cutlass = find_cutlass()
            if cutlass is None:
                raise TargetError(
                    "no CUTLASS headers: pip install nvidia-cutlass, or set CUTLASS_HOME"
                )
            flags.append(f"-I{cutlass.include}")
            readable.append(cutlass.include)
            versions.append(f"cutlass {cutlass.version}")
        if uses_torch(source_text):
            torch = torch_files()
            flags += ["-DUSE_CUDA", *torch.compile_flags, *torch.link_flags]  # declares streams
            readable.append(torch.root)
            versions.append(f"torch {torch.version}")
        return flags, readable, versions

    def _inspect(self, folder: Path, run: CompilerRun) -> None:
        """Holds what was made to the policy, and finds functions that nobody has."""
        names = ("kernel.cpp1.ii", "kernel.cpp4.ii")  # for the device and for the host
        texts = [(folder / name).read_text(errors="replace") for name in names]
        found = [f for text in texts for f in self.policy.check_preprocessed(text, "kernel.cu")]
        found += self.policy.check_ptx((folder / "kernel.ptx").read_text(errors="replace"))
        found += self.policy.check_symbols(folder / "kernel.o", texts)
        if found:
            raise PolicyRefusal(tuple(dict.fromkeys(found)))
        for name in _UNDEFINED.findall(run.log):
            if not _ELSEWHERE.fullmatch(name):
                raise CompileFailure(f"undefined reference to '{name}'", run.log)

    def _stored_report(self, build: Build) -> CodegenReport | None:
        try:
            data = self._cache.extra(build.key, "codegen.json").read_bytes()
            return from_plain(CodegenReport, parse_json(data))
        except (OSError, RecordError):
            return None

    def _read(self, build: Build, name: str) -> str:
        try:
            return self._cache.extra(build.key, name).read_text(errors="replace")
        except OSError as error:
            raise TargetError(
                f"build {build.key[:12]} is gone from the cache; compile it again"
            ) from error


def arch_of(major: int, minor: int) -> str:
    """The architecture to compile for, by a device's compute capability.

    From 9.0 on the tensor cores' own instructions need the letter "a".
    """
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def _target(arch: str) -> list[str]:
    return ["-gencode", f"arch={arch.replace('sm_', 'compute_')},code={arch}"]


def _driver(toolkit: CudaToolkit) -> list[str]:
    """Flags for libcuda: the driver's own, the toolkit's stub, or neither on a machine without."""
    machine = os.uname().machine
    driver = [f"/usr/lib/{machine}-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib", "/usr/local/lib"]
    for folder in map(Path, driver):
        if (folder / "libcuda.so.1").exists():
            return ["-Xlinker", "-z,defs,--as-needed", f"-L{folder}", "-l:libcuda.so.1"]
    for folder in (toolkit.root / "lib64" / "stubs", toolkit.root / "lib" / "stubs"):
        if (folder / "libcuda.so").exists():
            return ["-Xlinker", "-z,defs,--as-needed", f"-L{folder}", "-lcuda"]
    # functions of the driver stay open; others are found in the linker's warnings
    return ["-Xlinker", "-z,defs,--warn-unresolved-symbols"]


def _with_source_line(run: CompilerRun, ptx: Path) -> CompilerRun:
    """The run; a first error in inline PTX gets the line of the source."""
    place = _PTX_PLACE.search(run.first_error)
    try:
        lines = ptx_lines(ptx.read_text(errors="replace")) if place else []
    except OSError:
        return run
    number = int(place[1]) if place else 0
    line = lines[number] if number < len(lines) else 0
    return replace(run, first_error=f"kernel.cu({line}): {run.first_error}") if line else run
