"""The comparison of outputs: the right answer always passes, however small the shape."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from evaluation_fakes import WORKLOAD_FOLDER  # noqa: E402

from kerneltui.evaluation.oracle import Base, Comparison, Reference, compare_outputs  # noqa: E402
from kerneltui.evaluation.values import FaultKind, ValueClass  # noqa: E402
from kerneltui.model.workload import Role, Shape  # noqa: E402
from kerneltui.model.workload_file import load_workload  # noqa: E402

SHAPES = [(3, 1, 33), (257, 129, 1), (127, 61, 89)]


class Memory:
    """The output of every rank, as the judge would map it."""

    def __init__(self, outputs: list[Any], name: str, dtype: str) -> None:
        self.outputs = outputs
        rows, columns = outputs[0].shape
        place = SimpleNamespace(
            name=name,
            role=Role.OUTPUT,
            dtype=dtype,
            origin=(0, 0),
            local_shape=(rows, columns),
            nbytes=outputs[0].nbytes,
        )
        rank = SimpleNamespace(sets=[[place]], tensor=lambda index, name: place)
        self.layout = SimpleNamespace(ranks=[rank] * len(outputs))

    def tensor(self, rank: int, place: Any) -> Any:
        return self.outputs[rank]


def sized(m: int, n: int, k: int) -> Shape:
    return Shape(f"{m}x{n}x{k}", {"M": m, "N": n, "K": k}, ("test",), 2, 2)


def compared(reference: Reference, base: Base, seed: int, spoil: float = 0.0) -> Comparison:
    variant = reference.variant(base.inputs, base.shape, seed)
    _, right = reference.rounded(base, variant)
    output = right["C"]
    output = output + (spoil * output.double().abs().mean()).to(output.dtype)
    dtype = str(output.dtype).removeprefix("torch.")
    return compare_outputs(reference, base, variant, Memory([output, output], "C", dtype), 0)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["gemm_allgather", "gemm_fp16"])
def reference(request: pytest.FixtureRequest) -> Reference:
    """In bf16, and in fp16, whose numbers end at 65504 and at 2^-24."""
    return Reference(load_workload(WORKLOAD_FOLDER.parent / request.param, "cuda"))


@pytest.mark.parametrize("size", SHAPES, ids=str)
@pytest.mark.parametrize("values", list(ValueClass))
def test_the_right_answer_in_a_short_type_passes_whatever_is_drawn(
    reference: Reference, size: tuple[int, int, int], values: ValueClass
) -> None:
    m, n, k = size
    shape = sized(m, n, k)
    for seed in range(12):
        base = reference.base(shape, values, seed)
        for turn in range(3):
            found = compared(reference, base, 100 * seed + turn)
            assert [fault.text for fault in found.faults] == []


@pytest.mark.parametrize("size", [(257, 129, 1), (33, 40, 2)], ids=str)
def test_a_row_that_one_changed_element_makes_larger_has_larger_errors(
    size: tuple[int, int, int],
) -> None:
    """In float32 with K = 1: the base's row may be a hundredth of what it is now."""
    reference = Reference(load_workload(WORKLOAD_FOLDER, "cpu"))
    m, n, k = size
    shape = Shape(f"{m}x{n}x{k}", {"M": m, "N": n, "K": k}, ("test",), 2, 2)
    base = reference.base(shape, ValueClass.NATURAL, 7)
    plain = reference.variant(base.inputs, shape, 11)
    for seed in range(400):
        variant = reference.edited(plain, base.inputs, seed)
        inputs, right = reference.rounded(base, variant)
        output = (inputs["A"].double() @ inputs["B"].double()).float()
        assert torch.equal(output, right["C"])
        memory: Any = Memory([output, output], "C", "float32")
        found = compare_outputs(reference, base, variant, memory, 0)
        assert [fault.text for fault in found.faults] == []


def test_a_finding_counts_only_what_is_wrong(reference: Reference) -> None:
    shape = sized(127, 61, 89)
    base = reference.base(shape, ValueClass.LARGE_ROWS, 7)
    variant = reference.variant(base.inputs, shape, 8)
    _, right = reference.rounded(base, variant)
    output = right["C"].clone()
    output[5, 6] = float("nan")
    memory: Any = Memory([output, output], "C", reference.workload.dtype)
    found = compare_outputs(reference, base, variant, memory, 0)
    assert {fault.kind for fault in found.faults} == {FaultKind.NOT_FINITE}
    assert (
        f"C[5, 6] on rank 0 is not a finite number: never written, or invalid; 1 of {127 * 61}"
        in (found.faults[0].text)
    )


def test_an_offset_of_all_elements_is_found(reference: Reference) -> None:
    shape = sized(127, 61, 89)
    base = reference.base(shape, ValueClass.NATURAL, 3)
    assert compared(reference, base, 4, spoil=0.03).faults


@pytest.mark.parametrize("values", list(ValueClass))
def test_a_long_sum_fits_the_type_and_so_do_its_variants(
    reference: Reference, values: ValueClass
) -> None:
    shape = sized(96, 64, 16384)
    base = reference.base(shape, values, 1)
    assert compared(reference, base, 2).faults == []


def test_fresh_inputs_follow_exactly_from_the_base(reference: Reference) -> None:
    """Small numbers of fp16 would lose digits when they are made smaller."""
    shape = sized(64, 48, 80)
    for values in ValueClass:
        base = reference.base(shape, values, 5)
        variant = reference.variant(base.inputs, shape, 6)
        inputs, _ = reference.rounded(base, variant)
        right = reference.outputs(inputs, shape)["C"]
        known = variant.expected("C", base.inputs, base.outputs, slice(0, 64))
        again = variant.unscaled("C", right, slice(0, 64))
        assert float((again - known).abs().max()) <= 1e-12 * float(known.abs().max())


def test_inputs_whose_answer_does_not_fit_the_type_are_refused(tmp_path: Path) -> None:
    """Not blamed on the kernel, which can only write infinity."""
    folder = tmp_path / "large"
    shutil.copytree(WORKLOAD_FOLDER.parent / "gemm_fp16", folder)
    file = folder / "reference.py"
    text = file.read_text()
    product = 'inputs["A"].double() @'
    assert product in text
    file.write_text(text.replace(product, f"100 * {product}"))
    made = Reference(load_workload(folder, "cuda"))
    made.base(sized(8, 8, 16), ValueClass.NATURAL, 1)
    outputs = made.outputs
    made.outputs = lambda inputs, shape: {"C": outputs(inputs, shape)["C"].fill_diagonal_(math.nan)}  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="C is not finite in float16 at 8x8x16, exact inputs"):
        made.base(sized(8, 8, 16), ValueClass.EXACT, 1)
    made.outputs = outputs  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"C is not finite in float16 at 8x8x4096, uniform inputs"):
        made.base(sized(8, 8, 4096), ValueClass.UNIFORM, 1)
