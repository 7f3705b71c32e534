"""`verify` with the real judge and ranks: exit codes and one-line refusals."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for part in ("workloads", "kernels"):
        shutil.copytree(ROOT / part, tmp_path / part)
    return tmp_path


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kerneltui", *arguments]
    own = {
        "XDG_CACHE_HOME": str(project / "cache"),
        "XDG_CONFIG_HOME": str(project / "config"),
    }
    return subprocess.run(
        command,
        cwd=project,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_workload_whose_oracle_is_broken_is_refused_in_one_line(project: Path):
    reference = project / "workloads" / "gemm_allgather" / "reference.py"
    reference.write_text(reference.read_text(encoding="utf-8").replace("MUTANTS", "WRONG_ANSWERS"))
    result = run(project, "verify", "workloads/gemm_allgather")
    assert result.returncode == 3
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and "MUTANTS is missing" in lines[0], result.stderr


@pytest.mark.slow
def test_a_wrong_kernel_is_refused_with_its_stage_and_place(project: Path):
    kernel = project / "kernels" / "gemm_allgather" / "host.cpp"
    text = kernel.read_text(encoding="utf-8")
    kernel.write_text(
        text.replace("state->k, a->local", "state->k - 1, a->local"), encoding="utf-8"
    )
    result = run(project, "verify", "workloads/gemm_allgather", str(kernel))
    assert result.returncode == 3, result.stderr
    assert "refused in verify: C[" in result.stdout
