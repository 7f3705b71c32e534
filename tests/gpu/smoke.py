"""What the runtime and the judge do on two GPUs, good and bad, as one table: `python3 tests/gpu/smoke.py`.

Needs torch with CUDA, nvcc, nvidia-ml-py and two GPUs; nothing of the terminal. Prints a line for each
step and writes `smoke.json` to the folder in $OUT, or here.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import gpu_kernels as kernels  # noqa: E402

from kerneltui.evaluation.lane import Lane  # noqa: E402
from kerneltui.evaluation.outcome import EvaluationError  # noqa: E402
from kerneltui.evaluation.pipeline import Evaluator  # noqa: E402
from kerneltui.evaluation.stand import Stand  # noqa: E402
from kerneltui.evaluation.timing import TimingProtocol  # noqa: E402
from kerneltui.evaluation.verify import Tally, VerifyPlan, verify_shape  # noqa: E402
from kerneltui.model.kernel import parse_kernel  # noqa: E402
from kerneltui.model.workload import Shape, Workload  # noqa: E402
from kerneltui.model.workload_file import load_workload  # noqa: E402
from kerneltui.targets.cuda.runtime import CudaTarget  # noqa: E402
from kerneltui.targets.port import GroupRole, Limits  # noqa: E402

TOML = """
schema = 1
title = "GEMM + AllGather on GPUs"
dimensions = ["M", "N", "K"]
dtype = "bfloat16"
accumulate = "float32"

[target.cuda]
ranks = RANKS
seed = "host_nccl.cu"
library = []
baselines = ["torch_nccl", "host_nccl"]

[[tensor]]
name = "A"
shape = ["M", "K"]
role = "input"
shard = 0
[[tensor]]
name = "B"
shape = ["K", "N"]
role = "input"
[[tensor]]
name = "C"
shape = ["M", "N"]
role = "output"
symmetric = true

[tolerance]
factor = 8.0
reduction = "K"
library = 4.0

