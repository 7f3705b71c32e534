"""Runs kernel files of `gemm` on one GPU, without engine, judge or harness.

    python3 tests/gpu/gemm_driver.py --out DIR [--verify] [--time] [--sweep]
        kernels/gemm/gemm_sm90.cu kernels/gemm/gemm_sm90.cu@STAGES=4,C_BOXES=2

Kernels are named as for `kernel_driver.py`. `--verify` compares with a product in float64 or float32, on
normal values and exactly on 0/1 values, outputs poisoned; in bfloat16, or in float16 with `--dtype`.
`--time` and `--sweep` time batches of calls in a CUDA graph, over buffer sets that are more than four times
the L2 cache where 64 sets suffice, beside torch.matmul in the same form. `--sweep` tries the tunables TILE,
SLICES, PARTS and SHARE of the first kernel. Numbers go to DIR/gemm.json.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from driver_checks import relative_error
from driver_kernel import (
    ARCHITECTURE,
    ROOT,
    DriverFault,
    Shape,
    Spec,
    build_all,
    parse_shapes,
    parse_spec,
)
from gemm_problem import DTYPES, Loaded, Problem
from gemm_shapes import (
    SPACE_SHAPES,
    TIME_SHAPES,
    VERIFY_SHAPES,
    bound_us,
    candidates,
    grid_shapes,
)

from kerneltui.targets.windows import DType

HOLD_CYCLES = 2_000_000
"""A millisecond before each sample, in which the clock rises and everything is enqueued."""
NEAR = {DType.FLOAT16: 5e-4, DType.BFLOAT16: 4e-3}
"""What a right product may be off, as a share of the RMS: its last digit."""


def verify(torch: Any, specs: list[Spec], shapes: list[Shape], dtype: DType) -> list[str]:
    """Every kernel on every shape; returns what is wrong."""
    wrong: list[str] = []
    for shape in shapes:
        problem = Problem(torch, shape, 2, dtype)
        small = shape[0] * shape[1] * shape[2] <= 1 << 33
        wide = torch.float64 if small else torch.float32
        for integers in (True, False):
            problem.fill(integers)
            references = [
                (a.to(wide) @ b.to(wide)).float() for a, b in zip(problem.a, problem.b, strict=True)
            ]
            for spec in specs:
                for c in problem.c:
                    c.fill_(float("nan"))
                try:
                    kernel = Loaded(torch, problem, spec, {})
                    kernel.call(5)
                    kernel.close()
                except DriverFault as fault:
                    wrong.append(f"{spec.label} {shape}: {fault}")
                    continue
                for c, reference in zip(problem.c, references, strict=True):
                    if integers and not torch.equal(c, reference.to(c.dtype)):
                        bad = (c != reference.to(c.dtype)).nonzero()
                        wrong.append(
                            f"{spec.label} {shape}: {len(bad)} wrong, first {bad[0].tolist()}"
                        )
                    elif not relative_error(torch, c, reference) < NEAR[dtype]:
                        wrong.append(f"{spec.label} {shape}: far from the reference")
    return wrong


def verify_space(torch: Any, spec: Spec, shapes: list[Shape], dtype: DType) -> list[str]:
    """Every value of the tile tunables on a few shapes, exactly on 0/1 values, twice the same bits."""
    wrong: list[str] = []
    count = 0
    for shape in shapes:
        problem = Problem(torch, shape, 1, dtype)
        exact = Problem(torch, shape, 1, dtype)
        exact.fill(True)
        reference = (exact.a[0].double() @ exact.b[0].double()).to(exact.c[0].dtype)
        normal = problem.a[0].double() @ problem.b[0].double()
        for values in candidates(shape):
            count += 1
            try:
                found = []
                for case in (exact, problem, problem):
                    case.c[0].fill_(float("nan"))
                    kernel = Loaded(torch, case, spec, values)
                    kernel.call(2)
                    kernel.close()
                    found.append(case.c[0].clone())
            except DriverFault as fault:
                wrong.append(f"{spec.label} {shape} {values}: {fault}")
                continue
            same = torch.equal(found[1], found[2])
            near = relative_error(torch, found[1], normal) < NEAR[dtype]
            if not (torch.equal(found[0], reference) and same and near):
                wrong.append(f"{spec.label} {shape} {values}: same {same}, near {near}")
    print(f"space: {count} configurations, {len(wrong)} wrong")
    return wrong


class Batch:
    """Calls in a CUDA graph."""

    def __init__(self, torch: Any, enqueue: Any, sets: int, sample_ms: float) -> None:
        """Captures as many calls as take `sample_ms`, at least all sets."""
        self.torch = torch
        self.stream = torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            enqueue(2)
            one = self._time(lambda: enqueue(3)) / 3
            self.calls = max(3, min(200, max(sets, int(sample_ms / one))))
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="relaxed"):
                enqueue(self.calls)
            self.graph.replay()
        torch.cuda.synchronize()

    def _time(self, enqueue: Any) -> float:
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda._sleep(HOLD_CYCLES)
        begin.record(self.stream)
        enqueue()
        end.record(self.stream)
        self.stream.synchronize()
        return begin.elapsed_time(end)

    def sample(self) -> float:
        """Microseconds of one call."""
        with self.torch.cuda.stream(self.stream):
            return self._time(self.graph.replay) / self.calls * 1e3


def sets_of(torch: Any, shape: Shape) -> int:
    """Buffer sets for a cold L2 cache."""
    m, n, k = shape
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return max(3, min(64, -(-4 * cache // (2 * (m * k + k * n + m * n)))))


def torch_call(torch: Any, problem: Problem) -> Any:
    """torch.matmul over the sets in turn."""

    def enqueue(count: int) -> None:
        for i in range(count):
            j = i % problem.sets
            torch.matmul(problem.a[j], problem.b[j], out=problem.c[j])

    return enqueue


def time_shape(
    torch: Any,
    shape: Shape,
    dtype: DType,
    runs: list[tuple[Spec, dict[str, int]]],
    *,
    rounds: int,
    sample_ms: float,
) -> dict[str, Any]:
    """Times torch.matmul and kernels in turn, in an order of its own each round; medians in us."""
    problem = Problem(torch, shape, sets_of(torch, shape), dtype)
    batches = {"torch": Batch(torch, torch_call(torch, problem), problem.sets, sample_ms)}
    kernels: list[Loaded] = []
    faults: dict[str, str] = {}
    for spec, values in runs:
        name = " ".join([spec.label, *(f"{k}={v}" for k, v in values.items())])
        try:
            kernels.append(Loaded(torch, problem, spec, values))
            batches[name] = Batch(torch, kernels[-1].call, problem.sets, sample_ms)
        except (DriverFault, RuntimeError) as fault:
            faults[name] = str(fault).split("\n")[0]
    times: dict[str, list[float]] = {name: [] for name in batches}
    for turn in range(rounds):
        order = list(batches) + (["torch"] if len(batches) >= 12 else [])
        random.Random(turn).shuffle(order)
        for name in order:
            if len(batches) < 12:
                time.sleep(
                    0.01
                )  # lets clocks and power settle, so that none pays for its predecessor
            times[name].append(batches[name].sample())
    for kernel in kernels:
        kernel.close()
    return {
        "shape": shape,
        "us": {name: statistics.median(values) for name, values in times.items()},
        "faults": faults,
    }


def _short(name: str) -> str:
    return "".join(c for c in name.partition(" ")[2] if c.isdigit() or c == " ")


def report(results: list[dict[str, Any]], labels: list[str]) -> None:
    """Prints a line per shape: torch, and the ratio of torch to each kernel; or to the best ones."""
    print("shape".ljust(20), "bound us  torch us ", " ".join(labels))
    for entry in results:
        us, bound = dict(entry["us"]), bound_us(entry["shape"])
        torch_us = us.pop("torch", float("nan"))
        head = f"{'x'.join(map(str, entry['shape'])):20} {bound:8.1f} {torch_us:9.2f} "
        if labels:
            cells = [f"{us[x]:9.2f} {torch_us / us[x]:5.3f} {bound / us[x]:4.2f}" if x in us else "-"
                     for x in labels]  # fmt: skip
            print(head, " | ".join(cells))
        else:
            best = sorted(us.items(), key=lambda item: item[1])[:3]
            print(head, "; ".join(f"{v:.2f} ({torch_us / v:.3f}) {_short(k)}" for k, v in best))
        for name, text in list(entry["faults"].items())[:3]:
            print("   not timed:", name, text)


def arguments() -> argparse.ArgumentParser:
    """What the driver can be told."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--build", type=Path, default=ROOT / "build/driver")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--arch", default=ARCHITECTURE)
    parser.add_argument("--dtype", type=DType, choices=DTYPES, default=DType.BFLOAT16)
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--shapes", help="M,N,K;... to time")
    parser.add_argument("--grid", type=int, help="so many shapes of the grid instead")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sample-ms", type=float, default=1.5)
    parser.add_argument("--budget", type=float, default=90.0, help="seconds for everything")
    return parser


