"""What the toolchains share: a confined compiler, its message of any length, a cache by content."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import kerneltui
from kerneltui.targets.compiler_fault import machine_fault
from kerneltui.targets.cpu.jail import GRACE_S
from kerneltui.targets.environment import child_environment
from kerneltui.targets.errors import CompileFailure, TargetError
from kerneltui.targets.output import OutputKeeper
from kerneltui.targets.port import Build
from kerneltui.targets.processes import kill_tree

__all__ = [
    "BuildCache",
    "CompilerRules",
    "CompilerRun",
    "check_run",
    "content_key",
    "include_directory",
    "run_compiler",
]

_LONGEST_REASON = 300
_FILE_BYTES = 1 << 30
_LONGEST_LINE = 1 << 16
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc", "/opt", "/proc", "/dev")


@dataclass(frozen=True, slots=True)
class CompilerRules:
    """How a compiler is run.

    Attributes:
        error: What a line of the output that reports an error looks like.
        readable: Folders that it may read beside those of the system and the contract's header.
        memory_bytes: Address space of each of its processes.
    """

    error: re.Pattern[bytes]
    readable: tuple[Path, ...]
    memory_bytes: int = 8 << 30


@dataclass(frozen=True, slots=True)
class CompilerRun:
    """How a compiler ended.

    Attributes:
        code: Its exit code.
        log: The kept part of its output.
        errors: Lines that report an error.
        first_error: The first of them.
        seconds: How long it ran.
        timed_out: True if the limit ended it.
    """

    code: int
    log: str
    errors: int
    first_error: str
    seconds: float
    timed_out: bool


def include_directory() -> Path:
    """The folder to put on the include path for `kerneltui/kernel.h`."""
    return Path(kerneltui.__file__).parent / "include"


def content_key(parts: Iterable[str]) -> str:
    """The content address of a build: everything that decides about it, and the contract's header."""
    digest = hashlib.sha256()
    header = (include_directory() / "kerneltui" / "kernel.h").read_text()
    for part in (*parts, header):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def run_compiler(
    command: Sequence[str],
    folder: Path,
    rules: CompilerRules,
    *,
    limit_s: float,
    stop: Callable[[], bool] | None = None,
) -> CompilerRun:
    """Runs a compiler confined: no network, and write access to `folder` only.

    Args:
        command: Program and arguments.
        folder: Where it works.
        rules: What its messages look like and what it may read.
        limit_s: Time that it has.
        stop: Asked meanwhile; True ends it.

    Raises:
        CompileFailure: If `stop` said so.
    """
    jail = {
        "read": [*_SYSTEM, *map(str, rules.readable), str(include_directory())],
        "write": [str(folder)],
        "parent": os.getpid(),
        "memory_bytes": rules.memory_bytes,
        "cpu_seconds": int(limit_s) + 5,
        "file_bytes": _FILE_BYTES,
    }
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", "kerneltui.targets.cpu.jail", json.dumps(jail), *command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=child_environment({"LC_ALL": "C", "TMPDIR": str(folder), "HOME": str(folder)}),
        start_new_session=True,
    )
    output = process.stdout
    assert output is not None
    scanner = _ErrorScanner(rules.error, str(folder).encode() + b"/")
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
    return CompilerRun(
        code=process.wait(),
        log=scanner.keeper.kept().text,
        errors=scanner.errors,
        first_error=scanner.first,
        seconds=time.monotonic() - begin,
        timed_out=timed_out,
    )


def check_run(run: CompilerRun, product: Path) -> None:
    """Raises if a compiler did not make its product.

    Raises:
        CompileFailure: With the first error as its reason.
        TargetError: The machine failed, and not the kernel: a full disk, or a compiler that was killed.
    """
    if run.timed_out:
        so_far = f", after {run.errors} errors: {run.first_error}" if run.errors else ""
        reason = f"the compiler was stopped after {run.seconds:.0f} s{so_far}"
        raise CompileFailure(reason[:_LONGEST_REASON], run.log, timed_out=True)
    if run.code or not product.exists():
        if fault := machine_fault(run.code, run.log):
            raise TargetError(f"the machine cannot compile; {fault}"[:_LONGEST_REASON])
        raise CompileFailure(_reason(run), run.log)


