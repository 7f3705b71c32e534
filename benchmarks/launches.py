"""What equal calls differ by from process to process: enqueued one by one, and as one graph.

    python benchmarks/launches.py [WORKLOAD] [--groups N] [--shapes NAME,...] [--lane NAME]

Opens several process groups of the same kernel or vendor baseline on one GPU and times them in turn, as a
benchmark does. What stays between the groups beyond the spread of their own rounds is no noise that more
rounds would even out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import median

from kerneltui.evaluation.lane import Lane, set_bytes
from kerneltui.evaluation.stand import Stand
from kerneltui.evaluation.timing import GPU_PROTOCOL
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.measurement import Stage
from kerneltui.model.workload import Shape
from kerneltui.model.workload_file import load_workload
from kerneltui.targets.cuda.runtime import CudaTarget
from kerneltui.targets.port import GroupRole

_SAMPLE_NS = 1_000_000
_MOST_CALLS = 256


def main() -> int:
    """Prints a line for each shape and way."""
    arguments = _arguments()
    workload = load_workload(arguments.workload, "cuda")
    by_name = {shape.name: shape for shape in workload.shapes}
    wanted = arguments.shapes.split(",")
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        print(f"{unknown[0]}: no such shape; known: {', '.join(by_name)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="kerneltui-launches-") as folder:
        stand = Stand(workload, CudaTarget(Path(folder), vendors=True), GPU_PROTOCOL)
        stand.start()
        lanes: list[Lane] = []
        try:
            stand.ready()
            lanes += [_open(stand, arguments.lane) for _ in range(arguments.groups)]
            print(
                f"{arguments.lane} in {len(lanes)} process groups, us: median of {arguments.rounds} rounds"
            )
            for name in wanted:
                _shape(stand, lanes, by_name[name], arguments.rounds)
        finally:
            for lane in lanes:
                stand.release(lane)
            stand.close()
    return 0


def _open(stand: Stand, name: str) -> Lane:
    file = stand.workload.kernels / name
    if not file.is_file():
        return stand.open_baseline(name, 1)
    kernel = parse_kernel(file.read_text(encoding="utf-8"), name)
    build = stand.build(kernel)
    return stand.open_kernel(GroupRole.CANDIDATE, build, kernel.runtime, 1, Stage.BENCHMARK)


def _shape(stand: Stand, lanes: Sequence[Lane], shape: Shape, rounds: int) -> None:
    sets = GPU_PROTOCOL.rotation(set_bytes(stand.workload, shape), GPU_PROTOCOL.most_sets)
    for lane in lanes:
        lane.setup(shape, sets)
        lane.fill(range(sets))
        lane.sample(1)
        lane.sample(sets)
    call_ns = lanes[0].sample(sets).duration_ns
    calls = min(_MOST_CALLS, ceil(_SAMPLE_NS / call_ns))
    for graph in (False, True):
        found: list[list[float]] = [[] for _ in lanes]
        for number in range(rounds + 1):
            places = range(len(lanes))
            for place in reversed(places) if number % 2 else places:
                with stand.machine():
                    sample = lanes[place].sample(calls, graph=graph)
                if number:
                    found[place].append(sample.duration_ns)
        _print(shape.name, "graph" if graph else "one by one", found)
    for lane in lanes:
        lane.teardown()


def _print(shape: str, way: str, found: Sequence[Sequence[float]]) -> None:
    middles = [median(times) for times in found]
    between = max(middles) / min(middles) - 1
    inside = median(max(times) / min(times) - 1 for times in found)
    texts = " ".join(f"{middle / 1e3:8.3f}" for middle in middles)
    print(
        f"{shape:>18} {way:10} {texts}   between {between:6.2%}, inside {inside:6.2%}", flush=True
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("workload", nargs="?", type=Path, default=Path("workloads/gemm"))
    parser.add_argument("--groups", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shapes", default="64x64x64,256x256x256,1024x1024x1024,512x512x8192")
    parser.add_argument(
        "--lane", default="cublas_nn", help="a vendor baseline, or a file of the kernels"
    )
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