def main() -> int:
    """Builds, verifies, times."""
    options = arguments().parse_args()
    deadline = time.monotonic() + options.budget
    options.out.mkdir(parents=True, exist_ok=True)
    options.build.mkdir(parents=True, exist_ok=True)
    specs = [parse_spec(text) for text in options.kernels]
    threads = 2 if options.build_only else 14
    build_all(specs, options.build, options.arch, options.dtype, threads=threads)
    for spec in specs:
        if not spec.library:
            print(spec.label, spec.build_log[-2000:])
    specs = [spec for spec in specs if spec.library]
    if options.build_only or not specs:
        return 0 if specs else 1
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    found: dict[str, Any] = {"dtype": options.dtype, "wrong": [], "time": [], "sweep": []}
    started = time.monotonic()
    if options.verify:
        found["wrong"] = verify(torch, specs, VERIFY_SHAPES, options.dtype)
        found["wrong"] += verify_space(torch, specs[0], SPACE_SHAPES, options.dtype)
        count = len(VERIFY_SHAPES) * len(specs)
        print(
            f"verified {count} in {time.monotonic() - started:.1f} s, {len(found['wrong'])} wrong"
        )
        print("\n".join(found["wrong"][:12]))
        bad = {text.split(" ")[0] for text in found["wrong"]}
        specs = [spec for spec in specs if spec.label not in bad]
    for kind in ("time", "sweep"):
        if getattr(options, kind) and specs:
            time_shapes(torch, kind, specs, options, found=found, deadline=deadline)
            print(f"{kind}: {time.monotonic() - started:.1f} s since the start")
    return 1 if found["wrong"] else 0


