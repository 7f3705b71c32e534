"""What verification asks of a lane whose inputs can be masked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from evaluation_fakes import sample

from kerneltui.evaluation.lane import MASKED, Lane
from kerneltui.evaluation.outcome import KernelFault
from kerneltui.evaluation.values import Fault, FaultKind, Report
from kerneltui.evaluation.verify import Tally, VerifyPlan, verify_shape
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.model.workload import Shape
from kerneltui.model.workload_file import load_workload
from kerneltui.targets.sample import Sample

WORKLOAD = load_workload(Path(__file__).parents[2] / "workloads" / "gemm")
SMALL, LARGE = (Shape(f"{size}", {"M": size, "N": size, "K": size}, (), 1) for size in (64, 4096))


class FakeLane:
    """Right, but for the calls of a masked sample if it is hasty."""

    def __init__(self, *, masks: bool, hasty: bool = False) -> None:
        self.group = SimpleNamespace(ranks=1, pids=())
        self.workload = WORKLOAD
        self.shape: Shape | None = None
        self.masks, self.hasty = masks, hasty
        self.sets = self.samples = 0
        self.rows: list[tuple[int, bool]] = []
        self._masked = False

    def setup(self, shape: Shape, sets: int, *, address_shift: int) -> None:
        self.shape, self.sets = shape, sets

    def next_sets(self, calls: int) -> list[int]:
        return list(range(calls))

    def fill(self, *_: Any) -> None: ...

    edit = poison = repeat_set = fill

    def can_mask(self, calls: int) -> bool:
        return self.masks and calls <= self.sets

    def run(self, delays_ns: Sequence[int] = ()) -> Sample:
        return self._made(1)

    def sample(
        self, calls: int, delays_ns: Sequence[int], *, verifying: bool, masked: bool
    ) -> Sample:
        assert verifying
        self.rows.append((calls, masked))
        return self._made(calls, masked)

    def check(self, sets: Sequence[int], *, digest: bool = False) -> Report:
        fault = Fault(FaultKind.VALUE, 0, sets[0], "C[0, 0] on rank 0 is wrong")
        wrong = self.hasty and self._masked
        return Report((fault,) if wrong else (), 0.0, 0.0, tuple("d" for _ in sets))

    def _made(self, calls: int, masked: bool = False) -> Sample:
        self._masked = masked
        self.samples += 1
        return sample((0, [10 * (i + 1) for i in range(calls)]), wall_ns=1000)


def verified(lane: FakeLane, shape: Shape) -> list[tuple[int, bool]]:
    plan = VerifyPlan.for_shape(shape)
    verify_shape(cast(Lane, lane), shape, plan, Tally(), lambda: None)
    return lane.rows


def test_calls_in_a_row_come_once_more_with_masked_inputs() -> None:
    assert verified(FakeLane(masks=True), SMALL) == [(3, False), (3, True)]
    assert verified(FakeLane(masks=True), LARGE) == [(3, False)]
    assert verified(FakeLane(masks=False), SMALL) == [(3, False)]


def test_who_works_before_its_turn_fails_with_the_reason() -> None:
    with pytest.raises(KernelFault) as caught:
        verified(FakeLane(masks=True, hasty=True), SMALL)
    assert (caught.value.stage, caught.value.kind) == (Stage.VERIFY, FailureKind.MISMATCH)
    assert str(caught.value) == f"C[0, 0] on rank 0 is wrong{MASKED}"
