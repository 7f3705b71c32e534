"""Every cheat must be refused, for its own reason; every honest kernel must stay green."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kerneltui.evaluation.outcome import Outcome, Update
from kerneltui.evaluation.pipeline import Evaluator
from kerneltui.model.kernel import Kernel, parse_kernel

from .catalogue import CHEATS
from .honest_kernels import HONEST
from .pieces import kernel
from .python_catalogue import PYTHON_CHEATS, PYTHON_HONEST

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def evaluate(
    evaluator: Evaluator, source: str, incumbent: Kernel, file: str = "candidate.cpp"
) -> Outcome:
    seen: list[Update] = []
    return evaluator.evaluate(
        parse_kernel(source, file), incumbent, against="base", report=seen.append
    )


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_refused(
    name: str, evaluator: Evaluator, incumbent: Kernel, workload_folder: Path
) -> None:
    reference = workload_folder / "reference.py"
    before = reference.read_bytes()
    cheat = CHEATS[name]
    outcome = evaluate(evaluator, cheat.source.replace("@REFERENCE@", str(reference)), incumbent)
    assert outcome.measurement is None, f"{name} was measured: {outcome.measurement}"
    assert outcome.failure is not None
    assert outcome.failure.kind in cheat.kinds, outcome.failure
    assert re.search(cheat.reason, outcome.failure.reason), outcome.failure.reason
    assert "\n" not in outcome.failure.reason
    assert reference.read_bytes() == before


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_kernel_is_measured(name: str, evaluator: Evaluator, incumbent: Kernel) -> None:
    outcome = evaluate(evaluator, HONEST[name], incumbent)
    assert outcome.failure is None, outcome.failure
    assert outcome.measurement is not None


def test_what_a_candidate_prints_is_kept_but_decides_nothing(
    evaluator: Evaluator, incumbent: Kernel
) -> None:
    outcome = evaluate(evaluator, CHEATS["C8 answer on stdout"].source, incumbent)
    assert outcome.failure is not None
    assert "Verification: PASS" in outcome.log


def test_a_true_large_speed_up_over_a_slow_parent_is_not_rejected(
    evaluator: Evaluator, incumbent: Kernel
) -> None:
    slow = parse_kernel(
        kernel("honest(s, set, epoch);\nusleep(300000);", includes="#include <unistd.h>"),
        "slow.cpp",
    )
    seen: list[Update] = []
    outcome = evaluator.evaluate(
        parse_kernel(kernel(), "fast.cpp"), slow, against="slow", report=seen.append
    )
    evaluator.yardsticks.set_incumbent(incumbent)
    assert outcome.failure is None, outcome.failure
    assert outcome.measurement is not None
    assert outcome.measurement.geomean.high < -0.5, "its sleep is most of the time"


@pytest.mark.parametrize(
    ("run", "kind", "reason"),
    [
        ("for (;;) {}", "hang", "hung in"),
        ("*(volatile int *)nullptr = 1;", "crash", "SIGSEGV"),
        (
            's->ctx->fail(s->ctx->fail_self, "no such luck"); return 3;',
            "kernel_error",
            "no such luck",
        ),
        ("wait(s, epoch + 1);", "hang", "hung in"),
    ],
    ids=["endless loop", "null pointer", "own error", "deadlock"],
)
def test_a_failing_kernel_is_a_result_and_the_next_evaluation_works(
    run: str, kind: str, reason: str, evaluator: Evaluator, incumbent: Kernel
) -> None:
    outcome = evaluate(evaluator, kernel(run), incumbent)
    assert outcome.failure is not None
    assert outcome.failure.kind == kind, outcome.failure
    assert reason in outcome.failure.reason
    after = evaluate(evaluator, HONEST["H1 plain"], incumbent)
    assert after.failure is None, after.failure


@pytest.mark.parametrize("name", PYTHON_CHEATS)
def test_a_cheat_in_python_is_refused(
    name: str, evaluator: Evaluator, incumbent: Kernel, workload_folder: Path
) -> None:
    cheat = PYTHON_CHEATS[name]
    source = cheat.source.replace("@REFERENCE@", str(workload_folder / "reference.py"))
    outcome = evaluate(evaluator, source, incumbent, "candidate.py")
    assert outcome.measurement is None, f"{name} was measured: {outcome.measurement}"
    assert outcome.failure is not None
    assert outcome.failure.kind in cheat.kinds, outcome.failure
    assert re.search(cheat.reason, outcome.failure.reason), outcome.failure.reason
    assert "\n" not in outcome.failure.reason


@pytest.mark.parametrize("name", PYTHON_HONEST)
def test_an_honest_kernel_in_python_is_measured(
    name: str, evaluator: Evaluator, incumbent: Kernel
) -> None:
    outcome = evaluate(evaluator, PYTHON_HONEST[name], incumbent, "candidate.py")
    assert outcome.failure is None, outcome.failure
    assert outcome.measurement is not None
