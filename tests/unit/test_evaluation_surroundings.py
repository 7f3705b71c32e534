"""Looking around: it only informs, so a library that does not answer fails nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nvml import GIB, FakeNvml

from kerneltui.evaluation import surroundings as module
from kerneltui.evaluation.surroundings import Surroundings
from kerneltui.targets.cuda import runtime
from kerneltui.targets.cuda.runtime import CudaTarget
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.notices import Notice


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml(2)
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(module, "_EVERY_S", 0.0)
    return made


@pytest.fixture
def target(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CudaTarget:
    """The whole target, never started: no driver is asked."""
    monkeypatch.setattr(runtime, "installed_nccl", lambda: None)
    monkeypatch.setattr(runtime, "_toolkit_environment", dict)
    monkeypatch.setattr(runtime.device_memory, "granularity", lambda index: 2 << 20)
    toolchain: Any = SimpleNamespace()
    return CudaTarget(tmp_path, lock=MachineLock(tmp_path), toolchain=toolchain)


def test_a_library_that_does_not_answer_is_told_once_and_fails_nothing(
    target: CudaTarget, nvml: FakeNvml
) -> None:
    heard: list[Notice] = []
    target.notices.listen(heard.append)
    made = Surroundings(target, 2)
    nvml.broken = True
    made.look()
    made.look()
    assert made.found == ()
    (notice,) = heard
    assert "who uses GPU 0 cannot be told: GPU is lost; others on the devices" in notice.text


def test_it_looks_on_when_the_library_answers_again(target: CudaTarget, nvml: FakeNvml) -> None:
    made = Surroundings(target, 2)
    nvml.processes[1] = {4242: GIB}
    nvml.broken = True
    made.begin()
    nvml.broken = False
    made.look()
    (text,) = made.found
    assert text.startswith("process 4242, which is not ours, is on GPU 1")
