"""Faults of the harness are told from faults of a kernel, and the next evaluation works."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from kerneltui.evaluation.bench_plan import BenchPlan, chosen_shapes
from kerneltui.evaluation.bench_result import Mode
from kerneltui.evaluation.outcome import Interrupted, KernelFault, Outcome, Step, Update
from kerneltui.evaluation.pipeline import Evaluator
from kerneltui.model.kernel import Kernel, parse_kernel
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.targets.errors import RankFailure

from .catalogue import CHEATS
from .pieces import kernel

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def honest(evaluator: Evaluator, incumbent: Kernel) -> Outcome:
    return evaluator.evaluate(
        parse_kernel(kernel(), "plain.cpp"), incumbent, against="base", report=lambda update: None
    )


def test_an_interrupted_evaluation_says_so_and_leaves_no_process(
    evaluator: Evaluator, incumbent: Kernel
) -> None:
    hangs = parse_kernel(kernel("for (;;) {}"), "hangs.cpp")
    pids: list[int] = []

    def stop() -> None:
        time.sleep(0.5)
        for lane in evaluator.stand.lanes:
            if lane.group.role == "candidate":
                pids.extend(lane.group.pids)
        evaluator.interrupt()

    def report(update: Update) -> None:
        if isinstance(update, Step) and update.stage is Stage.VERIFY and not stopper.ident:
            stopper.start()

    stopper = threading.Thread(target=stop)
    with pytest.raises(Interrupted):
        evaluator.evaluate(hangs, incumbent, against="base", report=report)
    stopper.join()
    assert pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert honest(evaluator, incumbent).failure is None


def test_an_incumbent_that_dies_is_no_fault_of_the_candidate(
    evaluator: Evaluator, incumbent: Kernel
) -> None:
    assert honest(evaluator, incumbent).failure is None
    yard = next(iter(evaluator.yardsticks.by_shape.values()))
    os.kill(yard.incumbent.group.pids[0], signal.SIGKILL)
    outcome = honest(evaluator, incumbent)
    assert outcome.failure is not None
    assert outcome.failure.kind is FailureKind.HARNESS_FAULT
    assert "the incumbent failed" in outcome.failure.reason
    assert honest(evaluator, incumbent).failure is None


def test_a_reference_that_dies_is_opened_again(evaluator: Evaluator, incumbent: Kernel) -> None:
    assert honest(evaluator, incumbent).failure is None
    yard = next(iter(evaluator.yardsticks.by_shape.values()))
    dead = yard.reference
    os.kill(dead.group.pids[0], signal.SIGKILL)
    with pytest.raises(RankFailure):
        dead.setup(yard.shape, yard.sets)  # found out beside all timing
    assert honest(evaluator, incumbent).failure is None
    assert yard.reference is not dead and dead not in evaluator.stand.lanes


def test_an_incumbent_that_cannot_be_set_up_leaves_no_group_behind(
    evaluator: Evaluator, incumbent: Kernel
) -> None:
    assert honest(evaluator, incumbent).failure is None
    before = len(evaluator.stand.lanes)
    head = "void **state) {"
    text = kernel()
    assert head in text
    text = text.replace(head, head + " if (ctx) return 5;", 1)
    broken = parse_kernel(text, "refuses.cpp")
    for _ in range(2):
        outcome = honest(evaluator, broken)
        assert outcome.failure is not None
        assert outcome.failure.kind is FailureKind.HARNESS_FAULT
        assert len(evaluator.stand.lanes) == before
    assert honest(evaluator, incumbent).failure is None


def test_samples_are_as_long_as_the_incumbent_needs_them(
    evaluator: Evaluator, incumbent: Kernel
) -> None:
    yard = next(iter(evaluator.yardsticks.by_shape.values()))
    fast = parse_kernel(kernel(), "plain.cpp")
    sleeps = kernel("honest(s, set, epoch);\nusleep(40000);", includes="#include <unistd.h>")
    for number, made in enumerate((fast, parse_kernel(sleeps, "slow.cpp"), fast)):
        evaluator.yardsticks.set_incumbent(made)
        slow = number == 1
        assert (yard.call_ns > 40e6) is slow
        wanted = 1 if slow else math.ceil(evaluator.stand.protocol.sample_ns / yard.call_ns)
        assert yard.calls == min(wanted, yard.sets)
        assert yard.incumbent.sets == yard.reference.sets == yard.sets
    assert honest(evaluator, incumbent).failure is None


def test_a_judge_that_dies_is_started_again(evaluator: Evaluator, incumbent: Kernel) -> None:
    assert honest(evaluator, incumbent).failure is None
    os.kill(evaluator.stand.judge.pid, signal.SIGKILL)
    outcome = honest(evaluator, incumbent)
    assert outcome.failure is not None
    assert outcome.failure.kind is FailureKind.HARNESS_FAULT
    assert "judge is gone" in outcome.failure.reason
    assert honest(evaluator, incumbent).failure is None


def test_a_compiler_error_is_one_line_and_keeps_its_log(
    evaluator: Evaluator, incumbent: Kernel
) -> None:
    broken = parse_kernel(kernel("this is no C++;"), "broken.cpp")
    outcome = evaluator.evaluate(broken, incumbent, against="base", report=lambda update: None)
    assert outcome.failure is not None
    assert outcome.failure.kind is FailureKind.COMPILE_ERROR
    assert "\n" not in outcome.failure.reason
    assert "error" in outcome.log


def test_a_measured_candidate_has_a_record_with_rounds_and_seeds(
    evaluator: Evaluator, incumbent: Kernel
) -> None:
    outcome = honest(evaluator, incumbent)
    assert outcome.measurement is not None
    assert outcome.record["rounds"][0]["candidate"]
    assert any("secret" in row for row in outcome.record["seeds"])
    assert outcome.record["verify"].endswith("of the tolerance")


def test_launches_that_cannot_be_told_are_no_fault_of_a_candidate(
    evaluator: Evaluator, incumbent: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine asks as on a GPU, after all timing; the ranks of a CPU cannot answer."""
    toolchain = evaluator.stand.target.toolchain
    told = lambda answer, multiprocessors: {}  # noqa: E731
    monkeypatch.setattr(toolchain, "launch_record", told, raising=False)
    outcome = honest(evaluator, incumbent)
    assert outcome.failure is None and outcome.measurement is not None
    assert outcome.record["codegen"]["launches"] == []
    assert "launches are those of GPUs" in outcome.record["codegen"]["unread"]
    assert "2 shapes" in evaluator.verify(parse_kernel(kernel(), "plain.cpp"), lambda update: None)


