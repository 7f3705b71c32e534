"""Which launch failed: the second build of a kernel, over a made-up runtime and by the real compiler."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kerneltui.targets.building import include_directory
from kerneltui.targets.cuda import tracing
from kerneltui.targets.cuda.packages import find_toolkit
from kerneltui.targets.cuda.toolchain import CudaToolchain
from kerneltui.targets.cuda.tracing import TRACED_NAMES, trace_flags
from kerneltui.targets.errors import CompileFailure, TargetError

DRIVER = Path(__file__).parent / "drivers" / "traced_kernel.cpp"
TRACE = Path(tracing.__file__).parent / "launch_trace.cpp"
KERNELS = Path(__file__).parents[2] / "kernels" / "gemm_allgather"


def headers() -> Path | None:
    try:
        folder = find_toolkit(None).root / "include"
    except TargetError:
        return None
    return folder if (folder / "cuda.h").exists() else None


pytestmark = pytest.mark.skipif(headers() is None, reason="no CUDA toolkit with cuda.h")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel, the trace and the made-up runtime, linked as a traced build is."""
    folder = tmp_path_factory.mktemp("trace")
    plain = ["g++", "-std=c++17", "-g", f"-I{headers()}", f"-I{include_directory()}", "-c"]
    renamed = [f"-D{old}={new}" for old, new in TRACED_NAMES.items()]
    for name, source, more in (
        ("kernel.o", DRIVER, ["-DKERNEL", *renamed]),
        ("trace.o", TRACE, ["-DKT_TRACE_WAIT_MS=40", *renamed]),
        ("rest.o", DRIVER, []),
    ):
        subprocess.run([*plain, *more, str(source), "-o", str(folder / name)], check=True)
    wrapped = [f"-Wl,{option}" for option in trace_flags()]
    parts = [str(folder / name) for name in ("kernel.o", "trace.o", "rest.o")]
    subprocess.run(["g++", *wrapped, *parts, "-o", str(folder / "program")], check=True)
    return folder / "program"


def told(program: Path, scenario: str) -> list[str]:
    """What the trace says of a run with these launches, each with its stream; all of them are made."""
    done = subprocess.run(
        [str(program), scenario], capture_output=True, text=True, timeout=30, check=False
    )
    assert "ASKED" not in done.stdout
    assert len(done.stdout.splitlines()) == 1 + len(scenario.split())
    lines = done.stderr.splitlines()
    assert all(line.startswith("[launch] rank 1: ") for line in lines)
    return [line.removeprefix("[launch] rank 1: ") for line in lines]


ILLEGAL = "an illegal memory access was encountered"


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        ("1:first 1:second 2:third", []),
        ("1:first 1:fault 1:third", [f"launch 2 of run: fault: {ILLEGAL}"]),
        ("1:first 2:fault 1:fault", [f"launch 2 of run: fault: {ILLEGAL}"]),
        ("1:gemm 1:gather 1:third", [f"launch 2 of run: host all_gather: {ILLEGAL}"]),
        ("1:first 1:copy", [f"launch 2 of run: cudaMemcpyAsync: {ILLEGAL}"]),
        ("1:refused 1:second", ["launch 1 of run: refused: refused: invalid argument"]),
        (
            "1:_ZN12_GLOBAL__N_15faultEPi 1:second",
            [f"launch 1 of run: fault: {ILLEGAL}"],
        ),
        ("1:void-fault<3>(int) 1:second", [f"launch 1 of run: void-fault<3>: {ILLEGAL}"]),
    ],
)
def test_the_launch_is_named(program: Path, scenario: str, said: list[str]) -> None:
    assert told(program, scenario) == said


def test_a_launch_that_never_ends_is_named_and_the_others_are_made(program: Path) -> None:
    lines = told(program, "1:first 2:spin 1:third 2:fourth")
    assert lines == ["launch 2 of run: spin: has not ended after 40 ms"]


def test_launches_that_wait_for_later_ones_do_not_hang(program: Path) -> None:
    lines = told(program, "2:spin 1:second 1:release 1:fourth")
    assert lines == [
        "launch 1 of run: spin: has not ended after 40 ms",
        "launch 1 of run: spin: ended when later launches had been made: they depend on each other",
    ]


def test_a_fault_beside_a_launch_without_an_end_is_not_blamed_on_one(program: Path) -> None:
    lines = told(program, "2:spin 1:second 1:fault 1:release")
    assert lines[1] == (
        f"launch 1 of run: spin, or launch 3 of run: fault: {ILLEGAL} "
        "(they run at the same time and cannot be told apart)"
    )
    assert len(lines) == 2


def test_nothing_is_asked_of_a_stream_that_is_captured(program: Path) -> None:
    assert told(program, "1:capture 1:fault 1:third") == []


def test_a_stream_that_is_gone_is_not_asked(program: Path) -> None:
    assert told(program, "2:first 2:destroy 1:second") == []
    assert told(program, "2:first 2:spin 2:destroy 1:fault") == [
        "launch 2 of run: spin: has not ended after 40 ms",
        f"launch 3 of run: fault: {ILLEGAL}",
    ]


@pytest.mark.parametrize("file", ["host_nccl.cu", "lsa_fused_sm90.cu"])
def test_a_traced_build_of_a_kernel(file: str, tmp_path: Path) -> None:
    chain = CudaToolchain(tmp_path / "cache", arch="sm_90a")
    text = (KERNELS / file).read_text()
    try:
        build = chain.compile_traced(text)
    except CompileFailure:
        raise
    except TargetError as error:
        pytest.skip(str(error))
    assert chain.compile_traced(text).cached
    assert chain.compile(text).key != build.key, "a timed run never gets it"
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(build.library)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in (
        "kerneltui_requirements",
        "kerneltui_setup",
        "kerneltui_run",
        "kerneltui_teardown",
    ):
        assert f" T {name}\n" in listed
    wants = subprocess.run(
        ["nm", "-D", "--undefined-only", str(build.library)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "__real_" not in wants
