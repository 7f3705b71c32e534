"""The structures that Python hands to C are those of the header and of the harness."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.kernel_text import element_define
from kerneltui.targets.cpu import runtime
from kerneltui.targets.cpu.toolchain import CpuToolchain
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.windows import DType

STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "kt_named_value": abi.NamedValue,
    "kt_requirements": abi.Requirements,
    "kt_tensor": abi.Tensor,
    "kt_buffer_set": abi.BufferSet,
    "kt_vendor": abi.Vendor,
    "kt_host": abi.Host,
    "kt_context": abi.Context,
    "ht_vendor": abi.VendorSelf,
    "ht_failure": abi.Failure,
    "ht_sample": abi.SampleArguments,
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("abi")
    lines = [runtime.harness_source(), "#include <cstddef>", 'extern "C" {']
    for name, structure in STRUCTURES.items():
        lines.append(f"size_t size_{name}() {{ return sizeof({name}); }}")
        for field, *_ in structure._fields_:
            lines.append(f"size_t at_{name}_{field}() {{ return offsetof({name}, {field}); }}")
    for name in abi.DTYPE_CODES:
        lines.append(f"int enum_{name}() {{ return KT_{name.upper()}; }}")
        lines.append(f"int macro_{name}() {{ return KT_ELEMENT_{name.upper()}; }}")
    lines += ["int version() { return KERNELTUI_ABI_VERSION; }"]
    lines += ["int element() { return KT_ELEMENT; }", "}"]
    toolchain = CpuToolchain(folder, lock=MachineLock(folder))
    return ctypes.CDLL(str(toolchain.compile("\n".join(lines)).library))


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_agree(library: ctypes.CDLL, name: str) -> None:
    structure = STRUCTURES[name]
    assert library[f"size_{name}"]() == ctypes.sizeof(structure)
    for field, *_ in structure._fields_:
        assert library[f"at_{name}_{field}"]() == getattr(structure, field).offset, field


def test_versions_agree(library: ctypes.CDLL) -> None:
    assert library.version() == abi.ABI_VERSION


@pytest.mark.parametrize("dtype", abi.DTYPE_CODES)
def test_element_types_agree(library: ctypes.CDLL, dtype: DType) -> None:
    """As an enumerator, as a macro, and as Python knows it."""
    codes = (library[f"enum_{dtype}"](), library[f"macro_{dtype}"](), abi.DTYPE_CODES[dtype])
    assert len(set(codes)) == 1
    assert element_define(dtype) == {"KT_ELEMENT": f"KT_ELEMENT_{dtype.upper()}"}


def test_nobody_has_said_for_which_type_a_file_is_built_alone(library: ctypes.CDLL) -> None:
    assert library.element() == -1


def test_the_harness_is_part_of_the_package() -> None:
    folder = Path(runtime.__file__).parent
    assert {p.name for p in folder.glob("*.cpp")} == {"harness.cpp", "probe.cpp"}
    assert (folder.parent / "harness_common.h").is_file()
