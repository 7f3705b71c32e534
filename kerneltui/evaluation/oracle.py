"""Expected values and the comparison of raw memory against them. Judge only (torch)."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kerneltui.evaluation.inputs import (
    SMALLEST_STEPS,
    MutantCall,
    Tensors,
    Variant,
    draw,
    generator,
    torch_dtype,
)
from kerneltui.evaluation.judge_memory import JudgeMemory
from kerneltui.evaluation.values import Fault, FaultKind, ValueClass
from kerneltui.model.workload import Role, Shape, Workload
from kerneltui.targets.windows import TensorLayout

__all__ = ["Base", "Comparison", "Reference", "compare_outputs"]

_CHUNK_ELEMENTS = {"cpu": 1 << 17, "cuda": 1 << 24}  # float64 chunks of 1 MiB stay in a CPU's cache
_EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_HONEST_ROUNDING = 0.25
"""RMS error of the plainest honest sum, in eps * sqrt(K) * RMS.

Adding K products one by one in round-to-nearest gives eps / (2 sqrt(3)) * sqrt(1 + 2 + ... + K) of a
product's RMS, so 0.20 eps sqrt(K) of the sum's. A library that sums in blocks may be much nearer, by
luck exact on a small shape; the plain sum must pass all the same.
"""


@dataclass(frozen=True)
class Base:
    """Base inputs of one shape and value class, with the answers that variants are made from.

    Attributes:
        shape: Problem size.
        values: How the inputs were drawn.
        seed: The secret seed.
        inputs: Global inputs.
        outputs: Expected global outputs (float64).
        scale: What the error of an element is measured against, per row (float64).
        library_error: RMS error of the vendor library per output, in units of `scale`.
    """

    shape: Shape
    values: ValueClass
    seed: int
    inputs: Tensors
    outputs: Tensors
    scale: Tensors
    library_error: Mapping[str, float]

    @property
    def nbytes(self) -> int:
        """Memory that all of it takes."""
        parts = (self.inputs, self.outputs, self.scale)
        return sum(value.nbytes for part in parts for value in part.values())


class Reference:
    """A workload's `reference.py`, loaded.

    Args:
        workload: Whose.
        device: Where values are made, answers computed and outputs compared.

    Raises:
        ValueError: The file cannot be loaded or has not the functions it must have.
    """

    def __init__(self, workload: Workload, device: str = "cpu") -> None:
        self.workload = workload
        self.device = device
        self.path = workload.folder / "reference.py"
        self._module = _load(self.path)
        try:
            module: Any = self._module
            self._oracle: Callable[[Tensors, Shape], Tensors] = module.oracle
            self._library: Callable[[Tensors, Shape], Tensors] = module.library
            self._scale: Callable[[Tensors, Tensors, Shape], Tensors] = module.scale
            self.variant: Callable[[Tensors, Shape, int], Variant] = module.variant
            self.edited: Callable[[Any, Tensors, int], Variant] = module.edited
            self.mutants: Mapping[str, Callable[[MutantCall], list[dict[str, Tensor]]]] = (
                module.MUTANTS
            )
            self.honest: Mapping[str, Callable[[MutantCall], list[dict[str, Tensor]]]] = (
                module.HONEST
            )
        except AttributeError as error:
            raise ValueError(f"{self.path}: {error.name} is missing") from error

    def base(self, shape: Shape, values: ValueClass, seed: int) -> Base:
        """Draws base inputs and computes the answers.

        Raises:
            ValueError: The reference is not finite, or an answer has the wrong shape.
        """
        inputs = draw(self.workload, shape, values, generator(seed, self.device))
        outputs = self.outputs(inputs, shape)
        for tensor in self._outputs():
            value = outputs.get(tensor.name)
            if value is None or tuple(value.shape) != tensor.extent(shape):
                raise ValueError(f"{self.path}: oracle gives no {tensor.name} of the right shape")
            if not _fits(value, torch_dtype(tensor.dtype)):
                problem = f"is not finite in {tensor.dtype} at {shape.name}, {values} inputs"
                raise ValueError(f"{self.path}: {tensor.name} {problem}")
        scale = dict(self._scale(inputs, outputs, shape))
        library = self._library(inputs, shape)
        errors = {
            name: _rms((library[name].double() - value) / _positive(scale[name]))
            for name, value in outputs.items()
        }
        return Base(shape, values, seed, inputs, outputs, scale, errors)

    def outputs(self, inputs: Tensors, shape: Shape) -> dict[str, Tensor]:
        """Returns the expected outputs (float64)."""
        return {name: value.double() for name, value in self._oracle(inputs, shape).items()}

    def rounded(self, base: Base, variant: Variant) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns inputs and right outputs of a variant, as a rank would hold them."""
        inputs: dict[str, Tensor] = {}
        for name, value in base.inputs.items():
            inputs[name] = torch.empty_like(value)
            variant.write(name, value, 0, inputs[name])
        right = self._oracle(inputs, base.shape)
        dtypes = {t.name: torch_dtype(t.dtype) for t in self._outputs()}
        return inputs, {name: value.to(dtypes[name]) for name, value in right.items()}

    def _outputs(self) -> list[Any]:
        return [t for t in self.workload.tensors if t.role is not Role.INPUT]

    def tolerances(self, shape: Shape, dtype: str) -> tuple[float, float]:
        """Allowed error of an element, and the honest RMS error, both in units of the scale.

        What counts is the type in which sums are kept. An output of a shorter type has its last digit
        beside that, as an element far above the scale has.
        """
        rule = self.workload.tolerance
        summed = self.workload.accumulate if dtype in _EPS else dtype
        unit = _EPS.get(summed, 0.0) * rule.reduction.number(shape.values) ** 0.5
        return rule.factor * unit, _HONEST_ROUNDING * unit


