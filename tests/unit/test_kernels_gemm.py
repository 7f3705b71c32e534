"""The workload `gemm` and its kernels: what is declared, what is built, what is chosen for a shape."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from kerneltui.evaluation.device_lint import lint_device_code
from kerneltui.evaluation.kernel_text import element_define
from kerneltui.model.expression import Value
from kerneltui.model.kernel import Kernel, TunableKind, parse_kernel
from kerneltui.model.workload import Workload
from kerneltui.model.workload_file import load_workload
from kerneltui.targets.cuda.packages import find_toolkit
from kerneltui.targets.cuda.toolchain import CudaToolchain
from kerneltui.targets.errors import CompileFailure, TargetError
from kerneltui.targets.locks import MachineLock

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "workloads" / "gemm"
KERNELS = ROOT / "kernels" / "gemm"
RULE = Path(__file__).parent / "drivers" / "gemm_rule.cu"
INCLUDE = f"-I{ROOT / 'kerneltui' / 'include'}"
SM90 = parse_kernel((KERNELS / "gemm_sm90.cu").read_text(), "gemm_sm90.cu")
SM80 = parse_kernel((KERNELS / "gemm_sm80.cu").read_text(), "gemm_sm80.cu")
SHARED_BYTES = 232_448
"""Shared memory that a CTA of compute capability 9.0 may have."""


def has_nvcc() -> bool:
    try:
        find_toolkit()
    except TargetError:
        return False
    return True


needs_nvcc = pytest.mark.skipif(not has_nvcc(), reason="no nvcc on this machine")


@pytest.fixture(scope="module")
def workload() -> Workload:
    return load_workload(FOLDER)


def shapes(workload: Workload) -> list[dict[str, int]]:
    return [shape.values for shape in workload.shapes_for("tune")]


def legal(kernel: Kernel, workload: Workload) -> list[dict[str, Value]]:
    """All legal values of the compile-time tunables."""
    compiled = [t for t in kernel.tunables if t.kind is TunableKind.COMPILE]
    rest = {t.name: t.value for t in kernel.tunables if t.kind is TunableKind.RUNTIME}
    drawn = itertools.product(*(t.values for t in compiled))
    points = [dict(zip([t.name for t in compiled], point, strict=True)) for point in drawn]
    return [p for p in points if kernel.valid(p | rest, shapes(workload))]


def test_the_workload_is_a_product_on_one_gpu(workload: Workload):
    assert (workload.target, workload.dtype, workload.accumulate) == ("cuda", "bfloat16", "float32")
    assert {shape.ranks for shape in workload.shapes} == {1}
    shape = next(s for s in workload.shapes if s.name == "64x8192x8192")
    limit = workload.limit
    assert limit.flops.number(shape.values) == 2 * 64 * 8192 * 8192
    assert limit.memory_bytes.number(shape.values) == 2 * (64 * 8192 * 2 + 8192 * 8192)
    assert limit.link_bytes.number(shape.values) == 0


def test_its_shapes_cover_what_goes_wrong(workload: Workload):
    assert len(workload.shapes_for("tune")) == 6
    test = [shape.dimensions for shape in workload.shapes_for("test")]
    assert any(d["K"] == 1 for d in test) and any(d["M"] == 1 for d in test)
    unaligned = [d for d in test if d["N"] % 8 or d["K"] % 8]
    assert unaligned and len(unaligned) < len(test)
    assert workload.shapes_for("hidden")
    assert len(workload.shapes_for("bench")) >= 60


@pytest.mark.parametrize("kernel", [SM80, SM90], ids=["sm80", "sm90"])
def test_defaults_are_legal_and_nothing_is_communicated(kernel: Kernel, workload: Workload):
    assert kernel.valid(kernel.configuration, shapes(workload))
    directive = kernel.directive(shapes(workload)[0])
    assert (directive.sync, directive.chunk_bytes) == ("none", 0)
    assert not lint_device_code(kernel.source)
    for tunable in kernel.tunables:
        assert not any(r.first <= tunable.line <= r.last for r in kernel.regions)


def test_every_legal_point_fits_in_shared_memory(workload: Workload):
    points = legal(SM90, workload)
    assert len(points) >= 20
    for p in points:
        tile, stages, boxes = int(p["TILE_N"]), int(p["STAGES"]), int(p["C_BOXES"])
        ring = stages * (128 * 128 + 128 * tile)
        barriers = (2 * stages + 4 * boxes) * 8
        assert ring + 2 * boxes * 8192 + barriers + 1024 <= SHARED_BYTES


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"TILE": 5, "SLICES": 4, "PARTS": 2, "SHARE": 2}, True),
        ({"TILE": 5, "SLICES": 8, "SHARE": 2}, False),
        ({"TILE": 2, "SHARE": 2}, False),
        ({"TILE": 1, "SLICES": 2}, False),
        ({"TILE": 0, "PARTS": 4}, False),
        ({"TILE": 11, "SHARE": 1}, False),
        ({"TILE": 11}, True),
        ({"TILE_N": 192, "CLUSTER": 2, "C_BOXES": 3}, True),
        ({"TILE_N": 192, "CLUSTER": 1, "C_BOXES": 3, "STAGES": 4}, True),
        ({"STAGES": 4}, False),
    ],
)
def test_what_cannot_be_is_not_proposed(
    values: dict[str, Value], expected: bool, workload: Workload
):
    assert SM90.valid(SM90.configuration | values, shapes(workload)) is expected


def corners(workload: Workload) -> list[dict[str, Value]]:
    """Few legal points that together have every value of every compile-time tunable."""
    points = legal(SM90, workload)
    missing = {item for point in points for item in point.items()}
    chosen: list[dict[str, Value]] = []
    while missing:
        best = max(points, key=lambda p: len(missing & set(p.items())))
        missing -= set(best.items())
        chosen.append(best)
    declared = {
        (t.name, v) for t in SM90.tunables if t.kind is TunableKind.COMPILE for v in t.values
    }
    assert declared == {item for point in chosen for item in point.items()}
    return chosen


def build(source: str, folder: Path, arch: str) -> None:
    toolchain = CudaToolchain(folder / "cache", arch=arch, lock=MachineLock(folder))
    report = toolchain.codegen(toolchain.compile(source))
    assert not [finding for finding in report.findings if finding.loud]
    assert all(k.spill_stores == 0 and k.spill_loads == 0 for k in report.kernels)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_seed_builds_without_spills(arch: str, tmp_path: Path):
    build(SM80.source, tmp_path, arch)


def products(ptx: str) -> set[str]:
    """The types of the products and conversions in machine-level code."""
    found = re.findall(r"wgmma\.mma_async\S*?\.(f32\.\w+\.\w+)\s", ptx)
    found += re.findall(r"mma\.sync\S*?\.col\.(f32\.\w+\.\w+)\.f32\s", ptx)
    return {*found, *re.findall(r"cvt\.rn\.(\w+)\.f32\s", ptx)}


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "arch"), [(SM80, "sm_80"), (SM90, "sm_90a")], ids=["80", "90a"])
def test_one_build_multiplies_one_element_type(kernel: Kernel, arch: str, tmp_path: Path):
    toolchain = CudaToolchain(tmp_path / "cache", arch=arch, lock=MachineLock(tmp_path))
    keys: set[str] = set()
    for dtype, short in (("float16", "f16"), ("bfloat16", "bf16")):
        made = toolchain.compile(kernel.source, defines=element_define(dtype))
        report = toolchain.codegen(made)
        assert all(k.spill_stores == 0 and k.spill_loads == 0 for k in report.kernels)
        ptx = made.library.with_suffix(".ptx").read_text()
        assert products(ptx) == {f"f32.{short}.{short}", f"{short}x2"}
        assert ("wgmma" in ptx) is (kernel is SM90)
        text = made.library.read_bytes()
        assert f"this build multiplies {dtype}\0".encode() in text
        keys.add(made.key)
    assert len(keys) == 2, "each has a place of its own in the cache"


@needs_nvcc
@pytest.mark.parametrize("kernel", [SM80, SM90], ids=["sm80", "sm90"])
def test_another_element_type_is_refused_by_its_compiler(kernel: Kernel, tmp_path: Path):
    toolchain = CudaToolchain(tmp_path / "cache", arch="sm_90a", lock=MachineLock(tmp_path))
    with pytest.raises(CompileFailure, match="this kernel multiplies float16 or bfloat16"):
        toolchain.compile(kernel.source, defines=element_define("float32"))


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("index", range(5))
def test_every_value_of_the_tunables_builds_without_spills(
    index: int, workload: Workload, tmp_path: Path
):
    chosen = corners(workload)
    assert len(chosen) <= 5
    if index < len(chosen):
        build(SM90.render(chosen[index]), tmp_path, "sm_90a")


@pytest.fixture(scope="module")
def rule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that says what gemm_sm90.cu chooses."""
    program = tmp_path_factory.mktemp("rule") / "rule"
    kernel = f'-DKERNEL="{KERNELS / "gemm_sm90.cu"}"'
    command = [str(find_toolkit().nvcc), "-std=c++17", "-gencode", "arch=compute_90a,code=sm_90a"]
    command += ["-fdevice-syntax-only"]  # the rule runs on the host, and device code takes 20 s
    command += [kernel, INCLUDE, str(RULE), "-o", str(program)]
    subprocess.run(command, check=True, timeout=110)
    return program


