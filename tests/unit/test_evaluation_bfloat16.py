"""The workload as it is on GPUs, judged on this processor: bf16 with sums in float32."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from evaluation_fakes import WORKLOAD_FOLDER

from kerneltui.evaluation.judge_client import JudgeClient


def test_wrong_answers_are_refused_and_right_ones_pass() -> None:
    client = JudgeClient(WORKLOAD_FOLDER, 1, "cuda")
    client.start()
    try:
        client.wait()
        rows = client.self_test()
    finally:
        client.close()
    assert {row["kind"] for row in rows} == {"lint", "honest", "mutant"}
    assert [row for row in rows if not row["ok"]] == []
