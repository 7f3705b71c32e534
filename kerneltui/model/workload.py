"""The workload: the problem that kernels solve, read from `workloads/<name>/workload.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from kerneltui.model.expression import Expression

__all__ = [
    "DTYPE_BYTES",
    "Limit",
    "Role",
    "Shape",
    "TargetSpec",
    "Tensor",
    "Tolerance",
    "Workload",
]

DTYPE_BYTES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "int64": 8,
}


class Role(StrEnum):
    """What a tensor is to the kernel."""

    INPUT = "input"
    OUTPUT = "output"
    INOUT = "inout"
    SCALE = "scale"


@dataclass(frozen=True, slots=True)
class Shape:
    """One problem size: a name for the screen, its dimensions, its tags and its number of ranks.

    `element_bytes` is the size of an element of the workload's dtype on the target.
    """

    name: str
    dimensions: Mapping[str, int]
    tags: tuple[str, ...]
    ranks: int
    element_bytes: int = 4

    @property
    def values(self) -> dict[str, int]:
        """Dimensions, RANKS and BYTES (of an element), as expressions see them."""
        return {**self.dimensions, "RANKS": self.ranks, "BYTES": self.element_bytes}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the workload.

    `shard` is the axis that is shared out over the ranks (rank r owns rows floor(rM/P) to
    floor((r+1)M/P)), or None if every rank holds the whole. A `symmetric` tensor can be stored to by
    its peers. A `packed` input may be kept in another layout from call to call.
    """

    name: str
    dtype: str
    shape: tuple[Expression, ...]
    role: Role
    shard: int | None = None
    symmetric: bool = False
    packed: bool = False
    distribution: str = "normal"

    def extent(self, shape: Shape) -> tuple[int, ...]:
        """Returns the global extent for a problem size."""
        return tuple(int(axis.number(shape.values)) for axis in self.shape)

    def local(self, shape: Shape, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns local extent and offset of the shard of a rank."""
        extent = list(self.extent(shape))
        offset = [0] * len(extent)
        if self.shard is not None:
            rows = extent[self.shard]
            first = rank * rows // shape.ranks
            extent[self.shard] = (rank + 1) * rows // shape.ranks - first
            offset[self.shard] = first
        return tuple(extent), tuple(offset)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How near an output must be to the oracle.

    An element may differ by `factor` * eps(dtype) * sqrt(reduction length) * RMS of the output; the
    whole may not have more than `library` times the error of the vendor library on the same input.
    """

    factor: float
    reduction: Expression
    library: float


@dataclass(frozen=True, slots=True)
class Limit:
    """What one rank must do at least, for the bound: operations, memory bytes, link bytes.

    `tiles` is into how many equal parts a GPU's work falls, one to an SM at a time; None if nobody knows.
    """

    flops: Expression
    memory_bytes: Expression
    link_bytes: Expression
    tiles: Expression | None = None


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """What the workload is on one target. Its `dtype` takes the place of the workload's."""

    name: str
    ranks: int
    seed: str
    library: tuple[str, ...]
    baselines: tuple[str, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Workload:
    """A validated workload definition as it is on one target, and the folder that it was read from.

    `targets` has all targets; dtypes, shapes and numbers of ranks are those of `target`. `kernel_folder`
    is the name of the folder of its kernels in `kernels/`: its own, or that of a workload it shares with.
    """

    name: str
    folder: Path
    target: str
    title: str
    dimensions: tuple[str, ...]
    dtype: str
    accumulate: str
    targets: Mapping[str, TargetSpec]
    shapes: tuple[Shape, ...]
    tensors: tuple[Tensor, ...]
    tolerance: Tolerance
    limit: Limit
    comparison: str = "elementwise"
    kernel_folder: str = ""
    text: str = field(default="", repr=False)

    def shapes_for(self, tag: str) -> tuple[Shape, ...]:
        """Returns the shapes with a tag (`tune`, `test`, `hidden`, `bench`)."""
        return tuple(shape for shape in self.shapes if tag in shape.tags)

    @property
    def root(self) -> Path:
        """The project root: the nearest ancestor that has `kernels/`."""
        for parent in self.folder.resolve().parents:
            if (parent / "kernels").is_dir():
                return parent
        return self.folder.resolve().parent.parent

    @property
    def kernels(self) -> Path:
        """The folder of the library kernels of this workload."""
        return self.root / "kernels" / (self.kernel_folder or self.name)
