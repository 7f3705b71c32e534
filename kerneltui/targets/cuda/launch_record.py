"""Launches of a call as plain data for the record of an evaluation: CTAs on an SM, limiter, waves, tail.

They come from a rank in which a kernel runs, which could have written anything there: what cannot be is
refused, and nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, cast

from kerneltui.targets.cuda.code_record import short_name
from kerneltui.targets.cuda.codegen import demangle
from kerneltui.targets.cuda.occupancy import limits_of, occupancy, waves
from kerneltui.targets.errors import TargetError

__all__ = ["launch_record"]

_MOST_LAUNCHES = 16
_LONGEST_SYMBOL = 4096
_LARGEST = 1 << 40


def launch_record(answer: Mapping[str, Any], arch: str, multiprocessors: int) -> dict[str, Any]:
    """What a rank told of the launches of a call.

    Args:
        answer: Of `read_launches`.
        arch: Such as "sm_90a".
        multiprocessors: SMs of the device.

    Raises:
        TargetError: It cannot be.
    """
    try:
        launches = cast("Sequence[Mapping[str, Any]]", answer["launches"])
        rows = [_row(launch, arch, multiprocessors) for launch in launches[:_MOST_LAUNCHES]]
        others = {str(name)[:40]: _whole(count) for name, count in answer["others"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TargetError(f"a rank told of launches that cannot be: {error}") from error
    return {
        "kernels": rows,
        "others": others,
        "more": max(0, len(launches) - _MOST_LAUNCHES),
    }


def _row(launch: Mapping[str, Any], arch: str, multiprocessors: int) -> dict[str, Any]:
    grid, block = _sides(launch["grid"]), _sides(launch["block"])
    threads, cluster = prod(block), _whole(launch["cluster"])
    dynamic, static = _whole(launch["dynamic"]), _whole(launch["static"])
    row: dict[str, Any] = {
        "name": short_name(demangle(str(launch["symbol"])[:_LONGEST_SYMBOL])),
        "grid": grid,
        "block": block,
        "threads": threads,
        "dynamic": dynamic,
        "static": static,
        "registers": _whole(launch["registers"]),
        "cluster": cluster,
        "count": _whole(launch["count"]),
    }
    limits = limits_of(arch)
    ctas = _whole(launch["ctas"])
    if limits is not None:
        fits = occupancy(
            limits,
            threads=threads,
            registers=row["registers"],
            shared=static + dynamic,
            cluster=cluster,
        )
        # The driver knows more of its device, such as how the first-level cache and this share a memory.
        row["limiter"] = fits.limiter if fits.ctas == ctas else "the driver"
        row["warps"] = round(ctas * -(-threads // 32) * 32 / limits.threads, 3)
    places = _whole(launch["clusters"]) * cluster or ctas * multiprocessors
    row["ctas"] = ctas
    if places and prod(grid):
        fall = waves(prod(grid), places)
        row |= {
            "places": places,
            "waves": fall.full + (fall.tail > 0),
            "tail": fall.tail,
            "efficiency": round(fall.efficiency, 3),
        }
    return row


def _sides(value: Any) -> list[int]:
    sides = [_whole(side) for side in value]
    if len(sides) != 3 or not all(sides):
        raise ValueError(f"sides of {sides}")
    return sides


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{value!r} is no count")
    return value
