"""The GPUs of this machine as the management library shows them: what they are, who uses them.

Nothing here makes a CUDA context. Devices are counted as CUDA counts them under `VISIBLE`, in the order
of the bus, which every child process is told to use too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kerneltui.targets.cuda.policy import MachinePolicy
from kerneltui.targets.cuda.telemetry import Telemetry
from kerneltui.targets.cuda.toolchain import arch_of
from kerneltui.targets.errors import TargetError

__all__ = [
    "VISIBLE",
    "DeviceUse",
    "GpuDevice",
    "Gpus",
    "MemoryWatch",
    "device_environment",
]

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable by which the user chooses GPUs."""

_SLACK_BYTES = 256 << 20
_PATIENCE_S = 30.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """What a GPU is: its name, its memory in bytes, compute capability, driver."""

    index: int
    name: str
    memory_bytes: int
    capability: tuple[int, int]
    driver: str

    @property
    def arch(self) -> str:
        """Its architecture as compilers name it, such as "sm_90a"."""
        return arch_of(*self.capability)

    def items(self) -> dict[str, str]:
        """The same as text, for the record of an evaluation."""
        return {
            f"gpu {self.index}": f"{self.name}, {self.memory_bytes >> 20} MiB, {self.arch}",
            "driver": self.driver,
        }


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Who uses a device.

    Attributes:
        used_bytes: Memory in use, by anybody and the driver itself.
        processes: Memory by process; None where the driver does not say how much.
    """

    used_bytes: int
    processes: Mapping[int, int | None]

    @property
    def unaccounted_bytes(self) -> int | None:
        """Memory in use that belongs to no listed process; None if that cannot be known."""
        known = [nbytes for nbytes in self.processes.values() if nbytes is not None]
        if len(known) != len(self.processes):
            return None
        return self.used_bytes - sum(known)


class Gpus:
    """The management library, opened once.

    Raises:
        TargetError: If it is not there, or finds no GPU.
    """

    def __init__(self) -> None:
        try:
            import pynvml  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise TargetError(
                "the CUDA target needs nvidia-ml-py: pip install '.[cuda13]' in kerneltui's folder"
            ) from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            everything = [
                pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())
            ]
            self._handles = _chosen(
                everything, [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in everything]
            )
            self.driver = str(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError as error:
            raise TargetError(f"no GPU to be seen: {error}") from error
        if not self._handles:
            raise TargetError("this machine has no NVIDIA GPU; use --target cpu")

    @property
    def count(self) -> int:
        """Number of GPUs."""
        return len(self._handles)

    def telemetry(self) -> Telemetry:
        """Reads these GPUs."""
        return Telemetry(self._handles, nvml=self._nvml)

    def describe(self, index: int) -> GpuDevice:
        """What a GPU is."""
        handle = self._handles[index]
        major, minor = self._nvml.nvmlDeviceGetCudaComputeCapability(handle)
        return GpuDevice(
            index=index,
            name=str(self._nvml.nvmlDeviceGetName(handle)),
            memory_bytes=int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total),
            capability=(int(major), int(minor)),
            driver=self.driver,
        )

    def identity(self, index: int) -> dict[str, str]:
        """What tells a GPU from others of its model: its id, and the power that it is allowed."""
        handle = self._handles[index]
        try:
            limit = f"{int(self._nvml.nvmlDeviceGetPowerManagementLimit(handle)) / 1e3:g} W"
        except self._nvml.NVMLError:
            limit = "unknown"  # a virtual GPU has none
        return {"uuid": str(self._nvml.nvmlDeviceGetUUID(handle)), "power limit": limit}

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of these GPUs among all of the machine, as nvidia-smi counts them."""
        return tuple(int(self._nvml.nvmlDeviceGetIndex(handle)) for handle in self._handles)

    def use(self, index: int) -> DeviceUse:
        """Who uses a GPU now.

        Raises:
            TargetError: The management library does not tell.
        """
        handle = self._handles[index]
        try:
            listed = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            used = int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)
        except self._nvml.NVMLError as error:
            raise TargetError(f"who uses GPU {index} cannot be told: {error}") from error
        return DeviceUse(
            used_bytes=used,
            processes={
                int(p.pid): None if p.usedGpuMemory is None else int(p.usedGpuMemory)
                for p in listed
            },
        )


class MemoryWatch:
    """Tells whether the processes of a group have left their devices, and their memory with them.

    Args:
        gpus: The management library.
        devices: Which GPUs, as it counts them.
    """

    def __init__(self, gpus: Gpus, devices: Sequence[int]) -> None:
        self._gpus = gpus
        self._idle = {index: gpus.use(index).unaccounted_bytes for index in devices}

    def wait_gone(
        self,
        pids: Collection[int],
        devices: Sequence[int],
        buffers: Sequence[int],
        *,
        patience_s: float | None = None,
    ) -> dict[int, str]:
        """Waits until processes have left the devices.

        Args:
            pids: Which processes.
            devices: Which devices.
            buffers: By device, bytes of the buffers that are shared between processes: the
                management library counts them to none.
            patience_s: How long to wait; 30 s by default.

        Returns:
            What is still there, in words, by device; empty if all is well.
        """
        deadline = time.monotonic() + (_PATIENCE_S if patience_s is None else patience_s)
        while True:
            left = {i: text for i in devices if (text := self._left(i, pids, buffers[i]))}
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(_POLL_S)

    def _left(self, index: int, pids: Collection[int], buffers: int) -> str:
        try:
            use = self._gpus.use(index)
        except TargetError as error:  # a GPU that is lost is not free, and the end goes on
            return str(error)
        here = sorted(use.processes.keys() & set(pids))
        if here:
            return f"processes {', '.join(map(str, here))} are still on it"
        idle, now = self._idle[index], use.unaccounted_bytes
        if idle is not None and now is not None and now > idle + buffers + _SLACK_BYTES:
            more = (now - idle - buffers) >> 20
            return f"{more} MiB are in use that belong to no process"
        return ""


def device_environment(policy: MachinePolicy) -> dict[str, str]:
    """What every process that may use a GPU finds in its environment.

    That is the order of the devices, the user's choice of them, and what the machine's policy sets.
    """
    chosen = os.environ.get(VISIBLE)
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **({} if chosen is None else {VISIBLE: chosen}),
        **policy.environment,
    }


def _chosen(handles: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """The devices that the user's variable names, by number or by the beginning of an id."""
    chosen = os.environ.get(VISIBLE)
    if chosen is None:
        return list(handles)
    found: list[Any] = []
    for word in filter(None, (part.strip() for part in chosen.split(","))):
        places = [i for i, name in enumerate(names) if name.startswith(word)]
        if word.isdigit() and int(word) < len(handles):
            places = [int(word)]
        if len(places) != 1:
            break  # CUDA, too, ends the list at the first name that it does not know
        found.append(handles[places[0]])
    return found
