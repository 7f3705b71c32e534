"""Building kernels: cache, reasons, limits, and nothing left of a compiler that was stopped."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kerneltui.targets import building
from kerneltui.targets.cpu.landlock import landlock_version
from kerneltui.targets.cpu.toolchain import CpuToolchain
from kerneltui.targets.errors import CompileFailure, TargetError
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.processes import descendants

GOOD = 'extern "C" int answer() { return ANSWER; }\n'


@pytest.fixture
def toolchain(tmp_path: Path) -> CpuToolchain:
    return CpuToolchain(tmp_path / "cache", lock=MachineLock(tmp_path))


def fake_compiler(folder: Path, body: str) -> str:
    path = folder / "fake-compiler"
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo fake 1; exit 0; fi\n{body}\n')
    path.chmod(0o755)
    return str(path)


def refused(toolchain: CpuToolchain, source: str, **more: float) -> CompileFailure:
    with pytest.raises(CompileFailure) as caught:
        toolchain.compile(source, **more)
    assert "\n" not in caught.value.reason
    assert not list(toolchain._cache.folder.glob("build-*")), "the folder of the build is left"
    return caught.value


def test_the_same_text_is_built_once(toolchain: CpuToolchain) -> None:
    first = toolchain.compile(GOOD, defines={"ANSWER": "1"})
    again = toolchain.compile(GOOD, defines={"ANSWER": "1"})
    other = toolchain.compile(GOOD, defines={"ANSWER": "2"})
    assert (first.cached, again.cached, other.cached) == (False, True, False)
    assert first.library == again.library != other.library
    assert first.key == again.key != other.key
    assert first.library.read_bytes() != other.library.read_bytes()


@pytest.mark.parametrize("damage", ["library", "record", "lost record"])
def test_a_damaged_entry_is_built_again(toolchain: CpuToolchain, damage: str) -> None:
    first = toolchain.compile(GOOD, defines={"ANSWER": "1"})
    record = first.library.with_suffix(".json")
    good = first.library.read_bytes()
    if damage == "library":
        first.library.write_bytes(good[:100])
    elif damage == "record":
        record.write_text("{")
    else:
        record.unlink()
    again = toolchain.compile(GOOD, defines={"ANSWER": "1"})
    assert not again.cached
    assert again.library.read_bytes() == good


def test_an_error_names_place_and_cause(toolchain: CpuToolchain) -> None:
    failure = refused(toolchain, "int f() { return 1 }\nint g() { return undeclared; }\n")
    assert failure.reason.startswith("kernel.cpp:1:")
    assert failure.reason.endswith("(and 1 more errors)")
    assert "undeclared" in failure.log and not failure.timed_out


def test_an_undefined_function_is_an_error(toolchain: CpuToolchain) -> None:
    failure = refused(toolchain, 'int f(); extern "C" int g() { return f(); }')
    assert "undefined reference to `f()'" in failure.reason


def test_the_contract_header_is_found(toolchain: CpuToolchain) -> None:
    source = '#include "kerneltui/kernel.h"\nint version = KERNELTUI_ABI_VERSION;\n'
    assert toolchain.compile(source).library.exists()


def test_a_message_of_forty_thousand_lines_is_short(tmp_path: Path) -> None:
    body = (
        "awk 'BEGIN { for (i = 1; i <= 40000; i++) "
        'print "kernel.cpp:" i ":1: error: number " i " of many" }\' >&2; exit 1'
    )
    compiler = fake_compiler(tmp_path, body)
    toolchain = CpuToolchain(tmp_path / "cache", compiler=compiler, lock=MachineLock(tmp_path))
    failure = refused(toolchain, GOOD)
    assert failure.reason == "kernel.cpp:1:1: error: number 1 of many (and 39999 more errors)"
    assert len(failure.log) < 140_000
    assert "number 1 of many" in failure.log and "number 40000 of many" in failure.log


@pytest.mark.parametrize("stopped", [False, True], ids=["limit", "stop"])
def test_a_stopped_compiler_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    # It starts a child that ignores SIGTERM and leaves the process group.
    body = """
    echo 'kernel.cpp:1:1: error: so far'
    (trap '' TERM; setsid sh -c 'trap "" TERM; : > begun; sleep 1000' & sleep 1000) &
    sleep 1000
    """
    compiler = fake_compiler(tmp_path, body)
    toolchain = CpuToolchain(tmp_path / "cache", compiler=compiler, lock=MachineLock(tmp_path))
    before = descendants([os.getpid()])
    looks = 0

    def begun() -> bool:
        return any(toolchain._cache.folder.glob("build-*/begun"))

    def hurried() -> float:
        # From the child's start on, the time between two looks at the clock is half a minute.
        nonlocal looks
        looks += begun()
        return time.monotonic() + 30 * looks

    clock = SimpleNamespace(monotonic=time.monotonic if stopped else hurried, sleep=time.sleep)
    monkeypatch.setattr(building, "time", clock)
    with pytest.raises(CompileFailure) as caught:
        toolchain.compile(GOOD, limit_s=100.0, stop=begun if stopped else None)
    assert caught.value.timed_out
    if not stopped:
        assert "after 1 errors: kernel.cpp:1:1: error: so far" in caught.value.reason
    deadline = time.monotonic() + 30
    while descendants([os.getpid()]) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not descendants([os.getpid()]) - before


def test_a_compiler_that_crashes_has_a_reason(tmp_path: Path) -> None:
    compiler = fake_compiler(tmp_path, "kill -SEGV $$")
    toolchain = CpuToolchain(tmp_path / "cache", compiler=compiler, lock=MachineLock(tmp_path))
    assert "the compiler failed (signal 11)" in refused(toolchain, GOOD).reason


@pytest.mark.skipif(landlock_version() == 0, reason="this kernel has no Landlock")
def test_files_of_the_user_cannot_be_included(toolchain: CpuToolchain, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sesame sesame")
    failure = refused(toolchain, f'#include "{secret}"\n')
    assert "Permission denied" in failure.reason
    assert "sesame" not in failure.log


def test_no_compiler_says_what_to_do(tmp_path: Path) -> None:
    toolchain = CpuToolchain(tmp_path, compiler="no-such-compiler", lock=MachineLock(tmp_path))
    with pytest.raises(TargetError, match="install g\\+\\+ or set CXX"):
        toolchain.compile(GOOD)


def test_cxx_chooses_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = fake_compiler(tmp_path, "exit 1")
    monkeypatch.setenv("CXX", chosen)
    assert CpuToolchain(tmp_path, lock=MachineLock(tmp_path)).compiler == chosen


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    toolchain = CpuToolchain(blocked / "cache", lock=MachineLock(tmp_path))
    with pytest.raises(TargetError, match="cannot write the build cache"):
        toolchain.compile(GOOD)
