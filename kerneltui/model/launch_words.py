"""Launches of a candidate in words: how grids fall onto a device. Anybody may have written the note."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, cast

__all__ = ["launch_lines", "launched_shapes"]


def launched_shapes(code: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Shapes with a line for each launch of a call, of the codegen record of a candidate."""
    shapes = [(str(part.get("shape")), launch_lines(part)) for part in _parts(code, "launches")]
    return [(shape, lines) for shape, lines in shapes if lines]


def launch_lines(part: Mapping[str, Any]) -> list[str]:
    """A line for each launch of a call on a shape, and one for what else it makes.

    Args:
        part: Of one shape.
    """
    lines = [text for kernel in _parts(part, "kernels") if (text := _launch(kernel))]
    more = _number(part, "more")
    if more:
        lines.append(f"and {more} more launches")
    others = part.get("others")
    if isinstance(others, dict) and others:
        known = cast("dict[Any, Any]", others)
        lines.append(
            "beside them " + ", ".join(f"{known[name]} {name}" for name in sorted(known, key=str))
        )
    return lines


def _launch(kernel: Mapping[str, Any]) -> str:
    grid, threads = _sides(kernel), _number(kernel, "threads")
    if not grid or threads is None:
        return ""
    count, cluster = _number(kernel, "count") or 1, _number(kernel, "cluster") or 1
    times = f" {count} times" if count > 1 else ""
    clusters = f" in clusters of {cluster}" if cluster > 1 else ""
    head = f"{kernel.get('name')}{times}: {_of(grid, 'CTA')} of {threads} threads{clusters}"
    return ", ".join([head, *_fits(kernel)])


def _fits(kernel: Mapping[str, Any]) -> Iterator[str]:
    dynamic, ctas = _number(kernel, "dynamic"), _number(kernel, "ctas")
    if dynamic:
        yield f"{dynamic} bytes of dynamic shared memory"
    if ctas is None:
        return
    limiter = kernel.get("limiter")
    yield f"{ctas} on an SM" + (f" by {limiter}" if limiter else "")
    waves, tail, places = (_number(kernel, name) for name in ("waves", "tail", "places"))
    if waves and places:
        yield _of(waves, "wave") + (f", the last with {tail} of {places}" if tail else "")


def _sides(kernel: Mapping[str, Any]) -> int:
    sides = kernel.get("grid")
    if not isinstance(sides, list) or not all(isinstance(s, int) for s in cast("list[Any]", sides)):
        return 0
    return prod(cast("list[int]", sides))


def _of(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _number(part: Mapping[str, Any], name: str) -> int | None:
    value = part.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _parts(part: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = part.get(name)
    if not isinstance(found, list):
        return []
    items = cast("list[Any]", found)
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, dict)]
