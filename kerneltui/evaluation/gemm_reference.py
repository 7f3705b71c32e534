"""What the references of products C = A B share. Judge only (torch).

A workload whose answer is a product builds its `reference.py` on this: the oracle, the scale of errors, fresh
inputs with a known answer, answers that must be refused and answers that must pass. A is [M, K], B is [K, N].
The interface is described in `kerneltui.evaluation.inputs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kerneltui.evaluation.inputs import MutantCall, Tensors, generator, power_of_two
from kerneltui.model.workload import Shape

__all__ = [
    "HONEST_PRODUCTS",
    "WRONG_PRODUCTS",
    "Answers",
    "GemmVariant",
    "Ranks",
    "edited",
    "everywhere",
    "scale",
    "variant",
]


def scale(inputs: Tensors, outputs: Tensors, shape: Shape) -> dict[str, Tensor]:
    """RMS of each row of C, and at least what it would be with random signs.

    The second counts where a short row is nearly zero by cancellation: its rounding errors are not.
    """
    rms = outputs["C"].square().mean(dim=1).sqrt()
    signs = (inputs["A"].double().square() @ inputs["B"].double().square().mean(dim=1)).sqrt()
    return {"C": torch.maximum(rms, signs)[:, None]}


@dataclass(frozen=True)
class GemmVariant:
    """A' = diag(s) (P A with one element of each row replaced); B' = B diag(t).

    So C' = diag(s) (P C + d B[k]) diag(t): row i of P A has its element k_i raised by d_i. The
    replaced elements make every row new to a kernel that remembers rows; the powers of two make every
    column of B new. s and t are exact, so the known answer is too.
    """

    rows: Tensor  # P, as the base row of each row of A'
    edited: Tensor  # k, int64
    values: Tensor  # what stands there instead, in the dtype of A
    row_scale: Tensor  # s
    column_scale: Tensor  # t

    def write(self, name: str, base: Tensor, first: int, out: Tensor) -> None:
        """Writes rows of A' or B' into the memory of a rank."""
        part = slice(first, first + out.shape[0])
        if name == "B":
            torch.mul(base[part], self.column_scale.to(base.dtype), out=out)
            return
        torch.index_select(base, 0, self.rows[part], out=out)
        out.scatter_(1, self.edited[part, None], self.values[part, None])
        out.mul_(self.row_scale[part, None].to(base.dtype))

    def expected(self, name: str, inputs: Tensors, outputs: Tensors, rows: slice) -> Tensor:
        """P C + d B[k], for some rows."""
        source, edited = self.rows[rows], self.edited[rows]
        raised = self.values[rows].double() - inputs["A"][source, edited].double()
        product = torch.index_select(outputs["C"], 0, source)
        return product.addcmul_(raised[:, None], inputs["B"][edited].double())

    def unscaled(self, name: str, found: Tensor, rows: slice) -> Tensor:
        """Found rows of C' without s and t."""
        made = found.double()
        made.mul_((1.0 / self.row_scale[rows].double())[:, None])
        return made.mul_(1.0 / self.column_scale.double())

    def rows_of_base(self, name: str, rows: slice) -> Tensor:
        """P, for some rows."""
        return self.rows[rows]


def variant(inputs: Tensors, shape: Shape, seed: int) -> GemmVariant:
    """Draws a variant."""
    a, b = inputs["A"], inputs["B"]
    source = generator(seed, a.device.type)
    drawn: Any = {"generator": source, "device": source.device}
    rows, reduction = a.shape
    edited = torch.randint(0, reduction, (rows,), **drawn)
    order = torch.randperm(rows, **drawn)
    # From the same row, so that the row keeps its magnitude and with it the scale of its errors.
    donors = torch.randint(0, reduction, (rows,), **drawn)
    return GemmVariant(
        rows=order,
        edited=edited,
        values=a[order, donors],
        row_scale=power_of_two(rows, source),
        column_scale=power_of_two(b.shape[1], source),
    )


def edited(variant: GemmVariant, inputs: Tensors, seed: int) -> GemmVariant:
    """Changes the replaced element of one row."""
    source = generator(seed)
    row = int(torch.randint(0, variant.rows.shape[0], (1,), generator=source))
    values = variant.values.clone()
    values[row] = values[row] + 1 if values[row] <= 0 else values[row] - 1
    return replace(variant, values=values)


# --- Answers that must be refused -------------------------------------------------------------------

Ranks = list[dict[str, Tensor]]
"""The answer of each rank."""

Answers = dict[str, Callable[[MutantCall], Ranks]]
"""Ways to answer, by name."""


def everywhere(call: MutantCall, c: Tensor) -> Ranks:
    """The same C on every rank."""
    return [{"C": c} for _ in call.owned]


def _operands(call: MutantCall) -> tuple[Tensor, Tensor]:
    """A and B in the type that sums are kept in."""
    return call.inputs["A"].float(), call.inputs["B"].float()


