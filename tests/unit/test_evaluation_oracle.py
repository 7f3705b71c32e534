"""The comparison of outputs: the right answer always passes, however small the shape."""

from __future__ import annotations

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
    dtype = {torch.bfloat16: "bfloat16", torch.float32: "float32"}[output.dtype]
    return compare_outputs(reference, base, variant, Memory([output, output], "C", dtype), 0)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(load_workload(WORKLOAD_FOLDER, "cuda"))


@pytest.mark.parametrize("size", SHAPES, ids=str)
@pytest.mark.parametrize("values", list(ValueClass))
def test_the_right_answer_rounded_to_bf16_passes_whatever_is_drawn(
    reference: Reference, size: tuple[int, int, int], values: ValueClass
) -> None:
    m, n, k = size
    shape = sized(m, n, k)
    for seed in range(12):
        base = reference.base(shape, values, seed)
        for turn in range(3):
            found = compared(reference, base, 100 * seed + turn)
            assert [fault.text for fault in found.faults] == []


def test_a_finding_counts_only_what_is_wrong(reference: Reference) -> None:
    shape = sized(127, 61, 89)
    base = reference.base(shape, ValueClass.LARGE_ROWS, 7)
    variant = reference.variant(base.inputs, shape, 8)
    _, right = reference.rounded(base, variant)
    output = right["C"].clone()
    output[5, 6] = float("nan")
    memory: Any = Memory([output, output], "C", "bfloat16")
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
