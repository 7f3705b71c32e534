"""Runs kernel files of `gemm_allgather` on two GPUs, in two processes, without engine, judge or harness.

    python3 tests/gpu/kernel_driver.py --out DIR [--verify] [--time] [--budget SECONDS]
        kernels/gemm_allgather/host_nccl.cu kernels/gemm_allgather/lsa_fused_sm90.cu@STAGES=4,C_BOXES=2

A kernel may be followed by `@NAME=VALUE,...`: tunables, compile-time (`#define`) or run-time. Every kernel
is compiled, verified (odd and large shapes, fresh inputs, poisoned outputs, exact on 0/1 inputs, a late
rank) and timed against its competitors in turn. A table comes last; numbers go to DIR/driver.json.

It needs torch with CUDA, nvcc, two GPUs that reach each other. A call that hangs for ten seconds ends
both processes; the kernel is left out and the rest goes on.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from driver_group import run_group
from driver_kernel import ARCHITECTURE, ROOT, Shape, Spec, build_all, parse_shapes, parse_spec
from driver_problem import SETS
from driver_tables import print_tables

ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
ATTEMPTS = 6
"""Groups of processes at most: each that ends in trouble leaves one kernel out of the next."""

VERIFY_SHAPES: list[Shape] = [
    (256, 256, 64),
    (512, 512, 512),
    (1000, 1000, 1000),
    (1024, 768, 320),
    (3000, 2056, 1048),
    (257, 136, 72),
    (130, 8, 8),
    (2, 24, 40),
    (1, 64, 64),
    (129, 67, 33),
    (4096, 4096, 4096),
    (8192, 8192, 2048),
]
TIME_SHAPES: list[Shape] = [
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 8192, 4096),
    (16384, 16384, 16384),
    (8192, 28672, 8192),
]


def arguments() -> argparse.ArgumentParser:
    """What the driver can be told."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="+")
    parser.add_argument(
        "--diagnostic", action="append", default=[], help="a kernel that is only timed"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--build", type=Path, default=ROOT / "build/driver")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--verify-shapes", help="M,N,K;... instead of the usual ones")
    parser.add_argument("--sets", type=int, default=SETS, help="buffer sets of the verification")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--time-shapes", help="M,N,K;... instead of the five")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-ms", type=float, default=20.0)
    parser.add_argument("--max-calls", type=int, default=100, help="of a batch")
    parser.add_argument("--min-calls", type=int, default=3, help="of a batch")
    parser.add_argument(
        "--before",
        choices=("self", "gemm", "gather", "none"),
        default="self",
        help="a batch: one call",
    )
    parser.add_argument("--pause-ms", type=float, default=80.0, help="before a batch")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for everything")
    parser.add_argument("--arch", default=ARCHITECTURE)
    return parser


def main() -> int:
    """Builds, verifies, times."""
    options = arguments().parse_args()
    deadline = time.monotonic() + options.budget
    os.environ.update(ENVIRONMENT)
    options.out.mkdir(parents=True, exist_ok=True)
    options.build.mkdir(parents=True, exist_ok=True)
    specs = [parse_spec(text) for text in [*options.kernels, *options.diagnostic]]
    helper = parse_spec(str(Path(__file__).with_suffix(".cu")))
    started = time.monotonic()
    threads = max(1, min(24, (os.cpu_count() or 2) - 2))
    count = build_all([helper, *specs], options.build, options.arch, threads=threads)
    for spec in (helper, *specs):
        print_build(spec)
    print(f"built {count} libraries in {time.monotonic() - started:.1f} s")
    specs = [s for s in specs if s.library]
    if options.build_only or not helper.library:
        return 0 if helper.library else 1
    results = run(options, specs, helper, deadline)
    print_tables(specs, results, options.out)
    return 1 if results.get("trouble") else 0


def print_build(spec: Spec) -> None:
    """What nvcc said of a kernel that somebody should know."""
    for line in spec.build_log.splitlines():
        told = re.search(r"error|C75|warning|spill (stores|loads)", line)
        if told and " 0 bytes spill" not in line:
            print(f"{spec.text}: {line}")


def run(
    options: argparse.Namespace, specs: list[Spec], helper: Spec, deadline: float
) -> dict[str, Any]:
    """Verifies and times, again without the kernel that a group came into trouble with."""
    results: dict[str, Any] = {}
    remaining = specs
    verify_shapes = parse_shapes(options.verify_shapes) if options.verify_shapes else VERIFY_SHAPES
    time_shapes = parse_shapes(options.time_shapes) if options.time_shapes else TIME_SHAPES
    phases = [name for name in ("verify", "time") if getattr(options, name)]
    for _ in range(ATTEMPTS):
        if not phases or not remaining:
            break
        job: dict[str, Any] = {
            "helper": helper.library,
            "specs": remaining,
            "diagnostic": options.diagnostic,
            "verify": verify_shapes if "verify" in phases else [],
            "time": time_shapes if "time" in phases else [],
            "sets": options.sets,
            "rounds": options.rounds,
            "batch_ms": options.batch_ms,
            "max_calls": options.max_calls,
            "min_calls": options.min_calls,
            "before": options.before,
            "pause_s": options.pause_ms / 1e3,
        }
        trouble = run_group(job, results, deadline)
        if not trouble:
            break
        print("TROUBLE:", trouble)
        results.setdefault("trouble", []).append(trouble)
        if trouble == "out of time":
            break
        guilty = guilty_of(trouble, remaining)
        if guilty is None:
            break
        remaining = [s for s in remaining if s is not guilty]
        done = {shape for r, (shape, *_) in results.get("timed", []) if r == 0}
        if done or re.search("[ ']time ", trouble.split("\n")[0]):
            phases = ["time"]
        time_shapes = [s for s in time_shapes if s not in done]
    return results


def guilty_of(trouble: str, specs: list[Spec]) -> Spec | None:
    """The kernel that the first line of a trouble names; the longest where one's text holds another's."""
    named = [s for s in specs if s.text in trouble.split("\n")[0]]
    return max(named, key=lambda s: len(s.text), default=None)


if __name__ == "__main__":
    sys.exit(main())
