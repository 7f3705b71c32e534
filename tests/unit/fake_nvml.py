"""The management library of GPUs, played: tests say who is on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


class NVMLError(Exception):
    """What the library raises."""


class FakeNvml:
    """GPUs with processes; stands in for the module `pynvml`.

    Attributes:
        processes: By GPU, memory by process.
        unowned: By GPU, memory that belongs to no process.
        power_w: By GPU, the limit of its power.
        uuids: By GPU.
        broken: True if nobody can be asked.
    """

    NVMLError = NVMLError

    def __init__(self, count: int = 2) -> None:
        self.processes: list[dict[int, int]] = [{} for _ in range(count)]
        self.unowned = [GIB // 2] * count
        self.power_w = [700] * count
        self.uuids = [f"GPU-{index:04}" for index in range(count)]
        self.broken = False

    def nvmlInit(self) -> None:
        """There is nothing to open."""

    def nvmlDeviceGetCount(self) -> int:
        return len(self.processes)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return self.uuids[handle]

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return 9, 0

    def nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:
        return self.power_w[handle] * 1000

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        used = self.unowned[handle] + sum(self.processes[handle].values())
        return SimpleNamespace(total=141 * GIB, used=used)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        if self.broken:
            raise NVMLError("GPU is lost")
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=nbytes)
            for pid, nbytes in self.processes[handle].items()
        ]
