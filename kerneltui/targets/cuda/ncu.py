"""Nsight Compute from the command line: which counters, and how its table is read.

Names of counters are those of Nsight Compute's raw page, of the sections in `SECTIONS`. Clocks are left
as they are (`--clock-control none`).
"""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerneltui.targets.cuda.code_record import short_name
from kerneltui.targets.cuda.packages import find_toolkit
from kerneltui.targets.errors import TargetError

__all__ = ["SECTIONS", "find_ncu", "ncu_arguments", "read_counters"]

SECTIONS = (
    "SpeedOfLight",
    "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis",
    "LaunchStats",
    "Occupancy",
    "WarpStateStats",
)
MOST_LAUNCHES = 12
_VENDOR = "gemm|nvjet|cutlass|xmma"
_DENIED = re.compile(r"ERR_NVGPUCTRPERM|permission", re.IGNORECASE)
_STALL = re.compile(r"^smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio$")
_TENSOR = re.compile(r"pipe_tensor(?!.*(?:imma|dmma|int|fp64)).*pct_of_peak_sustained_active$")
_MOST_STALLS = 4


@dataclass(frozen=True, slots=True)
class _Counter:
    """A counter: its name on screen, its unit, its name in the profiler, and by what to divide."""

    label: str
    unit: str
    name: str
    divide: float = 1.0


_COUNTERS = (
    _Counter("time", "us", "gpu__time_duration.sum", 1e3),
    _Counter("SM throughput", "%", "sm__throughput.avg.pct_of_peak_sustained_elapsed"),
    _Counter("IPC", "", "sm__inst_executed.avg.per_cycle_active"),
    _Counter("L2 hit", "%", "lts__t_sector_hit_rate.pct"),
    _Counter("L1 hit", "%", "l1tex__t_sector_hit_rate.pct"),
    _Counter(
        "memory throughput", "%", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
    ),
    _Counter("DRAM throughput", "%", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"),
    _Counter("DRAM rate", "GB/s", "dram__bytes.sum.per_second", 1e9),
    _Counter("achieved occupancy", "%", "sm__warps_active.avg.pct_of_peak_sustained_active"),
    _Counter("possible occupancy", "%", "sm__maximum_warps_per_active_cycle_pct"),
    _Counter("grid", "CTAs", "launch__grid_size"),
    _Counter("block", "threads", "launch__block_size"),
    _Counter("waves", "", "launch__waves_per_multiprocessor"),
    _Counter("registers", "", "launch__registers_per_thread"),
    _Counter("dynamic smem", "B", "launch__shared_mem_per_block_dynamic"),
)


def find_ncu() -> Path:
    """Finds the profiler: in PATH, or in the toolkit.

    Raises:
        TargetError: There is none.
    """
    found = shutil.which("ncu")
    if found is None:
        try:
            found = shutil.which("ncu", path=str(find_toolkit().root / "bin"))
        except TargetError:
            found = None
    if found is None:
        raise TargetError("no ncu: install Nsight Compute (part of the CUDA toolkit)")
    return Path(found)


def ncu_arguments(ncu: Path, kernels: Sequence[str], table: Path) -> list[str]:
    """The command before that of the program.

    Args:
        ncu: The profiler.
        kernels: Names of the kernels to look at, without arguments; those of vendor libraries if empty.
        table: The file that it writes.
    """
    names = "|".join(re.escape(name) for name in dict.fromkeys(kernels))
    pattern = rf"\b({names})\b" if names else _VENDOR
    sections = [word for section in SECTIONS for word in ("--section", section)]
    return [
        str(ncu),
        *("--clock-control", "none", "--target-processes", "all", "--replay-mode", "kernel"),
        *("--kernel-name", f"regex:{pattern}", "--launch-count", str(MOST_LAUNCHES)),
        *sections,
        *("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(table)),
    ]


def read_counters(text: str) -> list[dict[str, Any]]:
    """The kernels of a table with what was counted of each; the last launch of a name counts.

    Raises:
        TargetError: Nothing was counted; the text says why.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in _rows(text):
        name = short_name(row["Kernel Name"])
        launches = found.get(name, {"launches": 0})["launches"] + 1
        found[name] = {"name": name, "launches": launches, "counters": list(_counters(row))}
    if found:
        return list(found.values())
    if _DENIED.search(text):
        raise TargetError(
            "the driver does not permit counters to this user; see kerneltui doctor (ncu)"
        )
    said = [line.removeprefix("==ERROR== ") for line in text.splitlines() if "==ERROR==" in line]
    raise TargetError(said[0] if said else "the profiler saw no kernel of the candidate")


def _rows(text: str) -> Iterator[dict[str, str]]:
    lines = [line for line in text.splitlines() if line.startswith('"')]
    for row in csv.DictReader(lines):
        if row.get("ID", "").isdigit() and row.get(
            "Kernel Name"
        ):  # the line of units has no number
            yield {name: value for name, value in row.items() if name and value is not None}


def _counters(row: dict[str, str]) -> Iterator[list[Any]]:
    """What is shown of a launch: name, value, unit."""
    for counter in _COUNTERS:
        value = _number(row.get(counter.name))
        if value is not None:
            yield [counter.label, _short(value / counter.divide), counter.unit]
    tensor = [v for name in row if _TENSOR.search(name) and (v := _number(row[name])) is not None]
    if tensor:
        yield ["tensor pipe", _short(max(tensor)), "%"]
    stalls = {
        match[1].replace("_", " "): value
        for name in row
        if (match := _STALL.match(name)) and (value := _number(row[name])) is not None
    }
    for name in sorted(stalls, key=lambda name: -stalls[name])[:_MOST_STALLS]:
        yield [f"stall {name}", _short(stalls[name]), "warps/issue"]


def _number(text: str | None) -> float | None:
    try:
        return float(text.replace(",", "")) if text else None
    except ValueError:
        return None  # "n/a" where a chip does not have it


def _short(value: float) -> float:
    return float(f"{value:.5g}")