def test_verification_alone_tells_right_from_wrong(evaluator: Evaluator) -> None:
    note = evaluator.verify(parse_kernel(kernel(), "plain.cpp"), lambda update: None)
    assert "2 shapes" in note
    with pytest.raises(KernelFault):
        evaluator.verify(parse_kernel(CHEATS["A2 zeros"].source, "zeros.cpp"), lambda update: None)


def test_a_side_by_side_run_has_a_row_for_everything(evaluator: Evaluator) -> None:
    kernels = {
        "plain": parse_kernel(kernel(), "plain.cpp"),
        "zeros": parse_kernel(CHEATS["A2 zeros"].source, "zeros.cpp"),
    }
    plan = BenchPlan(
        chosen_shapes(evaluator.workload, "tune"),
        server=True,
        rounds=3,
        gap_ns=100_000,
        arrivals=32,
    )
    (result,) = evaluator.bench(kernels, plan, lambda text: None)
    lanes = {lane.name: lane for lane in result.lanes}
    assert set(lanes) == {"torch_gloo", "host", "plain", "zeros"}
    assert "is wrong" in lanes["zeros"].error
    assert not lanes["zeros"].modes
    for mode in (Mode.OFFLINE, Mode.SERVER):
        assert lanes["plain"].modes[mode].time_ns > 0
        reference = result.reference(mode)
        assert reference is not None and reference.name in {"torch_gloo", "host"}
        interval = result.interval(reference, mode)
        assert interval is not None and interval.estimate == 0.0
    assert lanes["plain"].modes[Mode.SERVER].more["arrivals"] == 32