def _product(call: MutantCall, c: Tensor) -> Ranks:
    """A product in any type, as a kernel would store it."""
    return everywhere(call, c.to(call.outputs["C"].dtype))


def _zeros(call: MutantCall) -> Ranks:
    return everywhere(call, torch.zeros_like(call.outputs["C"]))


def _ones(call: MutantCall) -> Ranks:
    return everywhere(call, torch.ones_like(call.outputs["C"]))


def _mean(call: MutantCall) -> Ranks:
    c = call.outputs["C"]
    return everywhere(call, torch.full_like(c, float(c.mean())))


def _input_copy(call: MutantCall) -> Ranks:
    c, a = call.outputs["C"], call.inputs["A"].reshape(-1)
    return everywhere(call, a.repeat(-(-c.numel() // a.numel()))[: c.numel()].view_as(c))


def _shuffled(call: MutantCall) -> Ranks:
    c = call.outputs["C"]
    order = torch.randperm(c.numel(), generator=generator(1))
    return everywhere(call, c.reshape(-1)[order].view_as(c))


def _previous_call(call: MutantCall) -> Ranks:
    return everywhere(call, call.previous["C"])


def _part_of_sum(call: MutantCall) -> Ranks:
    a, b = _operands(call)
    kept = max(1, a.shape[1] // 8)
    return _product(call, (a[:, :kept] @ b[:kept]) * (a.shape[1] / kept))


def _last_slice(call: MutantCall) -> Ranks:
    a, b = _operands(call)
    return _product(call, a[:, :-1] @ b[:-1])


def _half_rows(call: MutantCall) -> Ranks:
    c = call.outputs["C"].clone()
    c[c.shape[0] // 2 :] = 0
    return everywhere(call, c)


_SHORTER = {torch.float32: 10, torch.float16: 7}
"""Bits of mantissa of the next shorter type: TF32, bfloat16; else the longer 8-bit float, with 3."""


def _half_accumulator(call: MutantCall) -> Ranks:
    """Sums in float16, in steps of 16 along K."""
    a, b = _operands(call)
    total = torch.zeros_like(call.outputs["C"], dtype=torch.float16)
    for k in range(0, a.shape[1], 16):
        total = (total.float() + a[:, k : k + 16] @ b[k : k + 16]).half()
    return _product(call, total)


def _short_mantissa(call: MutantCall) -> Ranks:
    """Operands of the next shorter type that tensor cores multiply."""
    kept = _SHORTER.get(call.inputs["A"].dtype, 3)
    a, b = (_shortened(values, 23 - kept) for values in _operands(call))
    return _product(call, a @ b)


def _shortened(values: Tensor, bits: int) -> Tensor:
    """Values rounded by so many bits of their mantissa."""
    half, mask = 1 << (bits - 1), (1 << bits) - 1
    return ((values.contiguous().view(torch.int32) + half) & ~mask).view(torch.float32)


def _last_row(call: MutantCall) -> Ranks:
    c = call.outputs["C"].clone()
    c[-1] = math.nan
    return everywhere(call, c)


def _last_column(call: MutantCall) -> Ranks:
    c = call.outputs["C"].clone()
    c[:, -1] = call.previous["C"][:, -1]
    return everywhere(call, c)


WRONG_PRODUCTS: Answers = {
    "zeros": _zeros,
    "ones": _ones,
    "mean": _mean,
    "copy of an input": _input_copy,
    "shuffled reference": _shuffled,
    "output of the previous call": _previous_call,
    "an eighth of K, scaled by 8": _part_of_sum,
    "last slice of K dropped": _last_slice,
    "half of the rows": _half_rows,
    "float16 accumulator": _half_accumulator,
    "operands of a shorter type": _short_mantissa,
    "last row untouched": _last_row,
    "last column untouched": _last_column,
}
"""Wrong on any number of ranks."""


# --- Answers that must pass -------------------------------------------------------------------------


def _rounded(call: MutantCall) -> Ranks:
    return everywhere(call, call.outputs["C"])


def _reversed_sum(call: MutantCall) -> Ranks:
    a, b = _operands(call)
    return _product(call, a.flip(1).contiguous() @ b.flip(0).contiguous())


def _split_sum(call: MutantCall) -> Ranks:
    a, b = _operands(call)
    parts = [
        a[:, k : k + 32].contiguous() @ b[k : k + 32].contiguous() for k in range(0, a.shape[1], 32)
    ]
    return _product(call, torch.stack(parts).sum(0))


def _one_by_one(call: MutantCall) -> Ranks:
    """Adds one product after the other, each rounded: the worst honest order."""
    a, b = _operands(call)
    c = torch.zeros_like(call.outputs["C"], dtype=torch.float32)
    for k in range(a.shape[1]):
        c += a[:, k, None] * b[None, k]
    return _product(call, c)


HONEST_PRODUCTS: Answers = {
    "float64 result, rounded": _rounded,
    "sum in reverse order": _reversed_sum,
    "sum in slices of 32": _split_sum,
    "one product after the other": _one_by_one,
}
"""Right, in orders of addition that kernels may choose."""
