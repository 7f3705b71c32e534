"""Measured rates of GPUs, kept from run to run for the same devices, limits of power and libraries.

Peak is the best vendor product with a margin, the floor below which a time is not believed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from kerneltui.model.limit import Ceilings
from kerneltui.targets.cuda.device import Gpus
from kerneltui.targets.cuda.packages import math_libraries
from kerneltui.targets.keeping import keep

__all__ = ["best_of", "read_ceilings", "stored_ceilings", "write_ceilings"]

_FORMAT = 3
_PEAK_MARGIN = 1.15  # a clock may be higher for a moment than while the rate was measured
_LATENCY_NS = 2_000.0  # where there is no peer to measure it with


class _Place(Protocol):
    """A target with GPUs and a folder for what it keeps."""

    cache: Path
    gpus: Gpus


def stored_ceilings(place: _Place, ranks: int, dtype: str) -> Path:
    """The file in which the rates of these GPUs are kept.

    Hosts of one kind differ: in the GPUs themselves, in what power they are allowed, and in the libraries
    whose products are the measure.
    """
    devices = [
        {**dict(place.gpus.describe(index).items()), **place.gpus.identity(index)}
        for index in range(ranks)
    ]
    text = json.dumps([_FORMAT, devices, dict(math_libraries()), ranks, dtype], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    return place.cache / "ceilings" / f"{key}.json"


def read_ceilings(file: Path) -> Ceilings | None:
    """The rates that were measured before, or None."""
    try:
        return Ceilings(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None  # not measured yet, or not readable: measured now


def write_ceilings(file: Path, ceilings: Ceilings) -> str:
    """Keeps rates; returns why that cannot be, or nothing."""
    return keep(file, json.dumps(asdict(ceilings), indent=1))


def best_of(ranks: int, rates: Sequence[Mapping[str, Any]]) -> Ceilings:
    """The ceilings of one rank from what each of them measured while all were busy."""
    best = {
        name: max(float(r[name]) for r in rates)
        for name in ("flops", "sustained_flops", "memory_bytes")
    }
    ways = {name: max(float(r["links"][name]) for r in rates) for name in rates[0]["links"]}
    return Ceilings(
        ranks=ranks,
        flops=best["flops"],
        peak_flops=_PEAK_MARGIN * best["flops"],
        memory_bytes=best["memory_bytes"],
        link_bytes=max(ways.values(), default=float("inf")),
        latency_ns=float(rates[0]["flag_ns"]) or _LATENCY_NS,
        sustained_flops=best["sustained_flops"],
        links=ways,
    )