class BuildCache:
    """Built libraries by content. Any number of threads and processes may share one.

    Args:
        folder: Where they lie; made when needed. May be deleted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str, extras: Iterable[str] = ()) -> Build | None:
        """The stored build; None if it, or one of the named further files, is missing or damaged."""
        library = self.folder / f"{key}.so"
        try:
            record = json.loads((self.folder / f"{key}.json").read_text())
            whole = record["sha256"] == hashlib.sha256(library.read_bytes()).hexdigest()
            if whole and all(self.extra(key, name).exists() for name in extras):
                return Build(library, key, True, float(record["seconds"]), str(record["log"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # built again
        return None

    def extra(self, key: str, name: str) -> Path:
        """Where a further file of a build lies, such as its assembly."""
        return self.folder / f"{key}.{name}"

    def build(
        self,
        key: str,
        sources: Mapping[str, str],
        product: str,
        run: Callable[[Path], CompilerRun],
        *,
        extras: Mapping[str, str] | None = None,
        inspect: Callable[[Path, CompilerRun], None] | None = None,
    ) -> Build:
        """Builds in a folder of its own, which is gone afterwards, and stores what comes out.

        Args:
            key: Content address.
            sources: Files to begin with, by name.
            product: Name of the library that the compiler makes.
            run: Runs the compiler in the folder.
            extras: Further files to keep if they are there: name in the folder to name in the cache.
            inspect: Looks at what was made before it is stored; may refuse it.

        Raises:
            CompileFailure: If it does not build.
            TargetError: If the cache cannot be written, or the machine cannot compile.
        """
        with self._working() as folder:
            for name, text in sources.items():
                (folder / name).write_text(text)
            made = run(folder)
            check_run(made, folder / product)
            if inspect is not None:
                inspect(folder, made)
            for name, kept_as in (extras or {}).items():
                with suppress(FileNotFoundError):
                    (folder / name).replace(self.extra(key, kept_as))
            return self._store(key, folder / product, made)

    def keep(
        self, key: str, name: str, product: str, run: Callable[[Path], CompilerRun]
    ) -> CompilerRun:
        """Makes a further file of a build in a folder of its own, and stores it.

        Args:
            key: Content address of the build.
            name: Name of the further file in the cache.
            product: Name of what the program makes.
            run: Runs the program in the folder.

        Raises:
            CompileFailure: The program fails.
            TargetError: The cache cannot be read or written.
        """
        with self._working() as folder:
            made = run(folder)
            check_run(made, folder / product)
            (folder / product).replace(self.extra(key, name))
            return made

    @contextmanager
    def _working(self) -> Iterator[Path]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="build-", dir=self.folder))
        except OSError as error:
            raise TargetError(
                f"cannot write the build cache {self.folder}: {error.strerror}"
            ) from error
        try:
            yield folder
        except OSError as error:
            raise TargetError(f"cannot build in {folder}: {error.strerror}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def write(self, key: str, name: str, text: str) -> None:
        """Stores a further file of a build, whole or not at all."""
        temporary = self.folder / f"{key}.{secrets.token_hex(4)}.tmp"
        try:
            temporary.write_text(text)
            temporary.replace(self.extra(key, name))
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise TargetError(
                f"cannot write the build cache {self.folder}: {error.strerror}"
            ) from error

    def _store(self, key: str, library: Path, run: CompilerRun) -> Build:
        record = {
            "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
            "seconds": run.seconds,
            "log": run.log,
        }
        # The record goes last: a library without one is built again.
        stored = self.folder / f"{key}.so"
        library.replace(stored)
        self.write(key, "json", json.dumps(record))
        return Build(stored, key, False, run.seconds, run.log)


class _ErrorScanner:
    """Counts error lines of an output of any length, and keeps the first."""

    def __init__(self, error: re.Pattern[bytes], folder: bytes) -> None:
        self._error = error
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
        if self._error.search(line):
            self.errors += 1
            if not self.first:
                self.first = line.decode("utf-8", "replace").strip()


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


def _reason(run: CompilerRun) -> str:
    if not run.errors:
        last = run.log.strip().splitlines()[-1:] or ["no message"]
        how = f"signal {run.code - 128}" if run.code > 128 else f"code {run.code}"
        return f"the compiler failed ({how}): {last[0]}"[:_LONGEST_REASON]
    more = f" (and {run.errors - 1} more errors)" if run.errors > 1 else ""
    room = _LONGEST_REASON - len(more)
    first = run.first_error
    return (first if len(first) <= room else first[: room - 1] + "…") + more
