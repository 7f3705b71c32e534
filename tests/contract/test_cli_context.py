"""`kerneltui context`: what an agent would be told, and nothing that it must not know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "sessions" / "gemm_allgather-cpu.bundle"


def context(*arguments: str, workload: str = "gemm_allgather") -> str:
    before = {path.name for path in (ROOT / "sessions").iterdir()}
    result = subprocess.run(
        [sys.executable, "-m", "kerneltui", "context", f"workloads/{workload}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert {path.name for path in (ROOT / "sessions").iterdir()} == before
    return result.stdout


@pytest.mark.parametrize("agent", ["fast", "slow"])
@pytest.mark.parametrize(
    ("workload", "target"),
    [("gemm_allgather", "cpu"), ("gemm_allgather", "cuda"), ("gemm", "cuda")],
)
def test_a_new_session_tells_the_contract_and_no_hidden_shape(
    agent: str, workload: str, target: str
) -> None:
    text = context("--agent", agent, "--target", target, workload=workload)
    assert "kerneltui_requirements" in text
    assert "tokens in all" in text
    assert '"hidden"' not in text
    assert "193" not in text.split("```toml", 1)[1].split("```", 1)[0]
    assert "MUTANTS: Answers" not in text


def test_the_tools_are_those_of_the_question() -> None:
    fast = context("--target", "cpu", "--agent", "fast")
    assert "──── fast: analyse the seed" in fast
    assert "──── tool describe, about" in fast and "──── tool propose, not to be called" in fast
    slow = context("--session", str(BUNDLE), "--agent", "slow", "--target", "cpu")
    assert "──── tool propose, about" in slow and "──── tool describe, not to be called" in slow


def test_only_what_the_target_has_is_explained() -> None:
    cpu = context("--target", "cpu")
    assert "ld.acquire.sys" not in cpu and "known to be quick" not in cpu
    assert "_mm_sfence" in cpu  # the one way of the CPU is chosen from the begin


def test_a_backend_is_explained_once_it_is_chosen() -> None:
    described = context("--target", "cuda")
    assert "- `lsa`: " in described and "- `copy_engine`: " in described
    assert "ld.acquire.sys" not in described and "cuStreamWaitValue32" not in described
    bundle = ROOT / "sessions" / "gemm_allgather-h200.bundle"
    slow = context("--session", str(bundle), "--agent", "slow", "--target", "cuda")
    shared, chosen = slow.split("## The backend lsa\n\n")
    assert "system 3, cached" in shared and "ld.acquire.sys" in chosen
    assert "cuStreamWaitValue32" not in chosen.split("────")[0]


def test_a_recorded_session_tells_evidence_and_limits() -> None:
    text = context("--session", str(BUNDLE), "--agent", "slow", "--target", "cpu")
    assert "## Evidence" in text
    assert "of the bound" in text
    assert "| shape | bound | limited by | best baseline |" in text


def test_the_record_of_an_evaluation_is_told() -> None:
    bundle = ROOT / "sessions" / "gemm_allgather-h200.bundle"
    text = context("--session", str(bundle), "--agent", "slow", "--target", "cuda")
    record = text.split("## Its record\n\n", 1)[1].split("\n##", 1)[0]
    assert record.startswith("What the compiler made of it (sm_90a):\n- gemm_kernel<")
    took = record.split("Its evaluation took: lint ", 1)[1]
    assert took.index("compile") < took.index("verify") < took.index("screen")
    assert "bulk stores (TMA)" in text and "one store for each tile" in text
    assert "## Handed over by the fast path\n\nLanded at c0001" in text
