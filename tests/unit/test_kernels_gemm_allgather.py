"""The CPU kernels of gemm_allgather: right on every shape in every legal configuration."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kerneltui.model.expression import Value
from kerneltui.model.kernel import TunableKind, parse_kernel

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels" / "gemm_allgather"
DRIVER = Path(__file__).parent / "drivers" / "gemm_allgather_driver.cpp"
INCLUDE = f"-I{ROOT / 'kerneltui' / 'include'}"
FLAGS = ["-std=c++20", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
QUICK = ["-std=c++20", "-O1", "-march=native", "-fopenmp", "-shared", "-fPIC"]
SANITIZE = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
TUNE_SHAPES = [
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 512),
    (4096, 1024, 256),
    (1000, 777, 333),
]
# Whole and edge tiles in M, N and K, several passes over K, fewer rows than ranks, single elements.
SHAPES = [
    "1,1,1",
    "2,3,5",
    "7,1,9",
    "5,40,1",
    "96,64,130",
    "101,103,97",
    "67,48,521",
    "390,32,3",
]
FEW_SHAPES = ["1,1,1", "37,50,130", "101,64,300"]

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


WINDOW = parse_kernel((KERNELS / "window.cpp").read_text(), "window.cpp")
COMPILED = [t for t in WINDOW.tunables if t.kind is TunableKind.COMPILE]
RANK_SHAPES = [{"M": m, "N": n, "K": k, "RANKS": 2} for m, n, k in TUNE_SHAPES]


def covering_sample(extra: int) -> list[dict[str, Value]]:
    """Random legal configurations that together use every value of every tunable, and `extra` more."""
    rng = random.Random(7)
    missing = {(t.name, value) for t in COMPILED for value in t.values}
    sample: list[dict[str, Value]] = []
    while missing or extra > 0:
        drawn = [{t.name: rng.choice(t.values) for t in COMPILED} for _ in range(100)]
        valid = [c for c in drawn if WINDOW.valid(c, RANK_SHAPES)]
        if not valid:
            continue
        best = max(valid, key=lambda c: len(missing & set(c.items())))
        if not missing:
            extra -= 1
        missing -= set(best.items())
        sample.append(best)
    return sample


def compile_kernel(source: str, folder: Path, name: str, flags: list[str]) -> Path:
    cpp, so = folder / f"{name}.cpp", folder / f"{name}.so"
    cpp.write_text(source)
    done = subprocess.run(
        ["g++", *flags, "-Wall", "-Wextra", "-Werror", INCLUDE, str(cpp), "-o", str(so)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return so


def compile_driver(folder: Path, *flags: str) -> Path:
    driver = folder / "driver"
    command = ["g++", "-std=c++20", "-O2", "-Wall", "-Wextra", *flags, INCLUDE, str(DRIVER)]
    subprocess.run([*command, "-ldl", "-o", str(driver)], check=True)
    return driver


def drive(
    driver: Path, kernel: Path, *options: str, shapes: list[str] = SHAPES, limit: int = 100
) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, ASAN_OPTIONS="detect_leaks=0", OMP_NUM_THREADS="1")
    return subprocess.run(
        [str(driver), str(kernel), *options, *shapes],
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
        env=environment,
    )


def assert_right(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, result.stderr[-4000:]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("seeds")
    return {
        name: compile_kernel((KERNELS / f"{name}.cpp").read_text(), folder, name, FLAGS)
        for name in ("host", "window")
    }


def test_space_is_of_a_size_that_can_be_searched():
    # No constraint but that of CHUNK_ROWS depends on the shape, so the smallest shape decides.
    smallest = [RANK_SHAPES[0]]
    configs = itertools.product(*(t.values for t in WINDOW.tunables))
    names = [t.name for t in WINDOW.tunables]
    count = sum(WINDOW.valid(dict(zip(names, c, strict=True)), smallest) for c in configs)
    assert 500 <= count <= 20_000


def test_defaults_are_legal():
    assert WINDOW.valid(WINDOW.configuration, RANK_SHAPES)


@pytest.mark.parametrize("placement", ["sequential", "split_put_wait", "fused"])
def test_tunables_and_directive_agree(placement: str):
    kernel = parse_kernel(WINDOW.render({"PLACEMENT": placement, "CHUNK_ROWS": 48}))
    directive = kernel.directive(RANK_SHAPES[-1])
    assert (directive.placement, directive.backend) == (placement, "lsa")
    assert directive.chunk_bytes == 48 * 777 * 4


def test_evolve_regions_hold_no_tunable():
    for name in ("host", "window"):
        kernel = parse_kernel((KERNELS / f"{name}.cpp").read_text())
        assert kernel.regions
        for tunable in kernel.tunables:
            assert not any(r.first <= tunable.line <= r.last for r in kernel.regions)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kernel", ["host", "window"])
def test_seed_is_right(driver: Path, seeds: dict[str, Path], kernel: str, ranks: int):
    assert_right(drive(driver, seeds[kernel], "--ranks", str(ranks)))


@needs_compiler
@pytest.mark.slow
def test_every_value_of_every_tunable_is_right(driver: Path, tmp_path: Path):
    configs = covering_sample(extra=2)

    def build(item: tuple[int, dict[str, Value]]) -> Path:
        return compile_kernel(WINDOW.render(item[1]), tmp_path, f"k{item[0]}", QUICK)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        kernels = list(pool.map(build, enumerate(configs)))
    for i, (config, kernel) in enumerate(zip(configs, kernels, strict=True)):
        options = ["--ranks", str(2 + i % 2), "--sets", str(1 + i % 3)]
        options += ["--tunable", f"PEER_OFFSET={i % 2}"]
        result = drive(driver, kernel, *options)
        assert result.returncode == 0, f"{config} {options}: {result.stderr[-2000:]}"


FAST = {
    "PLACEMENT": "fused",
    "SYNC": "flag_per_chunk",
    "TRANSFER": "push",
    "COPY_KIND": "COPY_STREAM",
    "CHUNK_ROWS": 12,
    "GEMM_KIND": "GEMM_TILED",
    "KC": 128,
    "MR": 6,
    "NR": 16,
    "PACK_B": "PACK_ONCE",
    "PACK_A": 1,
}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("placement", ["sequential", "split_put_wait", "fused"])
@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_many_calls_on_one_set_with_more_ranks_than_cores(
    driver: Path, tmp_path: Path, transfer: str, placement: str
):
    config = FAST | {"TRANSFER": transfer, "PLACEMENT": placement}
    kernel = compile_kernel(WINDOW.render(config), tmp_path, "kernel", QUICK)
    for sets in ("1", "2", "3"):
        options = ["--ranks", "3", "--sets", sets, "--calls", "40"]
        assert_right(drive(driver, kernel, *options, shapes=["64,32,20"]))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("flags", [["-O2"], ["-O2", "-march=native"]], ids=["portable", "native"])
def test_two_threads_and_a_plain_machine(driver: Path, tmp_path: Path, flags: list[str]):
    flags = ["-std=c++20", *flags, "-fopenmp", "-shared", "-fPIC"]
    kernel = compile_kernel(WINDOW.render(FAST), tmp_path, "kernel", flags)
    assert_right(drive(driver, kernel, "--threads", "2"))


@needs_compiler
@pytest.mark.slow
def test_without_undefined_behaviour(tmp_path: Path):
    driver = compile_driver(tmp_path, *SANITIZE)
    for i, config in enumerate((FAST, FAST | {"PACK_B": "PACK_EACH", "TRANSFER": "pull"})):
        kernel = compile_kernel(WINDOW.render(config), tmp_path, f"k{i}", [*QUICK, *SANITIZE])
        assert_right(drive(driver, kernel, "--ranks", "2", shapes=FEW_SHAPES))


@pytest.mark.skipif(shutil.which("clang++") is None, reason="no clang++")
def test_clang_accepts_both_kernels(tmp_path: Path):
    for name in ("host", "window"):
        command = ["clang++", "-std=c++20", "-O1", "-march=native", "-fsyntax-only", INCLUDE]
        subprocess.run([*command, str(KERNELS / f"{name}.cpp")], check=True)


MUTANTS = {
    "waits for nothing": ("!reached(flag, epoch); ++spins", "flag && epoch < 1; ++spins"),
    "takes the flag of an older call": (">= epoch;", ">= 1 + 0 * epoch;"),
    "stores to no peer": ("for (int t = 0; t < tile.count; ++t)", "for (int t = 0; t < 1; ++t)"),
    "drops the last step of K": ("for (int64_t k = 0; k < kc; ++k) {\n        Vector", None),
}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_driver_refuses_a_broken_kernel(driver: Path, tmp_path: Path, mutant: str):
    old, new = MUTANTS[mutant]
    source = WINDOW.render(FAST)
    assert source.count(old) == 1
    source = source.replace(old, new or old.replace("k < kc", "k < kc - 1"))
    kernel = compile_kernel(source, tmp_path, "kernel", QUICK)
    result = drive(driver, kernel, "--calls", "40", shapes=["120,96,64"])
    assert result.returncode == 1, result.stderr[-2000:]
    assert "is wrong" in result.stderr
