"""A small workload with the real oracle, real build, ranks and judge, for the cheats."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerneltui.evaluation.pipeline import Evaluator
from kerneltui.evaluation.timing import TimingProtocol
from kerneltui.model.kernel import Kernel, parse_kernel
from kerneltui.model.limit import Ceilings
from kerneltui.model.workload_file import load_workload
from kerneltui.targets.cpu.runtime import CpuTarget
from kerneltui.targets.locks import MachineLock

_ROOT = Path(__file__).parents[2]
_SHAPES = """
[[shape]]
M = 48
N = 40
K = 96
tags = ["tune"]

[[shape]]
M = 33
N = 17
K = 129
tags = ["test"]
"""

# Every check is the production one; only the numbers of the timing are small.
PROTOCOL = TimingProtocol(
    sample_ns=200_000,
    kept=1,
    most_kept=1,
    looks=(3,),
    noise_rounds=3,
    early_look=1,
    abandon=1e6,  # a loaded machine must not make an honest kernel TOO_SLOW here
    confirm_groups=1,
    confirm_rounds=1,
)


@pytest.fixture(scope="session")
def workload_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    folder = root / "workloads" / "gemm_allgather"
    folder.mkdir(parents=True)
    source = _ROOT / "workloads" / "gemm_allgather"
    text = (source / "workload.toml").read_text()
    (folder / "workload.toml").write_text(text[: text.index("[[shape]]")] + _SHAPES)
    shutil.copy(source / "reference.py", folder / "reference.py")
    shutil.copytree(_ROOT / "kernels" / "gemm_allgather", root / "kernels" / "gemm_allgather")
    return folder


@pytest.fixture(scope="session")
def incumbent(workload_folder: Path) -> Kernel:
    file = workload_folder.parents[1] / "kernels" / "gemm_allgather" / "host.cpp"
    return parse_kernel(file.read_text(), "host.cpp")


@pytest.fixture(scope="session")
def evaluator(
    workload_folder: Path, incumbent: Kernel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Evaluator]:
    cache = tmp_path_factory.mktemp("cache")
    # A lock of its own: tests that run beside this one on the machine need not wait for it.
    target = CpuTarget(cache, lock=MachineLock(tmp_path_factory.mktemp("lock")))
    made = Evaluator(
        load_workload(workload_folder),
        target,
        ceilings=lambda ranks: Ceilings(ranks, 1e12, 1e12, 1e11, 1e11, 100.0),
        cache=cache,
        protocol=PROTOCOL,
    )
    made.start()
    try:
        made.calibrate(incumbent, lambda text: None)
        yield made
    finally:
        made.close()