def chosen_by_rule(program: Path, sms: int, wanted: list[str]) -> list[list[int]]:
    """Tile, slices, parts, share, CTAs, shared memory, scratch."""
    command = [str(program), str(sms), *wanted]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == wanted
    return [[int(word) for word in line[1:]] for line in lines]


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("sms", [78, 114, 132])
def test_the_rule_chooses_what_can_be_launched(rule: Path, sms: int):
    sizes = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
    grid = list(itertools.product(sizes, repeat=3))
    odd = [(1, 8, 8), (1, 4096, 65536), (130, 8, 16), (3, 70000, 8), (100_000, 24, 4096)]
    found = chosen_by_rule(rule, sms, [f"{m},{n},{k}" for m, n, k in grid + odd])
    used = Counter(line[0] for line in found)
    assert sms != 132 or set(used) == set(range(1, 12))
    for (m, n, k), (tile, slices, parts, share, ctas, shared, scratch, *wide) in zip(
        grid + odd, found, strict=True
    ):
        steps = -(-k // 64)
        assert slices * parts <= steps and slices * share <= 8
        assert ctas <= 2 * sms or slices * parts == 1
        assert shared <= SHARED_BYTES
        assert (scratch > 0) == (parts > 1 or wide[1] > 0) and scratch <= 32 << 20
        if tile in (1, 11):
            whole, shared_tiles, of_each = wide
            columns = 256 if tile == 1 else 192
            assert ctas <= sms and whole + shared_tiles == -(-m // 256) * -(-n // columns)
            assert of_each <= steps and shared_tiles * of_each * 2 <= ctas
            assert (of_each > 1) == (shared_tiles > 0)
    if sms != 132:
        return
    by_shape = dict(zip(grid, found, strict=False))
    assert by_shape[8192, 8192, 8192][0] == 1
    assert by_shape[16384, 12288, 512][0] == 11
    assert by_shape[64, 64, 16384][1] * by_shape[64, 64, 16384][2] >= 8
    assert by_shape[12288, 512, 16384][-2:] == [30, 2], (
        "tiles of the last round are shared in halves"
    )


@pytest.mark.parametrize("name", ["gemm", "gemm_fp16"])
def test_wrong_answers_are_refused_and_right_ones_pass(name: str):
    pytest.importorskip("torch")
    from kerneltui.evaluation.judge_client import JudgeClient
    from kerneltui.evaluation.selftest import self_test_shapes

    # With one rank everywhere the shape must be large enough to tell answers apart all the same.
    folder = FOLDER.parent / name
    assert [min(s.dimensions.values()) >= 16 for s in self_test_shapes(load_workload(folder))] == [
        True
    ]
    client = JudgeClient(folder, 1, "cuda")
    client.start()
    try:
        client.wait()
        rows = client.self_test()
    finally:
        client.close()
    assert Counter(row["kind"] for row in rows)["mutant"] >= 13
    assert [row for row in rows if not row["ok"]] == []
