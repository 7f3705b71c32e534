"""What the driver for two GPUs has found, as tables and as a file."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from driver_kernel import Spec


def print_tables(specs: list[Spec], results: dict[str, Any], out: Path) -> None:
    """Prints what was verified and timed, and writes it to driver.json."""
    verified = verified_of(results)
    print_verified(verified)
    for r, value in results.get("timing_failed", []):
        print("  not timed:", r, value)
    timed = timed_of(results)
    print_timed(timed, next((s.text for s in specs if s.source.stem == "host_nccl"), None))
    found = {"verified": verified, "timed": timed, "trouble": results.get("trouble", [])}
    (out / "driver.json").write_text(json.dumps(found, indent=1))


def verified_of(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Checks, failures and the worst error of each kernel."""
    verified: dict[str, dict[str, Any]] = {}
    for r, (_, text, shape, case, error, worst) in results.get("verified", []):
        entry = verified.setdefault(text, {"checks": 0, "failures": [], "worst": 0.0})
        entry["checks"] += 1
        entry["worst"] = max(entry["worst"], worst)
        if error:
            entry["failures"].append({"rank": r, "shape": shape, "case": case, "error": error})
    return verified


def print_verified(verified: dict[str, dict[str, Any]]) -> None:
    """A line for each kernel, and its first failures."""
    print("\nverified (checks = shape x case x rank)")
    for text, entry in verified.items():
        right = entry["checks"] - len(entry["failures"])
        print(f"  {text}: {right}/{entry['checks']} worst {entry['worst']:.2e}")
        for failure in entry["failures"][:6]:
            place = f"rank {failure['rank']} {failure['shape']} case {failure['case']}"
            print(f"    {place}: {failure['error']}")


def timed_of(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Medians, samples and errors of each shape, by rank 0; both ranks have the same samples."""
    return [
        {
            "shape": shape,
            "ms": {name: statistics.median(values) for name, values in times.items()},
            "samples": times,
            "errors": errors,
            "calls": plan,
        }
        for r, (shape, times, errors, plan) in results.get("timed", [])
        if r == 0
    ]


def print_timed(timed: list[dict[str, Any]], sequence: str | None) -> None:
    """A table for each shape, and means over them; `sequence` is the kernel that does both in turn."""
    shares: dict[str, list[float]] = {}
    gains: dict[str, list[float]] = {}
    for entry in timed:
        ms = entry["ms"]
        bound = max(ms["gemm alone"], ms["all-gather"])
        print(f"\n{entry['shape']}: bound {bound:.4f} ms")
        for name, value in ms.items():
            spread = (max(entry["samples"][name]) - min(entry["samples"][name])) / value
            text = f"  {value:9.4f} ms  spread {spread:5.1%}  bound/t {bound / value:5.3f}"
            if sequence in ms:
                text += f"  seq/t {ms[sequence] / value:5.3f}"
            if name in entry["errors"]:
                text += f"  err {entry['errors'][name]:.1e}"
                shares.setdefault(name, []).append(bound / value)
                if sequence in ms:
                    gains.setdefault(name, []).append(ms[sequence] / value)
            print(text, " ", name)
    print("\ngeomean over the shapes timed: share of bound, gain over the sequence")
    for name, values in shares.items():
        gain = statistics.geometric_mean(gains[name]) if name in gains else math.nan
        share = statistics.geometric_mean(values)
        print(f"  {share:.3f}  {gain:.3f}  ({len(values)} shapes)  {name}")
