"""Whatever is written for GPUs compiles here, where there is none: kernels, windows, the harness."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerneltui.targets.cuda.packages import find_nccl, find_toolkit
from kerneltui.targets.cuda.policy import DEFAULT_POLICY
from kerneltui.targets.cuda.runtime import harness_source
from kerneltui.targets.cuda.toolchain import CudaToolchain
from kerneltui.targets.errors import TargetError
from kerneltui.targets.locks import MachineLock

ROOT = Path(__file__).parents[2]
KERNELS = sorted((ROOT / "kernels" / "gemm_allgather").glob("*.cu"))
WINDOWS = ROOT / "kerneltui" / "targets" / "cuda" / "nccl_windows.cu"
ONLY = {"_sm90": "sm_90a", "_sm80": "sm_80"}


@pytest.fixture(params=["sm_80", "sm_90a"])
def arch(request: pytest.FixtureRequest) -> str:
    try:
        find_toolkit()
    except TargetError as error:
        pytest.skip(str(error))
    return str(request.param)


@pytest.mark.parametrize("file", [*KERNELS, WINDOWS], ids=lambda file: file.name)
def test_every_kernel_builds(file: Path, arch: str, tmp_path: Path) -> None:
    if any(part in file.name and arch != its for part, its in ONLY.items()):
        pytest.skip("this kernel is for another architecture")
    text = file.read_text(encoding="utf-8")
    toolchain = CudaToolchain(tmp_path / "cache", arch=arch, lock=MachineLock(tmp_path))
    if "#include <nccl" in text:
        try:
            find_nccl(toolchain.toolkit.major)
        except TargetError as error:
            pytest.skip(str(error))
    report = toolchain.codegen(toolchain.compile(text))
    assert not [finding for finding in report.findings if finding.loud]
    assert all(kernel.spill_stores == 0 for kernel in report.kernels)


def test_the_harness_builds(arch: str, tmp_path: Path) -> None:
    toolchain = CudaToolchain(
        tmp_path / "cache",
        arch=arch,
        policy=DEFAULT_POLICY.without("capture_control"),
        lock=MachineLock(tmp_path),
    )
    report = toolchain.codegen(toolchain.compile(harness_source()))
    for name in ("open_gate", "stamp", "flip"):
        assert any(name in kernel.name for kernel in report.kernels), report.kernels
    assert all(kernel.spill_stores == 0 for kernel in report.kernels)
