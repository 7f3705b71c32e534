"""Memory that a kernel takes: of the whole GPU by its free bytes, and of this process by the driver."""

from __future__ import annotations

import os
import sys

import pytest
from fake_nvml import GIB, FakeNvml

from kerneltui.evaluation.worker_cuda_taken import TakenMemory
from kerneltui.evaluation.worker_kernel import KernelError
from kerneltui.targets.errors import FailureKind

ALLOWED = 16 * GIB


class Gpu:
    """A GPU on which memory is taken."""

    def __init__(self, nvml: FakeNvml) -> None:
        self.nvml = nvml
        self.taken = TakenMemory(0, ALLOWED, self.free)
        self.taken.begin()

    def free(self) -> int:
        return 141 * GIB - self.nvml.nvmlDeviceGetMemoryInfo(0).used

    def take(self, pid: int, nbytes: int) -> None:
        self.nvml.processes[0][pid] = self.nvml.processes[0].get(pid, 0) + nbytes


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    nvml = FakeNvml(1)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml.processes[0] = {os.getpid(): GIB // 2}
    return Gpu(nvml)


def test_what_is_allowed_may_be_taken(gpu: Gpu) -> None:
    gpu.take(os.getpid(), ALLOWED)
    gpu.taken.add("kerneltui_setup")


def test_a_kernel_that_takes_more_is_refused_over_several_calls_too(gpu: Gpu) -> None:
    gpu.take(os.getpid(), 9 * GIB)
    gpu.taken.add("kerneltui_setup")
    gpu.taken.look()
    gpu.take(os.getpid(), 9 * GIB)
    with pytest.raises(
        KernelError, match=r"kerneltui_run took 18432 MiB .* 16384 MiB are allowed$"
    ) as caught:
        gpu.taken.add("kerneltui_run")
    assert caught.value.kind is FailureKind.OUT_OF_MEMORY


def test_what_another_process_takes_meanwhile_is_not_the_kernels(gpu: Gpu) -> None:
    gpu.take(4242, 17 * GIB)
    gpu.taken.add("kerneltui_run")
    gpu.taken.look()
    gpu.take(4242, 17 * GIB)
    gpu.taken.add("kerneltui_run")
    gpu.taken.look()
    gpu.take(os.getpid(), 17 * GIB)
    with pytest.raises(KernelError, match="kerneltui_run took 17920 MiB"):
        gpu.taken.add("kerneltui_run")


@pytest.mark.parametrize("broken", [False, True], ids=["not listed", "no answer"])
def test_where_the_driver_does_not_tell_the_reason_says_so(gpu: Gpu, broken: bool) -> None:
    gpu.nvml.processes[0] = {}
    gpu.taken.begin()
    gpu.nvml.unowned[0] += 17 * GIB
    gpu.nvml.broken = broken
    with pytest.raises(KernelError, match="the driver does not say whether others took it"):
        gpu.taken.add("kerneltui_run")
