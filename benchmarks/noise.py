"""How often the measurement is wrong: equal kernels told apart, and a slower one not recognised.

    python benchmarks/noise.py [WORKLOAD] [--target T] [--count N] [--shapes NAME,...] [--slower PERCENT]
        [--kernel FILE | --session FOLDER]

A/A compares the incumbent with itself in fresh processes, by the procedure of a candidate: screening,
rounds, early exits. Bar: of 100 at most 2 are called FASTER or SLOWER. The other run compares it with the
same kernel that waits 5 % of its own time more after every call; on GPUs it is left out. Bar: SLOWER in at
least 90 of 100.
Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from kerneltui.engine.evaluator import make_evaluator
from kerneltui.engine.reader import opened_recording
from kerneltui.evaluation.outcome import EvaluationError
from kerneltui.evaluation.pipeline import Evaluator
from kerneltui.evaluation.timing import LaneFailure, WrongOutput
from kerneltui.model.kernel import Kernel, parse_kernel
from kerneltui.model.measurement import Measurement
from kerneltui.model.statistics import Verdict
from kerneltui.model.workload import TargetSpec, Workload
from kerneltui.model.workload_file import load_workload

_QUICK = 2

_HEAD = "#define kerneltui_run kerneltui_run_before\n"
_TAIL = """
#undef kerneltui_run
#include <time.h>
static long long kerneltui_now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}
extern "C" int kerneltui_run(void *state, uint32_t set, uint64_t epoch, void *stream) {
    const long long begin = kerneltui_now();
    const int code = kerneltui_run_before(state, set, epoch, stream);
    const long long end = kerneltui_now();
    while (kerneltui_now() < end + (end - begin) * PERMILLE / 1000) {}
    return code;
}
"""


def main() -> int:
    """Runs both and prints a table."""
    arguments = _arguments()
    workload = load_workload(arguments.workload, arguments.target)
    tune = [shape.name for shape in workload.shapes_for("tune")]
    wanted = arguments.shapes.split(",") if arguments.shapes else tune[:_QUICK]
    if wanted == ["all"]:
        wanted = tune
    unknown = [name for name in wanted if name not in tune]
    if unknown:
        print(f"{unknown[0]}: no such tune shape; known: {', '.join(tune)}", file=sys.stderr)
        return 2
    workload = _only(workload, wanted)
    spec = workload.targets[arguments.target or next(iter(workload.targets))]
    incumbent = _incumbent(workload, spec, arguments)
    evaluator = make_evaluator(workload, spec)
    evaluator.start()
    try:
        if spec.name == "cuda":  # a host that waits slows nothing down there
            return _run(evaluator, incumbent, None, arguments)
        slower = _delayed(incumbent, arguments.slower)
        return _run(evaluator, _delayed(incumbent, 0.0), slower, arguments)
    finally:
        evaluator.close()


def _run(
    evaluator: Evaluator, incumbent: Kernel, slower: Kernel | None, arguments: argparse.Namespace
) -> int:
    calibration = evaluator.calibrate(incumbent, lambda text: None)
    print(f"delta {100 * calibration.delta:.2f} %, A/A half-width of the calibration "
          f"{100 * calibration.aa_half_width:.2f} %, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    equal = _series(evaluator, incumbent, incumbent, arguments.count, "A/A")
    wrong = equal[Verdict.FASTER] + equal[Verdict.SLOWER]
    print(f"told apart though equal: {wrong} of {equal.total()} (bar: 2 of 100)")
    good = wrong <= 0.02 * equal.total()
    if slower is not None:
        title = f"{arguments.slower:g} % slower"
        slow = _series(evaluator, slower, incumbent, arguments.count, title)
        share = slow[Verdict.SLOWER] / max(1, slow.total())
        good = good and share >= 0.90
        print(f"recognised as slower: {slow[Verdict.SLOWER]} of {slow.total()} (bar: 90 of 100)")
    return 0 if good else 1


def _delayed(kernel: Kernel, percent: float) -> Kernel:
    """The kernel, waiting after every call. Both sides get the code for it, which alone takes 1 %."""
    source = _HEAD + kernel.source + _TAIL.replace("PERMILLE", str(round(10 * percent)))
    return parse_kernel(source, f"{percent:g}-percent.cpp")


def _series(
    evaluator: Evaluator, kernel: Kernel, incumbent: Kernel, count: int, title: str
) -> Counter[Verdict]:
    print(f"\n{title}\n{'run':>4} {'estimate':>9} {'interval':>20} {'verdict':8} {'rounds':>6} "
          f"{'seconds':>7}  per shape")  # fmt: skip
    found: Counter[Verdict] = Counter()
    for number in range(1, count + 1):
        begin = time.monotonic()
        try:
            measurement = evaluator.compare(kernel, incumbent)
        except (EvaluationError, LaneFailure, WrongOutput) as error:
            print(f"{number:4} failed: {error}")
            continue
        found[measurement.verdict] += 1
        print(_row(number, measurement, time.monotonic() - begin), flush=True)
    print("  ".join(f"{verdict}: {found[verdict]}" for verdict in Verdict))
    return found


def _row(number: int, measurement: Measurement, seconds: float) -> str:
    whole = measurement.geomean
    parts = " ".join(
        f"{100 * shape.interval.estimate:+.1f}{'*' if shape.verdict is not Verdict.UNCLEAR else ''}"
        for shape in measurement.shapes
    )
    interval = f"{100 * whole.low:+.2f} to {100 * whole.high:+.2f} %"
    rounds = max(shape.rounds for shape in measurement.shapes)
    return (
        f"{number:4} {100 * whole.estimate:+8.2f}% {interval:>20} {measurement.verdict:8} {rounds:6} "
        f"{seconds:7.1f}  {parts}"
    )


def _incumbent(workload: Workload, spec: TargetSpec, arguments: argparse.Namespace) -> Kernel:
    """The kernel of a file, with other values if there are any, or the accepted one of a session."""
    if arguments.session:
        with opened_recording(arguments.session) as recording:
            text = recording.recorder.source(recording.recorder.state.incumbent)
        return parse_kernel(text, f"accepted{Path(spec.seed).suffix}")
    file = arguments.kernel or workload.kernels / spec.seed
    kernel = parse_kernel(file.read_text(encoding="utf-8"), str(file))
    if not arguments.values:
        return kernel
    values = {k: _number(v) for k, v in (pair.split("=") for pair in arguments.values.split(","))}
    return parse_kernel(kernel.render(values), str(file))


def _number(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def _only(workload: Workload, names: list[str]) -> Workload:
    shapes = tuple(s for s in workload.shapes if "tune" not in s.tags or s.name in names)
    return replace(workload, shapes=shapes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    root = Path(__file__).resolve().parents[1]
    parser.add_argument(
        "workload", nargs="?", type=Path, default=root / "workloads" / "gemm_allgather"
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), help="the workload's first by default")
    parser.add_argument(
        "--count", type=int, default=5, help="comparisons of each kind (100 for the bar)"
    )
    parser.add_argument("--shapes", help="names of tune shapes, or 'all'; the first two by default")
    parser.add_argument("--slower", type=float, default=5.0, help="percent (default 5)")
    parser.add_argument("--kernel", type=Path, help="kernel file; the workload's seed by default")
    parser.add_argument("--session", type=Path, help="session or bundle: its accepted kernel")
    parser.add_argument("--values", help="tunables and directive values of it: NAME=VALUE,...")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
