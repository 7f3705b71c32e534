"""Which kernels a session may begin with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kerneltui.engine.errors import WorkloadUnfit
from kerneltui.engine.opening import kernel_path, library_kernels, target_spec
from kerneltui.model.workload_file import load_workload

FOLDER = Path(__file__).parents[2] / "workloads" / "gemm_allgather"


def test_the_library_of_a_target() -> None:
    workload = load_workload(FOLDER)
    spec = target_spec(workload, "cpu")
    assert [kernel.file for kernel in library_kernels(workload, spec)] == ["window.cpp"]


def test_kernels_of_a_session_are_of_one_language() -> None:
    workload = load_workload(FOLDER)
    spec = target_spec(workload, "cpu")
    with pytest.raises(WorkloadUnfit, match=r"torch_window\.py: .* its seed is host\.cpp"):
        library_kernels(workload, replace(spec, library=("window.cpp", "torch_window.py")))
    python = replace(spec, seed="host_torch.py", library=("torch_window.py",))
    assert [kernel.file for kernel in library_kernels(workload, python)] == ["torch_window.py"]


def test_the_kernel_of_a_session_keeps_the_ending_of_its_seed() -> None:
    assert kernel_path("gemm", "triton_gemm.py") == "kernels/gemm/kernel.py"
