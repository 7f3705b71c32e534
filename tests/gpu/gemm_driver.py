"""Runs kernel files of `gemm` on one GPU, without the rest of kerneltui.

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
import ctypes
import itertools
import json
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from kernel_driver import (
    ROOT,
    BufferSet,
    Context,
    DriverFault,
    FailFunction,
    NamedValue,
    Requirements,
    Spec,
    Tensor,
    build,
    parse_spec,
    relative_error,
)

Shape = tuple[int, int, int]

VERIFY_SHAPES: list[Shape] = [
    *((64, 64, 64), (64, 64, 16384), (128, 256, 64), (256, 256, 256), (512, 512, 512)),
    *((1, 8, 8), (1, 4096, 4096), (64, 4096, 4096), (4096, 64, 4096), (1000, 1000, 1000)),
    *((1024, 768, 320), (130, 8, 8), (257, 136, 72), (2, 24, 40), (63, 264, 1032)),
    *((129, 67, 33), (1, 300, 64), (511, 513, 509), (257, 129, 1), (3, 1, 33), (776, 328, 200)),
    *((1024, 1024, 8192), (2048, 2048, 2048), (3000, 2056, 1048), (4096, 4096, 4096)),
    *((8192, 64, 16384), (64, 16384, 64), (12288, 512, 512)),
]
SPACE_SHAPES: list[Shape] = [(300, 520, 2056), (64, 256, 4096), (512, 1024, 1024)]
TIME_SHAPES: list[Shape] = [
    *((64, 64, 64), (64, 64, 1024), (64, 64, 16384), (64, 1024, 64), (256, 256, 256)),
    *((128, 512, 2048), (64, 4096, 4096), (256, 4096, 4096), (64, 16384, 64), (512, 512, 512)),
    *((512, 512, 8192), (1024, 1024, 1024), (1024, 1024, 16384), (16384, 64, 1024)),
    *((128, 128, 16384), (256, 12288, 2048), (1024, 64, 8192), (64, 8192, 8192)),
    *((16384, 64, 16384), (64, 16384, 16384), (512, 8192, 4096), (8192, 512, 2048)),
    *((2048, 2048, 2048), (2048, 2048, 256), (4096, 1024, 512), (4096, 4096, 1024)),
    *((2048, 12288, 4096), (4096, 4096, 4096), (16384, 16384, 64), (12288, 12288, 1024)),
    *((128, 16384, 12288), (8192, 8192, 8192), (16384, 16384, 4096), (16384, 16384, 16384)),
]
TILES = {2: (64, 64), 3: (128, 64), 4: (64, 128), 5: (128, 128), 6: (128, 192), 7: (192, 64)}
"""Rows and columns of the split tiles of gemm_sm90.cu."""
_pointer = ctypes.c_void_p
_u32, _u64, _i64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64
FLOPS, BYTES = 790e12, 4.3e12
"""Rates that this kind of GPU reaches, per second: products of bf16 or fp16, and main memory."""
CODES = {"float16": 2, "bfloat16": 3}
"""Element types, as kernel.h numbers them."""
HOLD_CYCLES = 2_000_000
"""A millisecond before each sample, in which the clock rises and everything is enqueued."""
NEAR = {"float16": 5e-4, "bfloat16": 4e-3}
"""What a right product may be off, as a share of the RMS: its last digit."""


class Problem:
    """The buffers of one shape."""

    def __init__(self, torch: Any, shape: Shape, sets: int, dtype: str) -> None:
        """Makes `sets` sets of A, B and C, of normal values."""
        self.torch, self.shape, self.sets, self.dtype = torch, shape, sets, dtype
        m, n, k = shape
        make = lambda rows, columns: [  # noqa: E731
            torch.empty(rows, columns, device="cuda", dtype=getattr(torch, dtype))
            for _ in range(sets)
        ]
        self.a, self.b, self.c = make(m, k), make(k, n), make(m, n)
        self.fill(False)
        self.keep: list[Any] = []
        self.buffers = (BufferSet * sets)()
        for i in range(sets):
            tensors = (Tensor * 3)(
                *(self._tensor(name, role, tensor[i]) for name, role, tensor in self._named())
            )
            self.buffers[i] = BufferSet(3, tensors)
            self.keep.append(tensors)

    def _named(self) -> list[tuple[bytes, int, list[Any]]]:
        return [(b"A", 0, self.a), (b"B", 0, self.b), (b"C", 1, self.c)]

    def _tensor(self, name: bytes, role: int, tensor: Any) -> Tensor:
        four = _i64 * 4
        size = tensor.numel() * 2
        shape = four(*tensor.shape, 0, 0)
        return Tensor(
            name, CODES[self.dtype], role, 2, shape, four(), size, tensor.data_ptr(), None, None
        )

    def fill(self, integers: bool) -> None:
        """New inputs in all sets."""
        for tensor in (*self.a, *self.b):
            tensor.random_(0, 2) if integers else tensor.normal_()


class Loaded:
    """A kernel that is set up for one problem."""

    def __init__(self, torch: Any, problem: Problem, spec: Spec, values: dict[str, int]) -> None:
        """Calls requirements and setup."""
        self.torch, self.problem = torch, problem
        self.library = ctypes.CDLL(spec.library)
        self.reason, self.epoch = "", 0
        self.dimensions = (NamedValue * 3)(
            *(NamedValue(*item) for item in zip((b"M", b"N", b"K"), problem.shape, strict=True))
        )
        runtime = spec.runtime | values
        self.tunables = (NamedValue * max(1, len(runtime)))(
            *(NamedValue(name.encode(), value) for name, value in runtime.items())
        )
        asked = Requirements()
        head = (self.dimensions, _u32(3), self.tunables, _u32(len(runtime)))
        code = self.library.kerneltui_requirements(*head, _u32(0), _u32(1), ctypes.byref(asked))
        if code or asked.abi_version != 1:
            raise DriverFault(f"requirements returned {code}, version {asked.abi_version}")
        self.scratch = torch.full(
            (max(256, asked.scratch_bytes),), 0xA5, dtype=torch.uint8, device="cuda"
        )
        self.fail = FailFunction(self._fail)
        self.context = Context(
            abi_version=1, rank=0, ranks=1, threads=1,
            dimension_count=3, dimensions=ctypes.cast(self.dimensions, _pointer).value,
            tunable_count=len(runtime), tunables=ctypes.cast(self.tunables, _pointer).value,
            sets=problem.sets, buffers=problem.buffers,
            scratch=self.scratch.data_ptr(), scratch_bytes=asked.scratch_bytes,
            fail=ctypes.cast(self.fail, _pointer).value,
        )  # fmt: skip
        self.state = _pointer()
        self.check(
            self.library.kerneltui_setup(ctypes.byref(self.context), ctypes.byref(self.state))
        )

    def _fail(self, _self: int, text: bytes) -> None:
        self.reason = text.decode(errors="replace")

    def check(self, code: int) -> None:
        """Raises if a step of the kernel failed."""
        if code:
            raise DriverFault(f"{code}: {self.reason or 'no reason given'}")

    def call(self, count: int) -> None:
        """Enqueues calls on torch's current stream, over the sets in turn."""
        stream = _pointer(self.torch.cuda.current_stream().cuda_stream)
        for _ in range(count):
            self.epoch += 1
            index = _u32(self.epoch % self.problem.sets)
            self.check(self.library.kerneltui_run(self.state, index, _u64(self.epoch), stream))

    def close(self) -> None:
        """Calls teardown."""
        self.torch.cuda.synchronize()
        self.library.kerneltui_teardown(self.state)