def shapes_of(options: argparse.Namespace) -> list[Shape]:
    """The shapes to time: named ones, some of the grid, or the usual ones."""
    if options.shapes:
        return parse_shapes(options.shapes)
    if options.grid:
        shapes = grid_shapes(options.grid)
        random.Random(1).shuffle(shapes)  # so that those of a run that is cut short are a fair part
        return shapes
    return TIME_SHAPES


def time_shapes(
    torch: Any,
    kind: str,
    specs: list[Spec],
    options: argparse.Namespace,
    *,
    found: dict[str, Any],
    deadline: float,
) -> None:
    """Times all kernels, or with "sweep" the first one's candidates, on every shape; writes gemm.json."""
    rounds = options.rounds if kind == "time" else 3
    for shape in shapes_of(options):
        if time.monotonic() > deadline:
            print("out of time before", shape)
            break
        runs: list[tuple[Spec, dict[str, int]]] = [(spec, {}) for spec in specs]
        if kind == "sweep":
            runs = [(specs[0], values) for values in candidates(shape)]
        found[kind].append(
            time_shape(
                torch, shape, options.dtype, runs, rounds=rounds, sample_ms=options.sample_ms
            )
        )
        torch.cuda.empty_cache()
        (options.out / "gemm.json").write_text(json.dumps(found))
    if len(found[kind]) <= 60:
        report(found[kind], [spec.label for spec in specs] if kind == "time" else [])


if __name__ == "__main__":
    sys.exit(main())
