"""The test of a workload: a machine that is too small is no fault of the workload."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from evaluation_fakes import WORKLOAD_FOLDER
from fake_nvml import FakeNvml

from kerneltui.evaluation.judge_client import JudgeFailure
from kerneltui.evaluation.workload_test import run_workload_test
from kerneltui.model.workload_file import load_workload
from kerneltui.targets.cuda import runtime
from kerneltui.targets.cuda.runtime import CudaTarget
from kerneltui.targets.errors import ServerFailure
from kerneltui.targets.locks import MachineLock


class Judge:
    """It works on as many devices as the workload has ranks."""

    hello: dict[str, int] = {"version": 1}  # noqa: RUF012 - as in the judge's client

    def self_test(self) -> NoReturn:
        raise JudgeFailure("the judge: DriverError: invalid device ordinal")


def test_too_few_gpus_are_told_before_the_judge_asks_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(1))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(runtime, "installed_nccl", lambda: None)
    monkeypatch.setattr(runtime, "_toolkit_environment", dict)
    monkeypatch.setattr(runtime.device_memory, "granularity", lambda index: 2 << 20)
    toolchain: Any = SimpleNamespace()
    workload = load_workload(WORKLOAD_FOLDER, "cuda")
    target = CudaTarget(tmp_path, lock=MachineLock(tmp_path), toolchain=toolchain)
    stand: Any = SimpleNamespace(workload=workload, judge=Judge(), target=target)
    ranks = max(shape.ranks for shape in workload.shapes)
    with pytest.raises(ServerFailure, match=f"{ranks} ranks need {ranks} GPUs, there are 1"):
        run_workload_test(stand, workload.targets["cuda"], tmp_path)
