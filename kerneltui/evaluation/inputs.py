"""Inputs from secret seeds, and the cheap exact transforms that make fresh ones. Judge only (torch).

A workload's `reference.py` builds on this module. Its interface, all plain functions:

* `oracle(inputs, shape)`: the expected outputs in float64, from float32 (or other) inputs.
* `library(inputs, shape)`: the same by the vendor library, in the dtype of the workload.
* `scale(inputs, outputs, shape)`: for each output, what an element's error is measured against:
  a float64 tensor that broadcasts to the output along its first axis, `[rows, 1, ...]`.
* `variant(inputs, shape, seed)`: a `Variant`: fresh inputs with a known answer.
* `edited(variant, inputs, seed)`: the same variant with one element of one input changed.
* `MUTANTS`, `HONEST`: name to function of a `MutantCall`, the outputs of each rank that must be
  refused, or must pass.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from kerneltui.evaluation.values import ValueClass
from kerneltui.model.workload import Role, Shape, Workload
from kerneltui.model.workload import Tensor as TensorDefinition

__all__ = [
    "SMALLEST_STEPS",
    "MutantCall",
    "Tensors",
    "Variant",
    "draw",
    "generator",
    "power_of_two",
    "secret_seed",
    "torch_dtype",
]

Tensors = Mapping[str, Tensor]

_DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
}


SMALLEST_STEPS = {"float16": 2.0**-24}
"""Distance of the smallest numbers of a type, where inputs and outputs come near to them."""

_LEAST_EXPONENT = -4


class Variant(Protocol):
    """Fresh inputs made from base inputs, whose outputs follow exactly from the base outputs."""

    def write(self, name: str, base: Tensor, first: int, out: Tensor) -> None:
        """Writes rows `first` to `first + len(out)` of an input into memory."""
        ...

    def expected(self, name: str, inputs: Tensors, outputs: Tensors, rows: slice) -> Tensor:
        """Expected rows of an output in the scale of the base (float64)."""
        ...

    def unscaled(self, name: str, found: Tensor, rows: slice) -> Tensor:
        """Brings found rows of an output to the scale of the base (float64)."""
        ...

    def rows_of_base(self, name: str, rows: slice) -> Tensor:
        """The base rows that the rows of an output come from; they carry the scale of errors."""
        ...


@dataclass(frozen=True, slots=True)
class MutantCall:
    """What a mutant may use: the call's inputs and right answer, and the call before it.

    Attributes:
        shape: Problem size.
        inputs: Global inputs of this call, in the dtype of the workload.
        outputs: Right global outputs of this call, rounded to the dtype of the workload.
        previous: Right outputs of the call before, on other inputs.
        owned: For each rank the rows that it owns.
    """

    shape: Shape
    inputs: Tensors
    outputs: Tensors
    previous: Tensors
    owned: Sequence[slice]


def torch_dtype(name: str) -> torch.dtype:
    """Returns the element type of torch for a dtype of the contract."""
    return _DTYPES[name]


def secret_seed() -> int:
    """Returns a seed from the system; nothing else in the session can repeat it."""
    return secrets.randbits(62)


def generator(seed: int, device: str = "cpu") -> torch.Generator:
    """Returns a generator with a seed of its own; what it draws lies on its device."""
    made = torch.Generator(device)
    made.manual_seed(seed)
    return made


def power_of_two(count: int, source: torch.Generator) -> Tensor:
    """Returns `count` random factors 2^-4 to 1 (float32): inputs that were drawn scale by them exactly.

    They only make smaller: a sum that fits the largest number of a short type fits it when scaled, too.
    """
    exponents = torch.randint(_LEAST_EXPONENT, 1, (count,), generator=source, device=source.device)
    return torch.ldexp(torch.ones(count, device=source.device), exponents)


def draw(
    workload: Workload, shape: Shape, values: ValueClass, source: torch.Generator
) -> dict[str, Tensor]:
    """Draws the global inputs of a shape.

    Returns:
        For each input tensor its global values in its dtype.
    """
    found = [t for t in workload.tensors if t.role is not Role.OUTPUT]
    return {t.name: _draw(t, t.extent(shape), values, i == 0, source) for i, t in enumerate(found)}


def _draw(
    tensor: TensorDefinition,
    extent: tuple[int, ...],
    values: ValueClass,
    first: bool,
    source: torch.Generator,
) -> Tensor:
    drawn: Any = {"generator": source, "device": source.device}
    if values is ValueClass.EXACT:
        made = torch.randint(0, 2, extent, **drawn).float()
    elif values is ValueClass.UNIFORM:
        made = torch.rand(extent, **drawn)
    elif values is ValueClass.WIDE:
        sign = torch.randint(0, 2, extent, **drawn) * 2.0 - 1.0
        made = sign * torch.exp2(torch.rand(extent, **drawn) * 18 - 14)
    elif values is ValueClass.NATURAL and tensor.distribution == "uniform":
        made = torch.rand(extent, **drawn)
    else:
        made = torch.randn(extent, **drawn)
    if first and len(extent) > 1 and values is ValueClass.LARGE_ROWS:
        factors = torch.exp2(torch.randint(-5, 6, (extent[0],), **drawn).float())
        made *= factors.view(-1, *[1] * (len(extent) - 1))
    if first and len(extent) > 1 and values is ValueClass.SPIKE:
        flat = made.view(-1, extent[-1])
        # Half of the rows keep nothing but the spike, as a one-hot row would.
        flat *= torch.randint(0, 2, (flat.shape[0], 1), **drawn) / math.sqrt(extent[-1])
        place = torch.randint(0, extent[-1], (flat.shape[0], 1), **drawn)
        flat.scatter_(1, place, 8.0)
    step = SMALLEST_STEPS.get(tensor.dtype, 0.0) / 2.0**_LEAST_EXPONENT
    if step:  # so that a small number keeps its digits when it is scaled
        made = made.div_(step).round_().mul_(step)
    return made.to(torch_dtype(tensor.dtype))
