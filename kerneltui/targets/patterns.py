"""Guard canaries and poison: they tell whether a kernel wrote where it should, and only there.

All functions work on a writable buffer (an mmap or memoryview of bytes) and need no numpy and no
torch, so that the engine and the judge can both call them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from mmap import mmap

from kerneltui.targets.windows import DType, Span, TensorLayout

__all__ = ["Poison", "broken_guards", "canary", "poison", "poison_block", "write_guards"]

Buffer = mmap | memoryview | bytearray

_PLAUSIBLE_ELEMENTS = 4099  # prime, so that the repetition lines up with no row length
_CHUNK_BYTES = 1 << 20


class Poison(StrEnum):
    """What an output holds before a call."""

    NAN = "nan"
    """All bits set: a NaN in every float type, -1 in every integer type."""
    PLAUSIBLE = "plausible"
    """Finite values of order one: they look like a result and are none."""


def write_guards(buffer: Buffer, guards: Sequence[Span], key: int = 0) -> None:
    """Fills the guard bytes with the canary of `key`."""
    for guard in guards:
        buffer[guard.offset : guard.offset + guard.nbytes] = canary(guard, key)


def broken_guards(buffer: Buffer, guards: Sequence[Span], key: int = 0) -> tuple[Span, ...]:
    """The guards that no longer hold their canary, each cut to its first and last changed byte."""
    broken: list[Span] = []
    for guard in guards:
        found = bytes(buffer[guard.offset : guard.offset + guard.nbytes])
        expected = canary(guard, key)
        if found != expected:
            changed = [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]
            broken.append(Span(guard.offset + changed[0], changed[-1] - changed[0] + 1))
    return tuple(broken)


def poison(buffer: Buffer, tensor: TensorLayout, pattern: Poison, key: int = 0) -> None:
    """Overwrites a tensor in the file where it lies.

    Args:
        buffer: The private or symmetric file of the tensor, whole.
        tensor: Which bytes.
        pattern: What to write.
        key: Varies the plausible values, so that no two calls see the same ones.
    """
    if pattern is Poison.NAN:
        block = b"\xff" * min(_CHUNK_BYTES, tensor.nbytes)
    else:
        block = poison_block(tensor.dtype, key)
    end = tensor.offset + tensor.nbytes
    for start in range(tensor.offset, end, len(block) or 1):
        stop = min(start + len(block), end)
        buffer[start:stop] = block[: stop - start]


def canary(guard: Span, key: int = 0) -> bytes:
    """What the bytes of a guard hold."""
    # Depends on the place, so that a copy of one guard over another is seen too.
    word = (0x9E3779B97F4A7C15 * (guard.offset + 1) ^ 0xD1B54A32D192ED03 * (key + 1)) % 2**64
    block = word.to_bytes(8, "little")
    return (block * (guard.nbytes // 8 + 1))[: guard.nbytes]


@lru_cache(maxsize=16)
def poison_block(dtype: DType, key: int) -> bytes:
    """The plausible values of a key, to be repeated."""
    generator = random.Random(key)
    values = [generator.gauss(0.0, 1.0) for _ in range(_PLAUSIBLE_ELEMENTS)]
    if dtype is DType.BFLOAT16:  # the upper half of a float32
        packed = struct.pack(f"<{len(values)}f", *values)
        block = b"".join(packed[i + 2 : i + 4] for i in range(0, len(packed), 4))
    elif dtype in (DType.INT32, DType.INT64):
        code = "i" if dtype is DType.INT32 else "q"
        block = struct.pack(f"<{len(values)}{code}", *(round(100 * v) for v in values))
    else:
        code = {DType.FLOAT32: "f", DType.FLOAT64: "d", DType.FLOAT16: "e"}[dtype]
        block = struct.pack(f"<{len(values)}{code}", *values)
    return block * max(1, _CHUNK_BYTES // len(block))
