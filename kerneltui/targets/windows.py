"""Where every byte of a group of ranks lies.

Each rank has three shared files. Nothing has a name in a file system: they are memfds (or, on a GPU,
allocations with a shareable handle) that travel by descriptor.

* *private*: the tensors of this rank alone. Mapped by this rank and by the judge.
* *symmetric*: the symmetric tensors, then the window bytes that the kernel asked for. Mapped by
  all ranks of the group and by the judge. Offsets are the same on every rank.
* *signals*: the 64-bit words that kernels use as flags, and behind them a line of each rank for the
  start gate on devices. Mapped by all ranks. Zeroed once, when the file is made, and never again.

Every byte of the private and symmetric file that belongs to no tensor and no window is guard: at
least `GUARD_BYTES` on both sides of each tensor, directly at its last byte.

The layout is plain data and goes through JSON unchanged; engine, ranks and judge read the same one.
The memory itself is made elsewhere: `cpu.memory`, and for GPUs in the judge. Only where a layout is
*offered* each rank makes its own symmetric file.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from kerneltui.model.workload import Role, Shape, Tensor

__all__ = [
    "GUARD_BYTES",
    "DType",
    "GroupLayout",
    "RankLayout",
    "Span",
    "TensorLayout",
    "TensorSpec",
    "first_row",
]

GUARD_BYTES = 4096
"""Least width of the guard on each side of a tensor or window, in bytes."""

_ALIGNMENT = 256
_PAGE = mmap.PAGESIZE
_GATE_LINE_BYTES = 128
_GATE_BYTES = 65536  # which peers read to wake their links: kLinkBytes in harness.cu
_LAYOUT_VERSION = 3


class DType(StrEnum):
    """Element types of the kernel contract."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT32 = "int32"
    INT64 = "int64"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}[
            self.value
        ]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of the workload at one shape, before it has a place.

    Attributes:
        name: Name in the workload.
        dtype: Element type.
        role: What the kernel does with it.
        shape: Global shape, 1 to 4 dimensions.
        shard: The axis that the ranks share out, or None if every rank holds the whole.
        symmetric: True if peers map it too.
    """

    name: str
    dtype: DType
    role: Role
    shape: tuple[int, ...]
    shard: int | None = None
    symmetric: bool = False

    @classmethod
    def of(cls, tensor: Tensor, shape: Shape) -> Self:
        """A tensor of a workload at one of its shapes."""
        return cls(
            name=tensor.name,
            dtype=DType(tensor.dtype),
            role=tensor.role,
            shape=tensor.extent(shape),
            shard=tensor.shard,
            symmetric=tensor.symmetric,
        )

    def local_shape(self, rank: int, ranks: int) -> tuple[int, ...]:
        """Shape of the part that `rank` holds."""
        extent = list(self.shape)
        if self.shard is not None:
            rows = extent[self.shard]
            extent[self.shard] = first_row(rows, rank + 1, ranks) - first_row(rows, rank, ranks)
        return tuple(extent)

    def origin(self, rank: int, ranks: int) -> tuple[int, ...]:
        """Index in the global tensor of the first element that `rank` holds."""
        first = [0] * len(self.shape)
        if self.shard is not None:
            first[self.shard] = first_row(self.shape[self.shard], rank, ranks)
        return tuple(first)


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Where one tensor of one buffer set lies on one rank.

    Attributes:
        name: Name in the workload.
        dtype: Element type.
        role: What the kernel does with it.
        local_shape: Shape of this rank's part, row major and contiguous.
        origin: Where this part begins in the global tensor.
        offset: First byte within the private or the symmetric file.
        nbytes: Bytes of the local part.
        symmetric: True if it lies in the symmetric file, False if in the private one.
    """

    name: str
    dtype: DType
    role: Role
    local_shape: tuple[int, ...]
    origin: tuple[int, ...]
    offset: int
    nbytes: int
    symmetric: bool


