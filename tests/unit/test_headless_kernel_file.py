"""Kernels that are named on the command line: what is read, and for which target it was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerneltui.headless.kernel_file import read_kernel_file, target_of
from kerneltui.model.errors import DefinitionError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("names", "target"),
    [
        (["window.cpp"], "cpu"),
        (["lsa_fused_sm90.cu"], "cuda"),
        (["torch_window.py", "host_nccl.cu"], "cuda"),
        (["torch_window.py"], None),  # Python runs on both
        (["kernel.txt"], None),
        ([], None),
    ],
)
def test_a_kernel_says_by_its_ending_what_it_was_written_for(names: list[str], target: str | None):
    files = [Path(name) for name in names]
    assert target_of(ROOT / "workloads" / "gemm_allgather", files) == target


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(DefinitionError, match=r"nothing\.cu.*cannot be read \(No such file"):
        read_kernel_file(tmp_path / "nothing.cu")