def verify(torch: Any, specs: list[Spec], shapes: list[Shape], dtype: str) -> list[str]:
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


def verify_space(torch: Any, spec: Spec, shapes: list[Shape], dtype: str) -> list[str]:
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


def candidates(shape: Shape) -> list[dict[str, int]]:
    """Values of the tile tunables that may be quick for a shape, as the kernel's rule has them."""
    m, n, k = shape
    found: list[dict[str, int]] = [{"TILE": 1}]
    steps = -(-k // 64)
    for tile, (rows, columns) in TILES.items():
        if (rows > 64 and m * 2 <= rows) or (columns > 64 and n * 2 <= columns):
            continue
        tiles = -(-m // rows) * -(-n // columns)
        if tiles > 600 and rows * columns < 1 << 14:
            continue
        for slices, parts, share in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2)):
            ranges = slices * parts
            if share > 1 and (columns % 128 or m <= rows or share * slices > 8):
                continue
            if ranges > 1 and (ranges > steps or tiles * ranges > 264):
                continue
            if parts > (8 if slices * share == 8 else 2):
                continue
            if tiles * ranges * 2 < min(128, tiles * steps, tiles * 32):
                continue
            found.append({"TILE": tile, "SLICES": slices, "PARTS": parts, "SHARE": share})
    return found