@dataclass(frozen=True, slots=True)
class Span:
    """A run of bytes of a file: `offset` and `nbytes`."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class RankLayout:
    """Where everything of one rank lies.

    Attributes:
        sets: For every buffer set its tensors, in the order of the workload.
        private_bytes: Size of the private file.
        symmetric_bytes: Size of the symmetric file.
        private_guards: Guard bytes of the private file.
        symmetric_guards: Guard bytes of the symmetric file.
    """

    sets: tuple[tuple[TensorLayout, ...], ...]
    private_bytes: int
    symmetric_bytes: int
    private_guards: tuple[Span, ...]
    symmetric_guards: tuple[Span, ...]

    def tensor(self, set_index: int, name: str) -> TensorLayout:
        """The tensor `name` of one buffer set.

        Raises:
            KeyError: If the set has no such tensor.
        """
        for tensor in self.sets[set_index]:
            if tensor.name == name:
                return tensor
        raise KeyError(f"no tensor {name!r} in buffer set {set_index}")


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Where everything of a group lies, for one shape.

    Attributes:
        dimensions: Named dimensions of the shape, as the kernel sees them.
        sets: Number of buffer sets.
        window: The further symmetric memory of each rank, in the symmetric file.
        signal_words: 64-bit words of each rank's signal file.
        scratch_bytes: Private scratch of each rank; anonymous memory, so it has no place here.
        granularity: Every file is a multiple of this many bytes.
        ranks: One layout per rank.
        offered: True if each rank makes its own symmetric file and offers it to the others: NCCL passes
            on only what its own process made.
    """

    dimensions: dict[str, int]
    sets: int
    window: Span
    signal_words: int
    scratch_bytes: int
    granularity: int
    ranks: tuple[RankLayout, ...]
    offered: bool = False

    @classmethod
    def plan(
        cls,
        tensors: Sequence[TensorSpec],
        dimensions: Mapping[str, int],
        *,
        ranks: int,
        sets: int,
        signal_words: int = 0,
        window_bytes: int = 0,
        scratch_bytes: int = 0,
        address_shift: int = 0,
        granularity: int = _PAGE,
        offered: bool = False,
    ) -> Self:
        """Places every tensor of every buffer set on every rank.

        Args:
            tensors: The tensors of the workload at this shape.
            dimensions: Named dimensions, handed to the kernel.
            ranks: Number of ranks.
            sets: Number of buffer sets that the calls rotate over.
            signal_words: From the kernel's requirements.
            window_bytes: From the kernel's requirements.
            scratch_bytes: From the kernel's requirements.
            address_shift: Moves every tensor by this many bytes, a multiple of 256.
            granularity: What the size of a file must be a multiple of: whole pages.
            offered: Whether ranks make their own symmetric files.

        Raises:
            ValueError: If a number is out of range.
        """
        if ranks < 1 or sets < 1:
            raise ValueError(f"ranks and sets must be at least 1, not {ranks} and {sets}")
        if min(signal_words, window_bytes, scratch_bytes) < 0:
            raise ValueError("signal words, window bytes and scratch bytes cannot be negative")
        if address_shift < 0 or address_shift % _ALIGNMENT:
            raise ValueError(f"address_shift must be a multiple of 256, not {address_shift}")
        if granularity < 1 or granularity % _PAGE:
            raise ValueError(f"a granularity of {granularity} bytes is no number of pages")
        if not all(1 <= len(tensor.shape) <= 4 for tensor in tensors):
            raise ValueError("a tensor has 1 to 4 dimensions")
        planned: list[RankLayout] = []
        window = Span(0, window_bytes)
        for rank in range(ranks):
            private, symmetric = _Cursor(address_shift), _Cursor(address_shift)
            placed: list[tuple[TensorLayout, ...]] = []
            for _ in range(sets):
                row: list[TensorLayout] = []
                for spec in tensors:
                    shape = spec.local_shape(rank, ranks)
                    nbytes = math.prod(shape) * spec.dtype.itemsize
                    # Shards of a symmetric tensor differ in size. All ranks leave room for the
                    # largest, so that an offset means the same on every rank.
                    room = max(
                        math.prod(spec.local_shape(r, ranks)) * spec.dtype.itemsize
                        for r in range(ranks)
                    )
                    offset = (
                        symmetric.take(nbytes, room)
                        if spec.symmetric
                        else private.take(nbytes, nbytes)
                    )
                    row.append(
                        TensorLayout(
                            name=spec.name,
                            dtype=spec.dtype,
                            role=spec.role,
                            local_shape=shape,
                            origin=spec.origin(rank, ranks),
                            offset=offset,
                            nbytes=nbytes,
                            symmetric=spec.symmetric,
                        )
                    )
                placed.append(tuple(row))
            window = Span(symmetric.take(window_bytes, window_bytes), window_bytes)
            private_bytes, private_guards = private.finish(granularity)
            symmetric_bytes, symmetric_guards = symmetric.finish(granularity)
            planned.append(
                RankLayout(
                    tuple(placed), private_bytes, symmetric_bytes, private_guards, symmetric_guards
                )
            )
        return cls(
            dimensions=dict(dimensions),
            sets=sets,
            window=window,
            signal_words=signal_words,
            scratch_bytes=scratch_bytes,
            granularity=granularity,
            ranks=tuple(planned),
            offered=offered,
        )

    @property
    def gate_offset(self) -> int:
        """Where in a signal file the lines of the start gate begin, one for each rank."""
        return _round_up(self.signal_words * 8, _GATE_LINE_BYTES)

    @property
    def signal_bytes(self) -> int:
        """Size of each rank's signal file."""
        gate_bytes = max(len(self.ranks) * _GATE_LINE_BYTES, _GATE_BYTES)
        return _round_up(self.gate_offset + gate_bytes, self.granularity)

    @property
    def total_bytes(self) -> int:
        """Memory that the whole group needs, scratch included."""
        per_rank = self.signal_bytes + self.scratch_bytes
        return sum(r.private_bytes + r.symmetric_bytes + per_rank for r in self.ranks)

    def to_json(self) -> dict[str, Any]:
        """The layout as JSON data; `from_json` gives it back unchanged."""
        return {"version": _LAYOUT_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote.

        Raises:
            ValueError: If the data has another version.
        """
        if data.get("version") != _LAYOUT_VERSION:
            raise ValueError(f"a layout of version {data.get('version')!r} cannot be read")
        return cls(
            dimensions={str(k): int(v) for k, v in data["dimensions"].items()},
            sets=int(data["sets"]),
            window=Span(**data["window"]),
            signal_words=int(data["signal_words"]),
            scratch_bytes=int(data["scratch_bytes"]),
            granularity=int(data["granularity"]),
            ranks=tuple(_rank_from_json(rank) for rank in data["ranks"]),
            offered=bool(data["offered"]),
        )


def first_row(rows: int, rank: int, ranks: int) -> int:
    """First row of a rank when `rows` rows are shared out: floor(rank * rows / ranks)."""
    return rank * rows // ranks


class _Cursor:
    """Hands out places in one file and keeps what lies between them as guard."""

    def __init__(self, shift: int) -> None:
        self._shift = shift
        self._end = 0
        self._guards: list[Span] = []

    def take(self, nbytes: int, room: int) -> int:
        # A page boundary first, so that equal shapes get equal alignment; then the shift.
        start = _round_up(self._end + GUARD_BYTES, _PAGE) + self._shift
        self._guards.append(Span(self._end, start - self._end))
        self._end = start + nbytes
        if room > nbytes:
            self._guards.append(Span(self._end, room - nbytes))
            self._end += room - nbytes
        return start

    def finish(self, granularity: int) -> tuple[int, tuple[Span, ...]]:
        size = _round_up(self._end + GUARD_BYTES, granularity)
        self._guards.append(Span(self._end, size - self._end))
        return size, tuple(self._guards)


def _rank_from_json(data: Mapping[str, Any]) -> RankLayout:
    return RankLayout(
        sets=tuple(
            tuple(
                TensorLayout(
                    name=t["name"],
                    dtype=DType(t["dtype"]),
                    role=Role(t["role"]),
                    local_shape=tuple(t["local_shape"]),
                    origin=tuple(t["origin"]),
                    offset=t["offset"],
                    nbytes=t["nbytes"],
                    symmetric=t["symmetric"],
                )
                for t in row
            )
            for row in data["sets"]
        ),
        private_bytes=data["private_bytes"],
        symmetric_bytes=data["symmetric_bytes"],
        private_guards=tuple(Span(**g) for g in data["private_guards"]),
        symmetric_guards=tuple(Span(**g) for g in data["symmetric_guards"]),
    )


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
