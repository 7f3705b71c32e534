"""The bound of a shape: the least time that the measured ceilings allow.

T = max(flops / R, memory bytes / H, link bytes / B), the roofline of S. Williams et al. (CACM 52, 2009)
with the link as a third roof.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from kerneltui.model.measurement import BoundKind
from kerneltui.model.workload import Limit, Shape

__all__ = ["Bound", "Ceilings", "bound", "reachable_ns"]


def _no_links() -> Mapping[str, float]:
    return {}


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured rates of one rank while all ranks are busy.

    `flops` is the best rate of a verified vendor GEMM, `peak_flops` that of a loop of register-only
    multiply-adds (nothing honest is faster), both per second; `memory_bytes` and `link_bytes` per
    second; `latency_ns` the one-way time of a flag. `sustained_flops` is the rate of a vendor GEMM that
    runs without a pause, 0 where that was not measured. `links` has the bytes per second of each way to a
    peer that was measured, in words; `link_bytes` is the best of them.
    """

    ranks: int
    flops: float
    peak_flops: float
    memory_bytes: float
    link_bytes: float
    latency_ns: float
    sustained_flops: float = 0.0
    links: Mapping[str, float] = field(default_factory=_no_links)

    def words(self) -> dict[str, str]:
        """The rates as text, each with its unit."""
        found = {
            "GEMM": f"{self.flops / 1e12:.1f} TFLOP/s in bursts",
            "memory": f"{self.memory_bytes / 1e9:.0f} GB/s read and written",
        }
        if self.sustained_flops:
            found["GEMM"] += f", {self.sustained_flops / 1e12:.1f} without a pause"
        if self.ranks > 1:
            for name, rate in (self.links or {"link": self.link_bytes}).items():
                found[f"to a peer, {name}"] = f"{rate / 1e9:.0f} GB/s"
            found["flag to a peer"] = f"{self.latency_ns / 1e3:.2f} us"
        return found


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound and the floor of a shape in nanoseconds."""

    time_ns: int
    kind: BoundKind
    floor_ns: int


def bound(limit: Limit, shape: Shape, ceilings: Ceilings) -> Bound:
    """Evaluates the limit of a workload for a shape against measured ceilings."""
    flops = limit.flops.number(shape.values)
    parts = {
        BoundKind.ARITHMETIC: flops / ceilings.flops,
        BoundKind.MEMORY: limit.memory_bytes.number(shape.values) / ceilings.memory_bytes,
        BoundKind.LINK: limit.link_bytes.number(shape.values) / ceilings.link_bytes,
    }
    kind = max(parts, key=lambda part: parts[part])
    return Bound(
        time_ns=round(parts[kind] * 1e9),
        kind=kind,
        floor_ns=round(flops / ceilings.peak_flops * 1e9),
    )


def reachable_ns(limit: Limit, shape: Shape, ceilings: Ceilings, multiprocessors: int) -> int:
    """The bound with the wave tail, in nanoseconds; 0 where nobody knows the tiles or there is no GPU.

    Work falls into tiles, one to an SM at a time, so the last wave takes as long as a full one. What
    the last wave sends to the peers, and the flag behind it, can hide under nothing. A kernel with
    smaller tiles at its end, or with split ones, can do better; one without hardly can.
    """
    if limit.tiles is None or multiprocessors < 1:
        return 0
    tiles = max(1.0, limit.tiles.number(shape.values))
    waves = math.ceil(tiles / multiprocessors)
    link = limit.link_bytes.number(shape.values)
    arithmetic = limit.flops.number(shape.values) / ceilings.flops
    arithmetic *= waves * multiprocessors / tiles
    last = tiles - (waves - 1) * multiprocessors
    tail = link * last / tiles / ceilings.link_bytes + (ceilings.latency_ns / 1e9 if link else 0.0)
    memory = limit.memory_bytes.number(shape.values) / ceilings.memory_bytes
    return round(max(arithmetic + tail, memory, link / ceilings.link_bytes) * 1e9)
