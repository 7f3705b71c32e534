"""The structures that Python hands to the harness of GPUs are its own. Needs nvcc, and no GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.worker_cuda_abi import (
    CudaSampleArguments,
    CudaVendorSelf,
    Device,
    Place,
)
from kerneltui.evaluation.worker_cuda_nccl import NcclFace
from kerneltui.evaluation.worker_cuda_product import ProductState
from kerneltui.evaluation.worker_serving import Serving
from kerneltui.targets.building import include_directory
from kerneltui.targets.cuda.runtime import harness_source

STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "ht_device": Device,
    "ht_vendor": CudaVendorSelf,
    "ht_nccl": NcclFace,
    "ht_place": Place,
    "ht_sample": CudaSampleArguments,
    "ht_failure": abi.Failure,
    "ht_product": ProductState,
    "ht_serving": Serving,
}
FIRST = abi.SampleArguments._fields_

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("abi")
    lines = [harness_source(), "#include <cstddef>", 'extern "C" {']
    for name, structure in STRUCTURES.items():
        lines.append(f"size_t size_{name}() {{ return sizeof({name}); }}")
        for field, *_ in fields(structure):
            lines.append(f"size_t at_{name}_{field}() {{ return offsetof({name}, {field}); }}")
    source = folder / "abi.cu"
    source.write_text("\n".join([*lines, "}"]))
    # Device code of the lowest generation: only the structures matter here.
    command = [
        "nvcc", "-std=c++17", "-O0", "-arch=sm_80", "-shared", "-Xcompiler", "-fPIC",
        f"-I{include_directory()}", str(source), "-o", str(folder / "abi.so"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    return ctypes.CDLL(str(Path(folder / "abi.so")))


def fields(structure: type[ctypes.Structure]) -> list[tuple[str, object]]:
    inherited = list(FIRST) if issubclass(structure, abi.SampleArguments) else []
    return [*inherited, *structure._fields_]


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_agree(library: ctypes.CDLL, name: str) -> None:
    structure = STRUCTURES[name]
    assert library[f"size_{name}"]() == ctypes.sizeof(structure)
    for field, *_ in fields(structure):
        assert library[f"at_{name}_{field}"]() == getattr(structure, field).offset, field
