"""The proof that a vendor library keeps its sums in float32, with products that do and that do not."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from kerneltui.evaluation.worker_cuda_product import Product, proved_sums  # noqa: E402


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def product(dtype: Any, k: int) -> Product:
    operands = tuple(torch.empty(size, dtype=dtype) for size in ((32, k), (k, 48), (32, 48)))
    made = SimpleNamespace(
        sets=[operands], dtype=dtype, k=k, transposed=False, problem=SimpleNamespace(stream=None)
    )
    return cast(Product, made)


def summed_in(made: Product, kind: Any, parts: int = 1) -> Any:
    """A product whose sums are kept in a type, in steps of 16 along K, in parts that are added last."""

    def call(index: int) -> None:
        a, b, c = made.sets[index]
        step = -(-made.k // parts)
        total = torch.zeros_like(c, dtype=kind)
        for first in range(0, made.k, step):
            part = torch.zeros_like(c, dtype=kind)
            for k in range(first, min(first + step, made.k), 16):
                end = min(k + 16, first + step)
                part = (part.float() + a[:, k:end].float() @ b[k:end].float()).to(kind)
            total = (total.float() + part.float()).to(kind)
        c.copy_(total.to(c.dtype))

    return call


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("k", [64, 256, 4096, 12288])
@pytest.mark.parametrize("parts", [1, 6])
def test_sums_in_float32_are_shown(dtype: Any, k: int, parts: int):
    made = product(dtype, k)
    said = proved_sums(made, summed_in(made, torch.float32, parts))
    assert said.startswith("float32, shown")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("k", [64, 256, 4096, 12288])
def test_sums_in_the_type_of_the_operands_are_refused(dtype: Any, k: int):
    made = product(dtype, k)
    with pytest.raises(ValueError, match="not kept in float32"):
        proved_sums(made, summed_in(made, dtype))


def test_an_output_that_is_not_written_is_refused():
    made = product(torch.bfloat16, 256)
    with pytest.raises(ValueError, match="not kept in float32"):
        proved_sums(made, lambda index: None)


def test_a_short_sum_shows_nothing_and_says_so():
    made = product(torch.float16, 16)
    said = proved_sums(made, summed_in(made, torch.float32))
    assert "too short to show it" in said
