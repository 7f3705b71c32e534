"""Names of baselines: built in, a kernel file, or a file in a fixed configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerneltui.evaluation.baseline_kernels import baseline_kernel
from kerneltui.model.errors import DefinitionError
from kerneltui.model.kernel import Language
from kerneltui.model.workload_file import load_workload

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels" / "gemm_allgather"


def test_a_name_without_a_file_is_built_in() -> None:
    assert baseline_kernel(KERNELS, "torch_nccl") is None


def test_a_file_is_taken_with_its_defaults() -> None:
    found = baseline_kernel(KERNELS, "lsa_chunked")
    assert found is not None
    assert found.configuration["BACKEND"] == "lsa"


def test_values_in_brackets_stand_in_the_text_that_is_built() -> None:
    plain = baseline_kernel(KERNELS, "lsa_chunked")
    found = baseline_kernel(KERNELS, "lsa_chunked(BACKEND=copy_engine, CHUNKS=8)")
    assert plain is not None
    assert found is not None
    assert found.configuration == {**plain.configuration, "BACKEND": "copy_engine", "CHUNKS": 8}
    assert "#define BACKEND copy_engine" in found.source


def test_nccl_gathers_in_windows_or_in_chunks() -> None:
    found = baseline_kernel(KERNELS, "host_nccl_chunks(WINDOWS=1, CHUNKS=1)")
    assert found is not None
    assert found.configuration == {"WINDOWS": 1, "CHUNKS": 1}
    assert found.runtime == {"CHUNKS": 1}
    assert "#define WINDOWS 1" in found.source


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lsa_chunked(BACKEND=gin)", "'gin' is not one of copy_engine lsa"),
        ("lsa_chunked(COLOUR=red)", "no such tunable"),
        ("lsa_chunked(BACKEND)", "'BACKEND' is not TUNABLE=value"),
        ("lsa_chunked(BACKEND=lsa", "expected kernel"),
        ("torch_nccl(BACKEND=lsa)", "has no such kernel"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(name: str, words: str) -> None:
    with pytest.raises(DefinitionError, match=words.replace("(", r"\(")):
        baseline_kernel(KERNELS, name)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_the_baselines_of_the_workload_can_be_read(target: str) -> None:
    workload = load_workload(ROOT / "workloads" / "gemm_allgather", target)
    for name in workload.targets[target].baselines:
        baseline_kernel(KERNELS, name)


def test_a_python_kernel_may_be_a_baseline() -> None:
    found = baseline_kernel(KERNELS, "torch_window(PLACEMENT=sequential)")
    assert found is not None
    assert found.language is Language.PYTHON
    assert found.configuration["PLACEMENT"] == "sequential"
