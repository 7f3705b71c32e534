"""A compiler that the machine ends says nothing of the kernel."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kerneltui.targets.building import BuildCache
from kerneltui.targets.compiler_fault import machine_fault
from kerneltui.targets.cpu.toolchain import CpuToolchain
from kerneltui.targets.cuda.toolchain import CudaToolchain
from kerneltui.targets.errors import CompileFailure, TargetError
from kerneltui.targets.locks import MachineLock

FULL = [
    "x.h(357): catastrophic error: error while writing generated C++ file: No space left on device",
    "<built-in>: fatal error: when writing output to kernel.cpp1.ii: No space left on device",
    "kernel.cpp:3:59: fatal error: error writing to /x/ccXLY1SB.s: No space left on device",
    "/x/cc.s: Fatal error: can't write 4 bytes to section .text of kernel.o: 'No space left on device'",
    "/usr/bin/ld: final link failed: No space left on device",
    "/usr/bin/ld: final link failed: Disk quota exceeded",
]
KILLED = [
    "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
    "g++: fatal error: Killed signal terminated program cc1plus",
    "collect2: fatal error: ld terminated with signal 9 [Killed]",
    "clang++: error: unable to execute command: Killed",
]
OF_THE_KERNEL = [
    "kernel.cpp:1:2: error: #error No space left on device",
    "kernel.cu(1): error: #error directive: No space left on device",
    "kernel.cpp:1:15: error: static assertion failed: No space left on device",
    "    1 | // No space left on device",
    "nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)",
    "kernel.cu(1): error: #error nvcc error : 'cicc' died due to signal 9",
]


def nvcc(folder: Path, body: str) -> CudaToolchain:
    """CUDA's toolchain over a program that says it is nvcc, and does `body` when it shall compile."""
    path = folder / "nvcc"
    path.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        '  --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0;;\n'
        f"  --dryrun) echo '#$ TOP={folder}'; exit 0;;\n"
        f"esac\n{body}\n"
    )
    path.chmod(0o755)
    lock = MachineLock(folder)
    return CudaToolchain(folder / "cache", arch="sm_90a", nvcc=str(path), lock=lock)


@contextmanager
def files_of(nbytes: int) -> Iterator[None]:
    """No file can be written beyond so many bytes, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("line", FULL)
def test_a_full_disk_is_known_by_what_compilers_and_linkers_say(line: str) -> None:
    assert machine_fault(1, f"kernel.cu(3): warning\n{line}\nmore\n") == f"free some space: {line}"


@pytest.mark.parametrize("line", KILLED)
def test_a_part_of_a_compiler_that_was_killed_is_known(line: str) -> None:
    assert machine_fault(1, f"{line}\ncompilation terminated.\n").endswith(line)


@pytest.mark.parametrize("line", OF_THE_KERNEL)
def test_what_a_kernel_says_or_brings_about_itself_is_its_own(line: str) -> None:
    assert machine_fault(1, f"{line}\n") == ""


@pytest.mark.parametrize("code", [-signal.SIGKILL, 128 + signal.SIGKILL, 128 + signal.SIGTERM])
def test_a_signal_from_outside_is_known_by_the_exit_code(code: int) -> None:
    assert "it was ended from outside" in machine_fault(code, "")


@pytest.mark.parametrize("code", [1, 4, 128 + signal.SIGSEGV, 128 + signal.SIGXFSZ, 255])
def test_other_ends_are_the_compilers_own(code: int) -> None:
    assert machine_fault(code, "") == ""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo '/usr/bin/ld: final link failed: No space left on device' >&2; exit 1", "No space"),
        ("echo \"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\" >&2; exit 1", "'cicc'"),
        ("kill -KILL $$", "signal 9 (SIGKILL)"),
    ],
    ids=["disk", "part", "killed"],
)
def test_a_fault_of_the_machine_is_no_error_of_the_kernel(
    tmp_path: Path, body: str, reason: str
) -> None:
    with pytest.raises(TargetError) as caught:
        nvcc(tmp_path, body).compile("int a;")
    assert not isinstance(caught.value, CompileFailure)
    text = str(caught.value)
    assert text.startswith("the machine cannot compile; ") and reason in text and "\n" not in text
    assert not list((tmp_path / "cache").iterdir())


def test_a_real_compiler_whose_part_is_killed_says_so(tmp_path: Path) -> None:
    """Its parts are found by the folders of its own, and the first is killed when it begins."""
    part = tmp_path / "cc1plus"
    part.write_text("#!/bin/sh\nkill -KILL $$\n")
    part.chmod(0o755)
    compiler = tmp_path / "g++-of-the-test"
    compiler.write_text(f'#!/bin/sh\nexec g++ -B{tmp_path}/ "$@"\n')
    compiler.chmod(0o755)
    toolchain = CpuToolchain(tmp_path / "cache", compiler=str(compiler), lock=MachineLock(tmp_path))
    with pytest.raises(TargetError, match="Killed signal terminated program cc1plus") as caught:
        toolchain.compile("int a;")
    assert not isinstance(caught.value, CompileFailure)


def test_a_further_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    cache.write("key", "txt", "short")
    with files_of(10), pytest.raises(TargetError, match="cannot write the build cache"):
        cache.write("key", "txt", "longer than a file may be")
    assert [file.name for file in tmp_path.iterdir()] == ["key.txt"]
    assert cache.extra("key", "txt").read_text() == "short"