@dataclass
class Comparison:
    """What was found in the outputs of one buffer set."""

    faults: list[Fault] = field(default_factory=list[Fault])
    error: float = 0.0
    library_share: float = 0.0


def compare_outputs(
    reference: Reference, base: Base, variant: Variant, memory: JudgeMemory, buffer_set: int
) -> Comparison:
    """Compares every output of every rank in one buffer set, element by element."""
    comparer = _Comparer(reference, base, variant, buffer_set)
    ranks = memory.layout.ranks
    for output in (t for t in ranks[0].sets[buffer_set] if t.role is not Role.INPUT):
        parts: dict[tuple[int, int], list[int]] = {}
        for rank, layout in enumerate(ranks):
            local = layout.tensor(buffer_set, output.name)
            if local.nbytes:
                parts.setdefault((local.origin[0], local.local_shape[0]), []).append(rank)
        for (first, rows), owners in parts.items():
            found = {
                rank: memory.tensor(rank, ranks[rank].tensor(buffer_set, output.name))
                for rank in owners
            }
            comparer.compare(output, slice(first, first + rows), found)
    return comparer.result


class _Comparer:
    """Compares the outputs of one call, and gathers what it finds in `result`."""

    def __init__(self, reference: Reference, base: Base, variant: Variant, buffer_set: int) -> None:
        self._reference = reference
        self._base = base
        self._variant = variant
        self._set = buffer_set
        self.result = Comparison()

    def compare(self, output: TensorLayout, rows: slice, found: Mapping[int, Tensor]) -> None:
        """Compares the same rows of an output on several ranks."""
        base, name = self._base, output.name
        allowed, honest = self._reference.tolerances(base.shape, output.dtype)
        exact = base.values is ValueClass.EXACT or allowed == 0.0
        limit = 0.0 if exact else allowed
        squares = dict.fromkeys(found, 0.0)
        digit = _EPS.get(output.dtype, 0.0)
        short = digit > _EPS.get(self._reference.workload.accumulate, digit)
        rounding = 0.0  # sum of squares of what rounding to the output's type may do
        width = max(1, prod(next(iter(found.values())).shape[1:]))
        device = torch.device(self._reference.device)
        step = max(1, _CHUNK_ELEMENTS[device.type] // width)
        for first in range(rows.start, rows.stop, step):
            part = slice(first, min(first + step, rows.stop))
            local = slice(part.start - rows.start, part.stop - rows.start)
            expected = self._variant.expected(name, base.inputs, base.outputs, part)
            if exact:  # a sum may need more digits than the output has
                expected = expected.to(torch_dtype(output.dtype)).double()
            scale = _positive(base.scale[name][self._variant.rows_of_base(name, part)])
            scale = torch.maximum(
                scale, _row_rms(expected)
            )  # of few elements one that changed is most
            if short and not exact:
                rounding += _square(self._last_digit(output, expected, part) / scale) * 0.25
            right: tuple[Tensor, float] | None = None
            for rank in [*squares]:
                given = found[rank][local].to(device)
                if right is not None and torch.equal(given, right[0]):
                    squares[rank] += right[1]  # gathered from one place: the same bits everywhere
                    continue
                error = self._variant.unscaled(name, given, part)
                error.sub_(expected).abs_().div_(scale)
                square = _square(error)
                worst = float(error.max())
                if not worst <= limit and not exact:
                    # An element far above the RMS may be off by its own last digit, however short K is.
                    error.sub_(self._last_digit(output, expected, part).div_(scale))
                    worst = float(error.max())
                if worst <= limit:  # False for NaN
                    squares[rank] += square
                    right = right or (given, square)
                    self.result.error = max(self.result.error, worst / (limit or 1.0))
                else:
                    del squares[rank]  # one finding a rank is enough
                    self._report(error, limit, part, rank, name)
        if exact:
            return
        rule = self._reference.workload.tolerance.library
        # A library may be exact by luck where there are few elements; the right answer, rounded to the
        # output's type, must pass all the same.
        count = max(1, next(iter(found.values())).numel())
        rounded = (rounding / count) ** 0.5
        most = max(rule * max(base.library_error[name], honest), rounded + rule * honest)
        for rank, total in squares.items():
            rms = (total / count) ** 0.5
            self.result.library_share = max(self.result.library_share, rms / most)
            if rms > most:
                text = (
                    f"{name} on rank {rank} is inaccurate: RMS error {rms:.2e} of the row RMS, "
                    f"allowed {most:.2e} ({rule:g} times the vendor library's), {base.values} "
                    f"inputs, {base.shape.name}"
                )
                self._fault(FaultKind.INACCURATE, rank, text)

    def _last_digit(self, output: TensorLayout, expected: Tensor, part: slice) -> Tensor:
        """What the last digit of each element of a right output counts, in the scale of the base."""
        digit = expected.abs().mul_(_EPS.get(output.dtype, 0.0))
        step = SMALLEST_STEPS.get(output.dtype)
        if step is None:
            return digit
        steps = self._variant.unscaled(output.name, torch.full_like(expected, step), part)
        return torch.maximum(digit, steps)

    def _report(self, error: Tensor, limit: float, part: slice, rank: int, name: str) -> None:
        """One line that names the place, the rank, and how far off it is."""
        bad = ~(error <= limit)
        place = [int(i) for i in bad.nonzero()[0]]
        local = float(error[tuple(place)])
        place[0] += part.start
        where = f"{name}{place} on rank {rank}"
        rest = (
            f"{int(bad.sum())} of {error.numel()} elements there, {self._base.values} inputs, "
            f"{self._base.shape.name}"
        )
        if not isfinite(local):
            text = f"{where} is not a finite number: never written, or invalid; {rest}"
            self._fault(FaultKind.NOT_FINITE, rank, text)
            return
        allowed = f"allowed {limit:.1e}" if limit else "must match bit for bit"
        text = f"{where} is wrong: off by {local:.1e} of the row RMS, {allowed}; {rest}"
        self._fault(FaultKind.VALUE, rank, text)

    def _fault(self, kind: FaultKind, rank: int, text: str) -> None:
        self.result.faults.append(Fault(kind, rank, self._set, text))


def _row_rms(values: Tensor) -> Tensor:
    """RMS of each row, in a form that broadcasts along it."""
    rows = values.flatten(1)
    rms = torch.linalg.vector_norm(rows, dim=1) / max(1, rows.shape[1]) ** 0.5
    return rms.reshape(-1, *[1] * (values.dim() - 1))


def _positive(scale: Tensor) -> Tensor:
    """A row of zeros has no scale; then the error is measured in absolute terms."""
    return torch.where(scale > 0, scale, 1.0)


def _fits(value: Tensor, kind: torch.dtype) -> bool:
    """Whether an output can be written in its type; NaN cannot."""
    most = torch.finfo(kind).max if kind.is_floating_point else inf
    return all(isfinite(edge) and abs(edge) <= most for edge in map(float, value.aminmax()))


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt()) if values.numel() else 0.0


def _square(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values)) ** 2


def _load(path: Path) -> Any:
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    name = f"kerneltui_reference_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error
    return module