def grid_shapes(count: int) -> list[Shape]:
    """Shapes of the grid, as many from every part of it when it is in the order of work."""
    sizes = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
    shapes = sorted(itertools.product(sizes, repeat=3), key=lambda s: (s[0] * s[1] * s[2], s))
    drawn = random.Random(7)
    return [
        drawn.choice(shapes[i * len(shapes) // count : (i + 1) * len(shapes) // count])
        for i in range(count)
    ]


def time_shape(
    torch: Any,
    shape: Shape,
    dtype: str,
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


def bound_us(shape: Shape) -> float:
    """The least time by arithmetic and by main memory."""
    m, n, k = shape
    return max(2 * m * n * k / FLOPS, 2 * (m * k + k * n + m * n) / BYTES) * 1e6


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


def main() -> int:
    """Builds, verifies, times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--build", type=Path, default=ROOT / "build/driver")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--arch", default="arch=compute_90a,code=sm_90a")
    parser.add_argument("--dtype", choices=tuple(CODES), default="bfloat16")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--shapes", help="M,N,K;... to time")
    parser.add_argument("--grid", type=int, help="so many shapes of the grid instead")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sample-ms", type=float, default=1.5)
    parser.add_argument("--budget", type=float, default=90.0, help="seconds for everything")
    options = parser.parse_args()
    deadline = time.monotonic() + options.budget
    options.out.mkdir(parents=True, exist_ok=True)
    options.build.mkdir(parents=True, exist_ok=True)
    specs = [parse_spec(text) for text in options.kernels]
    with ThreadPoolExecutor(2 if options.build_only else 14) as pool:
        list(pool.map(lambda spec: build(spec, options.build, options.arch, options.dtype), specs))
    for spec in specs:
        if not spec.library:
            print(spec.label, spec.build_log[-2000:])
    specs = [spec for spec in specs if spec.library]
    if options.build_only:
        return 0
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
    shapes = TIME_SHAPES
    if options.grid:
        shapes = grid_shapes(options.grid)
        random.Random(1).shuffle(shapes)  # so that those of a run that is cut short are a fair part
    if options.shapes:
        shapes = [tuple(int(x) for x in s.split(",")) for s in options.shapes.split(";")]
    for kind in ("time", "sweep"):
        if not getattr(options, kind) or not specs:
            continue
        for shape in shapes:
            if time.monotonic() > deadline:
                print("out of time before", shape)
                break
            if kind == "time":
                runs = [(spec, {}) for spec in specs]
            else:
                runs = [(specs[0], values) for values in candidates(shape)]
            rounds = options.rounds if kind == "time" else 3
            found[kind].append(
                time_shape(
                    torch, shape, options.dtype, runs, rounds=rounds, sample_ms=options.sample_ms
                )
            )
            torch.cuda.empty_cache()
            (options.out / "gemm.json").write_text(json.dumps(found))
        if len(found[kind]) <= 60:
            report(found[kind], [spec.label for spec in specs] if kind == "time" else [])
        print(f"{kind}: {time.monotonic() - started:.1f} s since the start")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
