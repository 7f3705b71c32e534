"""What a side-by-side run loses to a fault of the harness: no shape that was measured, and no other one."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerneltui.evaluation.bench_plan import BenchPlan
from kerneltui.evaluation.bench_result import Mode, ShapeResult
from kerneltui.evaluation.pipeline import Evaluator
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.limit import Ceilings
from kerneltui.model.workload_file import load_workload
from kerneltui.targets.cpu.runtime import CpuTarget
from kerneltui.targets.errors import TargetError
from kerneltui.targets.locks import MachineLock

from .conftest import PROTOCOL
from .pieces import kernel

pytestmark = [pytest.mark.slow, pytest.mark.alone]

_SIZES = (48, 2048, 64)
_SLACK_BYTES = 8 << 20  # less than an input of the large shape, which has 16 MiB


class Rates:
    """Ceilings of a machine whose measurement can fail."""

    def __init__(self) -> None:
        self.peak = 1e12
        self.broken = False
        self.asked = 0

    def __call__(self, ranks: int) -> Ceilings:
        self.asked += 1
        if self.broken:
            raise TargetError("the probe does not build")
        return Ceilings(ranks, 1e12, self.peak, 1e11, 1e11, 100.0)


@pytest.fixture
def rates() -> Rates:
    return Rates()


@pytest.fixture
def evaluator(workload_folder: Path, tmp_path: Path, rates: Rates) -> Iterator[Evaluator]:
    """Shapes of which the judge has no room for the second if its memory is limited."""
    folder = tmp_path / "project" / "workloads" / "gemm_allgather"
    shutil.copytree(workload_folder.parents[1], tmp_path / "project")
    text = (folder / "workload.toml").read_text()
    shapes = (f'[[shape]]\nM = {m}\nN = {m}\nK = {m}\ntags = ["tune"]\n' for m in _SIZES)
    (folder / "workload.toml").write_text(text[: text.index("[[shape]]")] + "\n".join(shapes))
    target = CpuTarget(tmp_path / "cache", lock=MachineLock(tmp_path))
    made = Evaluator(
        load_workload(folder), target, ceilings=rates, cache=tmp_path, protocol=PROTOCOL
    )
    made.start()
    yield made
    made.close()


def plan(evaluator: Evaluator) -> BenchPlan:
    return BenchPlan(evaluator.workload.shapes, rounds=2, least_rounds=2)


def limit_judge(evaluator: Evaluator, nbytes: int) -> None:
    """Sets what the judge's process may map; -1 for as much as it likes."""
    _, most = resource.prlimit(evaluator.stand.judge.pid, resource.RLIMIT_AS)
    resource.prlimit(evaluator.stand.judge.pid, resource.RLIMIT_AS, (nbytes, most))


def mapped(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def test_a_shape_without_room_for_the_judge_is_left_out_and_the_next_is_measured(
    evaluator: Evaluator,
) -> None:
    found: list[ShapeResult] = []
    said: list[str] = []

    def hear(result: ShapeResult) -> None:
        found.append(result)
        small = mapped(evaluator.stand.judge.pid) + _SLACK_BYTES
        limit_judge(evaluator, small if len(found) == 1 else -1)

    evaluator.bench(
        {"plain": parse_kernel(kernel(), "plain.cpp")}, plan(evaluator), said.append, hear
    )
    assert [bool(result.left_out) for result in found] == [False, True, False], said
    assert "the judge: " in found[1].left_out and "\n" not in found[1].left_out
    assert not found[1].lanes and found[1].bound_ns > 0
    assert any("is left out" in text for text in said)
    for result in (found[0], found[2]):
        lanes = {lane.name: lane for lane in result.lanes}
        assert Mode.OFFLINE in lanes["plain"].modes, lanes["plain"].error
        assert result.reference(Mode.OFFLINE) is not None


def test_a_judge_that_the_system_ended_for_its_memory_is_followed_by_another(
    evaluator: Evaluator,
) -> None:
    found: list[ShapeResult] = []

    def say(text: str) -> None:
        if text.startswith("2 of 3"):
            os.kill(evaluator.stand.judge.pid, signal.SIGKILL)

    evaluator.bench({}, plan(evaluator), say, found.append)
    assert [bool(result.left_out) for result in found] == [False, True, False]
    assert "exit code -9" in found[1].left_out
    assert found[2].reference(Mode.OFFLINE) is not None


def test_ceilings_that_cannot_be_measured_cost_no_shape(evaluator: Evaluator, rates: Rates) -> None:
    rates.broken = True
    said: list[str] = []
    found: list[ShapeResult] = []
    with pytest.raises(TargetError, match="does not build"):
        evaluator.bench({}, plan(evaluator), said.append, found.append)
    assert not found and not said
    assert not evaluator.stand.lanes


def test_a_floor_above_the_times_of_the_libraries_is_lowered(
    evaluator: Evaluator, rates: Rates
) -> None:
    rates.peak = 1.0  # so slow that all times are below
    (shape, *_) = evaluator.workload.shapes
    found = evaluator.bench(
        {"plain": parse_kernel(kernel(), "plain.cpp")},
        BenchPlan((shape,), rounds=2, least_rounds=2),
        lambda text: None,
    )
    (result,) = found
    assert rates.asked == 1
    assert result.fastest_ns is not None
    assert result.floor_ns == round(0.8 * result.fastest_ns)
