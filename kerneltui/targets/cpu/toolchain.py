"""Builds kernels for the CPU: a confined g++ or clang++, and a cache by content."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import secrets
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import kerneltui
from kerneltui.targets.cpu.jail import GRACE_S
from kerneltui.targets.environment import child_environment
from kerneltui.targets.errors import CompileFailure, TargetError
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.output import OutputKeeper
from kerneltui.targets.port import Build
from kerneltui.targets.processes import kill_tree

__all__ = ["CpuToolchain", "include_directory"]

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
_MEMORY_BYTES = 8 << 30
_FILE_BYTES = 1 << 30
_ERROR_LINE = re.compile(
    rb"(?:^|: )(?:fatal )?error: (?!ld returned)|undefined reference|multiple definition|cannot find -l"
)
_LONGEST_REASON = 300
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True, slots=True)
class _Run:
    code: int
    log: str
    errors: int
    first_error: str
    seconds: float
    timed_out: bool


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
        self._cache = cache
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
        key = _content_key(source_text, flags, f"{path} {version}")
        stored = self._stored(key)
        if stored:
            return stored
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="build-", dir=self._cache))
        except OSError as error:
            raise TargetError(
                f"cannot write the build cache {self._cache}: {error.strerror}"
            ) from error
        try:
            source = folder / "kernel.cpp"
            source.write_text(source_text)
            library = folder / "kernel.so"
            command = [
                path,
                *flags,
                f"-frandom-seed={key[:16]}",
                f"-I{include_directory()}",
                "kernel.cpp",
                "-o",
                "kernel.so",
            ]
            if needs_lock:
                with self._lock.compiling(stop=stop):
                    run = self._run(command, folder, limit_s, stop)
            else:
                run = self._run(command, folder, limit_s, stop)
            if run.timed_out:
                so_far = f", after {run.errors} errors: {run.first_error}" if run.errors else ""
                raise CompileFailure(
                    f"the compiler was stopped after {run.seconds:.0f} s{so_far}"[:_LONGEST_REASON],
                    run.log,
                    timed_out=True,
                )
            if run.code or not library.exists():
                raise CompileFailure(_reason(run), run.log)
            return self._store(key, library, run)
        except OSError as error:
            raise TargetError(f"cannot build in {folder}: {error.strerror}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

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

    def _run(
        self, command: Sequence[str], folder: Path, limit_s: float, stop: Callable[[], bool] | None
    ) -> _Run:
        rules = {
            "read": [str(p) for p in _readable(command[0])],
            "write": [str(folder)],
            "parent": os.getpid(),
            "memory_bytes": _MEMORY_BYTES,
            "cpu_seconds": int(limit_s) + 5,
            "file_bytes": _FILE_BYTES,
        }
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "kerneltui.targets.cpu.jail", json.dumps(rules), *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=child_environment({"LC_ALL": "C", "TMPDIR": str(folder), "HOME": str(folder)}),
            start_new_session=True,
        )
        output = process.stdout
        assert output is not None
        scanner = _ErrorScanner(str(folder).encode() + b"/")
        try:
            ended = _drain(output.fileno(), scanner, begin + limit_s, stop)
            while ended and process.poll() is None and time.monotonic() < begin + limit_s:
                time.sleep(0.002)
            timed_out = process.returncode is None
        finally:
            if process.returncode is None:
                _end(process)
            output.close()
        if stop is not None and timed_out and stop():
            raise CompileFailure("stopped", scanner.keeper.kept().text, timed_out=True)
        return _Run(
            code=process.wait(),
            log=scanner.keeper.kept().text,
            errors=scanner.errors,
            first_error=scanner.first,
            seconds=time.monotonic() - begin,
            timed_out=timed_out,
        )

    def _stored(self, key: str) -> Build | None:
        library = self._cache / f"{key}.so"
        try:
            record = json.loads((self._cache / f"{key}.json").read_text())
            intact = record["sha256"] == hashlib.sha256(library.read_bytes()).hexdigest()
            if intact:
                return Build(library, key, True, float(record["seconds"]), str(record["log"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # missing or damaged: built again
        return None

    def _store(self, key: str, library: Path, run: _Run) -> Build:
        record = {
            "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
            "seconds": run.seconds,
            "log": run.log,
        }
        # The record goes last: a library without one is built again.
        stored = self._cache / f"{key}.so"
        library.replace(stored)
        temporary = self._cache / f"{key}.{secrets.token_hex(4)}.tmp"
        temporary.write_text(json.dumps(record))
        temporary.replace(self._cache / f"{key}.json")
        return Build(stored, key, False, run.seconds, run.log)


class _ErrorScanner:
    """Counts error lines of an output of any length, and keeps the first."""

    def __init__(self, folder: bytes) -> None:
        self._folder = folder
        self.keeper = OutputKeeper()
        self.errors = 0
        self.first = ""
        self._line = b""

    def add(self, piece: bytes) -> None:
        *lines, rest = (self._line + piece).split(b"\n")
        for line in lines:
            self._take(line + b"\n")
        if len(rest) > _LONGEST_LINE:  # a line without end must not eat the memory
            self._take(rest)
            rest = b""
        self._line = rest

    def finish(self) -> None:
        self._take(self._line)

    def _take(self, line: bytes) -> None:
        line = line.replace(self._folder, b"")  # its name differs from build to build
        self.keeper.add(line)
        if _ERROR_LINE.search(line):
            self.errors += 1
            if not self.first:
                self.first = line.decode("utf-8", "replace").strip()


def include_directory() -> Path:
    """The folder to put on the include path for `kerneltui/kernel.h`."""
    return Path(kerneltui.__file__).parent / "include"


def _drain(
    fd: int, scanner: _ErrorScanner, deadline: float, stop: Callable[[], bool] | None
) -> bool:
    """Reads until the end of the output. False if the deadline or `stop` came first."""
    os.set_blocking(fd, False)
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or (stop is not None and stop()):
                return False
            if not selector.select(min(left, 0.1)):
                continue
            piece = os.read(fd, 1 << 16)
            if not piece:
                scanner.finish()
                return True
            scanner.add(piece)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the jail, which ends everything below it; by force if it does not."""
    process.terminate()
    try:
        process.wait(GRACE_S + 0.6)
    except subprocess.TimeoutExpired:
        kill_tree(process.pid, grace_s=0.0)
        process.wait()


def _reason(run: _Run) -> str:
    if not run.errors:
        last = run.log.strip().splitlines()[-1:] or ["no message"]
        how = f"signal {run.code - 128}" if run.code > 128 else f"code {run.code}"
        return f"the compiler failed ({how}): {last[0]}"[:_LONGEST_REASON]
    more = f" (and {run.errors - 1} more errors)" if run.errors > 1 else ""
    room = _LONGEST_REASON - len(more)
    first = run.first_error
    return (first if len(first) <= room else first[: room - 1] + "…") + more


def _content_key(source_text: str, flags: Sequence[str], compiler: str) -> str:
    digest = hashlib.sha256()
    header = (include_directory() / "kerneltui" / "kernel.h").read_text()
    for part in (source_text, *flags, compiler, header):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _readable(compiler: str) -> list[Path]:
    # A compiler outside of /usr (conda, a home folder) brings its own headers and programs.
    prefix = Path(compiler).resolve().parent.parent
    system = [Path(p) for p in ("/usr", "/lib", "/lib64", "/bin", "/etc", "/opt", "/proc", "/dev")]
    return [*system, prefix, include_directory()]


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
