"""Compares search strategies on recorded spaces, without measuring anything.

    python benchmarks/search.py spaces/*.json.gz
    python benchmarks/search.py --seeds 100-119 --budget 40 --json spaces/convolution.json.gz

Reads Kernel Tuner caches and T4 results. A value is the optimum's time divided by the time of the
best configuration found after N distinct evaluations: 1 is the optimum.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

# Small matrices only: more threads cost more than they bring. Must precede numpy.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

from kerneltui.search.recorded import Recorded, RecordedError, read_recorded, simulate
from kerneltui.search.registry import DEFAULT_STRATEGY, STRATEGIES, make_strategy

CHECKPOINTS = (20, 40, 50, 100, 200)
GOOD = 0.95
BOOTSTRAP = 2000
Values = NDArray[np.float64]


def main(arguments: list[str] | None = None) -> int:
    """Runs the comparison and prints it; gives the exit code."""
    options = _parse(arguments)
    points = sorted({point for point in CHECKPOINTS if point < options.budget} | {options.budget})
    records: list[dict[str, Any]] = []
    curves: dict[str, list[Values]] = {word: [] for word in options.strategies}
    for path in options.paths:
        try:
            recorded = read_recorded(path)
        except RecordedError as error:
            print(f"search: {error}", file=sys.stderr)
            return 2
        for word in options.strategies:
            runs = _runs(recorded, word, options)
            curves[word].append(runs)
            records.append(_record(recorded.name, word, runs, points))
    if len(options.paths) > 1:
        for word, parts in curves.items():
            records.append(_record("mean of spaces", word, np.mean(parts, axis=0), points))
    if options.json:
        print(json.dumps(records, indent=1))
    else:
        _print_table(records, points, options)
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument(
        "--seeds", type=_seeds, default="20", help="how many, or a range such as 100-119"
    )
    parser.add_argument("--budget", type=_positive, default=200, help="evaluations (default 200)")
    parser.add_argument("--batch", type=_positive, default=5, help="proposals at a time")
    parser.add_argument(
        "--strategies",
        type=_strategies,
        default=f"{DEFAULT_STRATEGY},random",
        help="comma-separated; known: " + ", ".join(STRATEGIES),
    )
    parser.add_argument(
        "--noise", type=float, default=0.0, help="simulated error of the log time, such as 0.01"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1")
    return int(text)


def _seeds(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text} is neither a number nor a range such as 100-119")
    seeds = list(range(int(first), int(last) + 1)) if dash else list(range(int(first)))
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text} holds no seed")
    return seeds


def _strategies(text: str) -> list[str]:
    words = text.split(",")
    for word in words:
        if word not in STRATEGIES:
            raise argparse.ArgumentTypeError(
                f"unknown strategy {word}; use one of {', '.join(STRATEGIES)}"
            )
    return words


def _runs(recorded: Recorded, word: str, options: argparse.Namespace) -> Values:
    """Gives the curve of every seed; shape (seeds, budget)."""
    curves: list[list[float]] = []
    for seed in options.seeds:
        strategy = make_strategy(word, recorded.space, seed, (), options.budget)
        curves.append(
            simulate(
                recorded, strategy, options.budget, options.batch, noise=options.noise, seed=seed
            )
        )
    return np.array(curves)


def _record(space: str, word: str, runs: Values, points: list[int]) -> dict[str, Any]:
    after: dict[str, Any] = {}
    for point in points:
        values = runs[:, point - 1]
        low, high = _interval(values)
        after[str(point)] = {
            "median": float(np.median(values)),
            "mean": float(values.mean()),
            "mean_low": low,
            "mean_high": high,
        }
    good = float((runs[:, -1] >= GOOD).mean())
    return {"space": space, "strategy": word, "seeds": len(runs), "after": after, "good_runs": good}


def _interval(values: Values) -> tuple[float, float]:
    """Gives the 95 % bootstrap interval of the mean."""
    rng = np.random.default_rng(0)
    means = rng.choice(values, size=(BOOTSTRAP, len(values))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def _print_table(
    records: list[dict[str, Any]], points: list[int], options: argparse.Namespace
) -> None:
    print("optimum ÷ best found after N evaluations: median, mean [95 % interval of the mean]")
    print(
        f"{len(options.seeds)} seeds ({options.seeds[0]} to {options.seeds[-1]}), batches of "
        f"{options.batch}, noise {options.noise:g}; ≥{GOOD}: share of runs at the end"
    )
    width = max(len(record["space"]) for record in records)
    cells = "".join(f"{f'N = {point}':<27}" for point in points)
    print(f"\n{'space':<{width}}  {'strategy':<9} {cells}≥{GOOD}")
    for record in records:
        cells = "".join(
            f"{part['median']:.3f}, {part['mean']:.3f} "
            f"[{part['mean_low']:.3f}-{part['mean_high']:.3f}]".ljust(27)
            for part in record["after"].values()
        )
        print(
            f"{record['space']:<{width}}  {record['strategy']:<9} {cells}{record['good_runs']:.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