[limit]
flops = "2 * M * N * K / RANKS"
memory_bytes = "2 * (M * K / RANKS + K * N + M * N)"
link_bytes = "2 * M * N * (RANKS - 1) / RANKS"
"""
SHAPES = [
    (4096, 4096, 4096, "tune"),
    (8192, 8192, 2048, "tune"),
    (127, 61, 89, "test"),
    (257, 136, 24, "test"),
    (3, 8, 40, "test"),
    (513, 520, 512, "test"),
]


ALONE = 100
"""M of the shape of one rank."""


class Smoke:
    """Runs steps and keeps what they say."""

    def __init__(self, seconds: float) -> None:
        self.rows: list[dict[str, Any]] = []
        self._begin = time.monotonic()
        self._seconds = seconds

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        """Runs one step; a failure is a row too."""
        if time.monotonic() - self._begin > self._seconds:
            self._add(name, 0.0, False, "left out: no time left")
            return None
        begin = time.monotonic()
        try:
            said = work()
            self._add(name, time.monotonic() - begin, True, said)
        except Exception as error:
            detail = getattr(error, "detail", "") or getattr(error, "log", "")
            said = f"{type(error).__name__}: {error} {detail}"
            self._add(name, time.monotonic() - begin, False, said)
            traceback.print_exc()
            return None
        return said

    def _add(self, name: str, seconds: float, good: bool, said: Any) -> None:
        self.rows.append({"step": name, "seconds": round(seconds, 3), "ok": good, "said": said})
        print(f"{'ok  ' if good else 'BAD '} {seconds:7.3f} s  {name}: {said}", flush=True)


def make_project(folder: Path, ranks: int) -> Path:
    """A project with the workload for so many GPUs, whose kernels are those of this repository."""
    workload = folder / "workloads" / "gemm_allgather"
    workload.mkdir(parents=True)
    shutil.copy(ROOT / "workloads" / "gemm_allgather" / "reference.py", workload)
    shapes = "".join(
        f'\n[[shape]]\nM = {m}\nN = {n}\nK = {k}\ntags = ["{tag}"]\n' for m, n, k, tag in SHAPES
    )
    shapes += f'\n[[shape]]\nM = {ALONE}\nN = 72\nK = 48\nranks = 1\ntags = ["test"]\n'
    (workload / "workload.toml").write_text(TOML.replace("= RANKS", f"= {ranks}") + shapes)
    (folder / "kernels").symlink_to(ROOT / "kernels")
    return workload


class Bench:
    """Target, judge and what the steps have in common."""

    def __init__(self, folder: Path, ranks: int = 2) -> None:
        self.ranks = ranks
        self.workload: Workload = load_workload(make_project(folder, ranks), "cuda")
        self.target = CudaTarget(folder / "cache")
        self.stand = Stand(self.workload, self.target, TimingProtocol())
        self.limits = Limits(first_call_s=5.0, sample_s=5.0, setup_s=20.0, load_s=20.0)

    def shape(self, m: int) -> Shape:
        return next(s for s in self.workload.shapes if s.dimensions["M"] == m)

    def lane(self, source: str, *, limits: Limits | None = None, ranks: int = 0) -> Lane:
        build = self.target.toolchain.compile(source)
        group = self.target.open_group(
            GroupRole.CANDIDATE, ranks or self.ranks, limits=limits or self.limits
        )
        lane = Lane(group, self.stand.judge, self.workload, {})
        try:
            group.load(build.library)
        except BaseException:
            lane.close()
            raise
        return lane

    def use(self) -> list[int]:
        return [self.target.gpus.use(i).used_bytes >> 20 for i in range(self.target.gpus.count)]

    def verified(self, lane: Lane, names: list[int]) -> str:
        tally = Tally()
        for m in names:
            shape = self.shape(m)
            verify_shape(lane, shape, VerifyPlan.for_shape(shape), tally, lambda: None)
            lane.teardown()
        return f"{tally.note}; conflicts {tally.conflicts} {tally.conflict}"

    def good(self) -> str:
        """One kernel from start to end, with the time of each part."""
        parts: dict[str, float] = {}
        mark = time.monotonic()

        def done(name: str) -> None:
            nonlocal mark
            now = time.monotonic()
            parts[name] = round(now - mark, 3)
            mark = now

        self.target.toolchain.compile(kernels.kernel())
        done("compile")
        lane = self.lane(kernels.kernel())
        done("group and load")
        try:
            lane.group.requirements({"M": 8, "N": 8, "K": 8}, {})
            done("NCCL")
            lane.setup(self.shape(4096), 3)
            done("set up 4096")
            lane.fill([0, 1, 2])
            done("fill 3 sets, with expected values")
            lane.fill([0, 1, 2])
            done("fill 3 sets")
            lane.repeat_set(0)
            sample = lane.run()
            done("first call")
            report = lane.check([0])
            done("check")
            lane.teardown()
            done("tear down")
        finally:
            lane.close()
        done("end")
        how = f"{report.reason}, error {report.error:.2f}, library share {report.library_share:.2f}"
        return (
            f"{parts} {how} {[r.end_ns - r.start_ns for r in sample.ranks]} {sample.clock_conflict}"
        )

    def fails(self, source: str, m: int = 127) -> str:
        """A kernel that must fail, and what is left of it."""
        before = self.use()
        lane = self.lane(source)
        begin = time.monotonic()
        try:
            verify_shape(
                lane, self.shape(m), VerifyPlan.for_shape(self.shape(m)), Tally(), lambda: None
            )
        except EvaluationError as error:
            failed = time.monotonic()
            kind = getattr(error, "kind", type(error).__name__)
            lane.close()
            after = self.use()
            quarantined = self.target.quarantined
            return (
                f"{kind}: {error} (after {failed - begin:.2f} s, closed in "
                f"{time.monotonic() - failed:.2f} s; MiB {before} -> {after}; quarantined {quarantined})"
            )
        finally:
            lane.close()
        raise AssertionError("it passed")

    def times(self, lane: Lane, m: int, calls: int) -> str:
        shape = self.shape(m)
        lane.setup(shape, max(3, calls))
        try:
            lane.fill(lane.next_sets(1))
            lane.run()
            found, walls, conflicts = [], [], []
            for _ in range(12):
                lane.fill(lane.next_sets(calls))
                sample = lane.sample(calls)
                found.append(sample.duration_ns / 1e3)
                walls.append((sample.wall_ns - sample.elapsed_ns) / 1e3)
                conflicts.append(sample.clock_conflict)
            report = lane.check([0])
        finally:
            lane.teardown()
        flops = 2.0 * shape.dimensions["M"] * shape.dimensions["N"] * shape.dimensions["K"] / 2
        middle = median(found[1:])
        return (
            f"{shape.name} x{calls}: {middle:.1f} us (min {min(found):.1f}, max {max(found[1:]):.1f}), "
            f"{flops / middle / 1e6:.0f} TFLOP/s a rank, outside {median(walls):.0f} us, "
            f"{report.reason}, conflicts {[c for c in conflicts if c][:1]}"
        )


def main() -> int:
    """Runs all steps."""
    out = Path(os.environ.get("OUT", "."))
    smoke = Smoke(float(sys.argv[1]) if len(sys.argv) > 1 else 480.0)
    wanted = set(sys.argv[2].split(",")) if len(sys.argv) > 2 else {"run", "fail", "time", "full"}
    with tempfile.TemporaryDirectory() as name:
        made: list[Bench] = []
        smoke.step("target", lambda: made.append(Bench(Path(name))) or made[0].target.describe())
        if not made:
            return 1
        bench = made[0]
        try:
            steps(smoke, bench, wanted, Path(name))
        finally:
            bench.stand.close()
            (out / "smoke.json").write_text(json.dumps(smoke.rows, indent=1, default=str))
    return 0 if all(row["ok"] for row in smoke.rows) else 1


def steps(smoke: Smoke, bench: Bench, wanted: set[str], folder: Path) -> None:
    """What is done, in order."""
    bench.stand.start()
    smoke.step("idle MiB", bench.use)
    smoke.step(
        "compile harness and kernel",
        lambda: bench.target.toolchain.compile(kernels.kernel()).seconds,
    )
    smoke.step("judge and first group", lambda: (bench.stand.ready(), bench.target.sandbox_level))
    smoke.step("MiB with judge", bench.use)
    if "run" in wanted:
        smoke.step("a right kernel, cold", bench.good)
        smoke.step("a right kernel, warm", bench.good)
        lane = bench.lane(kernels.kernel())
        smoke.step("verified", lambda: bench.verified(lane, [127, 257, 3, 513, 4096]))
        lane.close()
    if "fail" in wanted:
        for label, source, m in (
            ("wrong", kernels.kernel(kernels.WRONG), 127),
            ("hang", kernels.kernel(kernels.HANG), 127),
            ("one rank hangs", kernels.kernel(kernels.ONE_RANK_HANGS), 127),
            ("fault", kernels.kernel(kernels.FAULT), 127),
            ("shared memory", kernels.kernel(kernels.SHARED_MEMORY), 127),
            ("unjoined side stream", kernels.kernel(kernels.UNJOINED), 127),
            ("unjoined own stream", kernels.kernel(kernels.OWN_STREAM), 127),
            ("all memory", kernels.kernel(setup=kernels.ALL_MEMORY), 127),
            ("too much memory", kernels.kernel(setup=kernels.TOO_MUCH_MEMORY), 127),
        ):
            smoke.step(label, lambda source=source, m=m: bench.fails(source, m))
        smoke.step("a right kernel after all that", bench.good)
        smoke.step("MiB after", bench.use)
    if "time" in wanted:
        lane = bench.lane(kernels.kernel())
        for m, calls in ((4096, 8), (8192, 3), (513, 32)):
            smoke.step("time host", lambda m=m, calls=calls: bench.times(lane, m, calls))
        lane.close()
        synced = bench.lane(kernels.kernel(kernels.SYNCHRONISES))
        smoke.step("time, run waits", lambda: bench.times(synced, 513, 8))
        synced.close()
        base = bench.stand.open_baseline("torch_nccl", 2)
        smoke.step("time torch_nccl", lambda: bench.times(base, 4096, 8))
        bench.stand.release(base)
        smoke.step("ceilings", lambda: bench.target.measure_ceilings(2))
    if "full" in wanted:
        full(smoke, bench, folder)


def full(smoke: Smoke, bench: Bench, folder: Path) -> None:
    """The evaluator as the engine uses it, on the stand's target."""
    protocol = replace(TimingProtocol(), noise_rounds=8, looks=(6, 12), confirm_groups=2)
    evaluator = Evaluator(
        bench.workload,
        bench.target,
        ceilings=bench.target.measure_ceilings,
        cache=folder / "cache",
        protocol=protocol,
    )
    bench.stand.judge.close()
    evaluator.stand.judge.start()
    root = ROOT / "kernels" / "gemm_allgather"

    def read(name: str) -> Any:
        return parse_kernel((root / name).read_text(), name)

    seed = read("host_nccl.cu")
    smoke.step("self-test", lambda: len(evaluator.self_test()))
    smoke.step("calibrate", lambda: _calibration(evaluator.calibrate(seed, lambda text: None)))
    for name in ("lsa_chunked.cu", "lsa_fused_sm90.cu"):
        if (root / name).exists():
            smoke.step(
                f"evaluate {name}",
                lambda name=name: _outcome(
                    evaluator.evaluate(read(name), seed, against="seed", report=lambda update: None)
                ),
            )
    evaluator.stand.judge.close()


def _calibration(result: Any) -> str:
    shapes = {
        s.shape: (s.bound_ns, s.reference, [(b.name, b.time_ns) for b in s.baselines])
        for s in result.shapes
    }
    return f"delta {result.delta:.4f}, {len(result.mutants)} mutants, {shapes}, {result.record['refused']}"


def _outcome(outcome: Any) -> str:
    measured = outcome.measurement
    shapes = [(s.shape, s.verdict, s.interval) for s in measured.shapes] if measured else []
    return f"{outcome.failure} {shapes} {dict(outcome.record).get('verified', '')}"


if __name__ == "__main__":
    sys.exit(main())
