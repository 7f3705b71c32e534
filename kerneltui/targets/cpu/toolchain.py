"""Builds kernels for the CPU: a confined g++ or clang++, and a cache by content."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from kerneltui.targets.building import (
    BuildCache,
    CompilerRules,
    CompilerRun,
    content_key,
    include_directory,
    run_compiler,
)
from kerneltui.targets.environment import child_environment
from kerneltui.targets.errors import TargetError
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.port import Build
from kerneltui.targets.torch_files import torch_files, uses_torch

__all__ = ["CpuToolchain"]

_FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-shared",
    "-fPIC",
    "-fno-semantic-interposition",
    "-fno-math-errno",
    "-fdiagnostics-color=never",
    "-fmax-errors=100",
    "-Wall",
    "-Wl,-z,defs",
    "-Wl,-z,now",
    "-Wl,-z,noexecstack",
)
_ERROR_LINE = re.compile(
    rb"(?:^|: )(?:fatal )?error: (?!ld returned)|undefined reference|multiple definition|cannot find -l"
)


class CpuToolchain:
    """Compiles C++ kernels. Safe to use from several threads.

    Args:
        cache: Folder for built libraries; made if missing. May be shared and may be deleted.
        compiler: Compiler command; `$CXX`, else g++ or clang++, whichever is found first.
        lock: Keeps compiles away from timing bursts.
    """

    def __init__(
        self, cache: Path, *, compiler: str | None = None, lock: MachineLock | None = None
    ) -> None:
        self._cache = BuildCache(cache)
        self._wanted = compiler
        self._lock = lock or MachineLock()
        self._found: tuple[str, str] | None = None

    @property
    def compiler(self) -> str:
        """Path of the compiler.

        Raises:
            TargetError: If there is none.
        """
        return self._compiler()[0]

    @property
    def version(self) -> str:
        """First line of what the compiler says of itself, and the processor it builds for."""
        return self._compiler()[1]

    def compile(
        self,
        source_text: str,
        *,
        defines: Mapping[str, str] | None = None,
        limit_s: float = 120.0,
        stop: Callable[[], bool] | None = None,
        needs_lock: bool = True,
    ) -> Build:
        """Builds a kernel, or gives the stored build of the same text.

        Args:
            source_text: The whole C++ file.
            defines: Further macros.
            limit_s: Time for the compiler, without the wait for the machine.
            stop: Asked while waiting and compiling; True ends it.
            needs_lock: False for callers that hold the machine already.

        Raises:
            CompileFailure: If it does not build, or not in time.
            TargetError: If there is no compiler, or the cache cannot be written.
        """
        path, version = self._compiler()
        flags = [*_FLAGS, *(f"-D{name}={value}" for name, value in sorted((defines or {}).items()))]
        torch = torch_files() if uses_torch(source_text) else None
        identity = (f"{path} {version}", *([f"torch {torch.version}"] if torch else []))
        key = content_key((source_text, *flags, *identity))
        stored = self._cache.find(key)
        if stored:
            return stored
        # A compiler outside of /usr (conda, a home folder) brings its own headers and programs.
        readable = (Path(path).resolve().parent.parent, *([torch.root] if torch else []))
        rules = CompilerRules(_ERROR_LINE, readable)
        command = [
            path,
            *flags,
            f"-frandom-seed={key[:16]}",
            f"-I{include_directory()}",
            *(torch.compile_flags if torch else []),
            "kernel.cpp",
            "-o",
            "kernel.so",
            *(torch.link_flags if torch else []),
        ]

        def run(folder: Path) -> CompilerRun:
            if not needs_lock:
                return run_compiler(command, folder, rules, limit_s=limit_s, stop=stop)
            with self._lock.compiling(stop=stop):
                return run_compiler(command, folder, rules, limit_s=limit_s, stop=stop)

        return self._cache.build(key, {"kernel.cpp": source_text}, "kernel.so", run)

    def _compiler(self) -> tuple[str, str]:
        if self._found is None:
            named = self._wanted or os.environ.get("CXX")
            candidates = (named,) if named else ("g++", "clang++")
            path = next((p for p in (shutil.which(c) for c in candidates) if p), None)
            if path is None:
                raise TargetError(
                    f"no C++ compiler: {' and '.join(candidates)} not found; install g++ or set CXX"
                )
            answer = subprocess.run(
                [path, "--version"],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
                env=child_environment({"LC_ALL": "C"}),
            )
            if answer.returncode:
                raise TargetError(f"{path} --version failed; set CXX to a C++ compiler")
            self._found = (path, f"{answer.stdout.splitlines()[0]}, for {_processor()}")
        return self._found


def _processor() -> str:
    """What `-march=native` means here, so that a cache on a shared disk serves two machines."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                digest = hashlib.sha256(line.encode()).hexdigest()[:12]
                return f"{platform.machine()} {digest}"
    except OSError:
        pass
    return platform.machine()
