"""Readings, reports of the compiler and counters on a real GPU."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gpus import skip_unless

skip_unless(1)
pytestmark = [pytest.mark.slow, pytest.mark.alone]

from kerneltui.engine.evaluator import make_evaluator  # noqa: E402
from kerneltui.engine.opening import workload_on  # noqa: E402
from kerneltui.evaluation.code_record import code_record  # noqa: E402
from kerneltui.evaluation.gpu_use import Watch  # noqa: E402
from kerneltui.evaluation.outcome import EvaluationError  # noqa: E402
from kerneltui.evaluation.pipeline import Evaluator  # noqa: E402
from kerneltui.evaluation.rounds import ShapeRounds  # noqa: E402
from kerneltui.model.kernel import Kernel, parse_kernel  # noqa: E402
from kerneltui.model.measurement import Stage  # noqa: E402
from kerneltui.model.reading import GpuReading  # noqa: E402
from kerneltui.targets.port import GroupRole  # noqa: E402

ROOT = Path(__file__).parents[2]
MOST_ROUNDS = 200  # of some tens of milliseconds; there is a reading about twice a second


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    workload, spec = workload_on(ROOT / "workloads" / "gemm", "cuda")
    made = make_evaluator(workload, spec)
    made.start()
    made.stand.ready()
    yield made
    made.close()


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    file = ROOT / "kernels" / "gemm" / "gemm_sm80.cu"
    return parse_kernel(file.read_text(encoding="utf-8"), file.name)


def first(evaluator: Evaluator) -> GpuReading:
    return evaluator.readings(0.0)[0]


def test_a_reading_has_what_every_data_centre_gpu_tells(evaluator: Evaluator) -> None:
    reading = first(evaluator)
    assert reading.sm_clock_mhz and 100 < reading.sm_clock_mhz < 4000
    assert reading.power_w and 20 < reading.power_w < 1500
    assert reading.memory_used_bytes is not None and reading.memory_total_bytes is not None
    assert reading.memory_used_bytes < reading.memory_total_bytes
    assert reading.throttle is not None
    assert evaluator.stand.target.multiprocessors > 10


def test_the_energy_counter_goes_on(evaluator: Evaluator) -> None:
    before = first(evaluator)
    time.sleep(1.0)
    after = first(evaluator)
    assert before.energy_j is not None and after.energy_j is not None
    assert after.energy_j > before.energy_j


def test_rounds_know_the_clock_and_long_ones_the_power(
    evaluator: Evaluator, kernel: Kernel
) -> None:
    stand = evaluator.stand
    build = stand.build(kernel)
    shapes = [s for s in stand.workload.shapes_for("tune") if max(s.dimensions.values()) <= 8192]
    shape = max(shapes, key=lambda s: stand.workload.limit.flops.number(s.values))
    roles = (GroupRole.CANDIDATE, GroupRole.INCUMBENT)
    lanes = [stand.open_kernel(role, build, kernel.runtime, 1, Stage.BENCHMARK) for role in roles]
    try:
        for lane in lanes:
            lane.setup(shape, 3)
        rounds = ShapeRounds(shape.name, 4, kept=3)
        # A reading takes longer than a sample, so not every round has one.
        while len(rounds.gpu_rounds) < 2 and len(rounds.candidate) < MOST_ROUNDS:
            stand.timer.rounds(rounds, 1, lanes[0], lanes[1], None)
        lanes[0].fill(range(3))
        watch = Watch(stand.target.readings, 1)
        once = lanes[0].sample(1).duration_ns
        watch.sampled(0, lanes[0].sample(min(900, ceil(200e6 / once))))
        long = watch.burst(0)
    finally:
        for lane in lanes:
            stand.release(lane)
    assert long is not None and long.power_w and long.energy_j
    assert rounds.candidate[0].gpu is not None  # and the first one always has
    assert len(rounds.gpu_rounds) == 2
    for use, _ in rounds.gpu_rounds:
        assert use.sm_clock_mhz
        assert use.power_w is None and use.energy_j is None, "samples are shorter than the average"
    record = rounds.to_record()["gpu"]["candidate"]
    assert len(record) == len(rounds.candidate)
    assert len([row for row in record if row is not None]) == 2


def test_the_report_of_the_compiler_is_of_this_gpu(evaluator: Evaluator, kernel: Kernel) -> None:
    record = code_record(evaluator.stand.target.toolchain, evaluator.stand.build(kernel))
    assert record is not None and record["kernels"]
    assert record["arch"].startswith("sm_")
    assert all(part["metrics"]["registers"] for part in record["kernels"])


def test_launches_are_captured_with_their_shared_memory(evaluator: Evaluator) -> None:
    file = ROOT / "kernels" / "gemm" / "gemm_sm90.cu"
    fast = parse_kernel(file.read_text(encoding="utf-8"), file.name)
    evaluator.verify(fast, lambda update: None)
    record = evaluator.code_record(fast)
    assert record is not None and "unread" not in record, record
    assert record["launches"]
    for part in record["launches"]:
        rows = part["kernels"]
        assert rows, part
        for row in rows:
            assert row["ctas"] >= 1 and row["waves"] >= 1
            assert row["places"] % row["ctas"] == 0 or row["cluster"] > 1
            assert row["limiter"] != "the driver", "the arithmetic agrees with the driver"
        assert max(row["dynamic"] for row in rows) > 48 << 10


@pytest.mark.skipif(shutil.which("ncu") is None, reason="there is no ncu")
def test_the_profiler_counts_a_kernel_or_says_why_not(evaluator: Evaluator, kernel: Kernel) -> None:
    try:
        found: Any = evaluator.profile(kernel)
    except EvaluationError as error:
        assert "does not permit counters" in str(error)
        return
    names = {row[0] for part in found["kernels"] for row in part["counters"]}
    assert {"time", "grid"} <= names
