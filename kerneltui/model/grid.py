"""A grid of problem sizes: every combination of values, or an even sample of them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from math import prod

__all__ = ["MOST_COMBINATIONS", "combinations", "sampled"]

MOST_COMBINATIONS = 20_000


def combinations(values: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Returns every combination, the last dimension changing fastest."""
    names = list(values)
    return [dict(zip(names, row, strict=True)) for row in itertools.product(*values.values())]


def sampled(rows: Sequence[dict[str, int]], count: int) -> list[dict[str, int]]:
    """Returns so many of the combinations, spread evenly over their work, least work first.

    Work is the product of the dimensions; a band is what lies between two powers of two. One combination
    is taken of each band in turn until there are enough. Within a band the order is that of a digest of
    the values: without any pattern, and the same everywhere and always.
    """
    bands: dict[int, list[dict[str, int]]] = {}
    for row in sorted(rows, key=_digest):
        bands.setdefault(_work(row).bit_length(), []).append(row)
    chosen: list[dict[str, int]] = []
    for turn in itertools.count():
        fresh = [bands[band][turn] for band in sorted(bands) if turn < len(bands[band])]
        if not fresh:
            break
        if len(chosen) + len(fresh) > count:
            fresh = _spread(fresh, count - len(chosen))
        chosen += fresh
        if len(chosen) >= count:
            break
    return sorted(chosen, key=lambda row: (_work(row), *row.values()))


def _spread(rows: Sequence[dict[str, int]], count: int) -> list[dict[str, int]]:
    """So many of the rows, at even distances."""
    return [rows[(2 * i + 1) * len(rows) // (2 * count)] for i in range(count)]


def _work(row: Mapping[str, int]) -> int:
    return prod(row.values())


def _digest(row: Mapping[str, int]) -> bytes:
    text = ",".join(f"{name}={value}" for name, value in sorted(row.items()))
    return hashlib.sha256(text.encode()).digest()
