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
from kerneltui.targets.processes import is_alive

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

    Attributes:
        driver: Version of the driver.
        why_no_more: That the user's variable names something else than a GPU, where its list ends; or "".

    Raises:
        TargetError: If it is not there, finds no GPU, or none that the user's variable names.
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
            ids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in everything]
            self.driver = str(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError as error:
            raise TargetError(f"no GPU to be seen: {error}") from error
        if not everything:
            raise TargetError("this machine has no NVIDIA GPU; use --target cpu")
        self._handles, unknown = _chosen(everything, ids)
        if not self._handles:
            raise TargetError(_unknown_words(unknown))
        self.why_no_more = _unknown_words(unknown) if unknown else ""

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

    In a container the driver may list nobody. The memory of the judge, too, belongs to no process then, so
    memory tells nothing, and that processes are gone is what /proc says.

    Args:
        gpus: The management library.
        devices: Which GPUs, as it counts them.

    Attributes:
        names_ours: Whether the driver lists processes of ours; None until one was on a GPU for certain.
    """

    def __init__(self, gpus: Gpus, devices: Sequence[int]) -> None:
        self._gpus = gpus
        self._idle = {index: gpus.use(index).unaccounted_bytes for index in devices}
        self.names_ours: bool | None = None

    def know(self, pids: Sequence[int]) -> None:
        """Looks whether the driver lists ranks that are on the first devices for certain."""
        if self.names_ours:
            return
        try:
            listed = [
                self._gpus.use(index).processes.keys() for index in [*self._idle][: len(pids)]
            ]
        except TargetError:  # the end of the group asks again, and tells
            return
        self.names_ours = any(keys & set(pids) for keys in listed)

    def wait_gone(
        self,
        pids: Collection[int],
        devices: Sequence[int],
        buffers: Sequence[int],
        *,
        living: Collection[int] = (),
        patience_s: float | None = None,
    ) -> dict[int, str]:
        """Waits until processes have left the devices.

        Args:
            pids: Which processes.
            devices: Which devices.
            buffers: By device, bytes of the buffers that are shared between processes: the
                management library counts them to none.
            living: Those of the processes that /proc still shows.
            patience_s: How long to wait; 30 s by default.

        Returns:
            What is still there, in words, by device; empty if all is well.
        """
        deadline = time.monotonic() + (_PATIENCE_S if patience_s is None else patience_s)
        while True:
            left = self._left(devices, set(pids), buffers, living)
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(_POLL_S)

    def _left(
        self,
        devices: Sequence[int],
        pids: set[int],
        buffers: Sequence[int],
        living: Collection[int],
    ) -> dict[int, str]:
        left: dict[int, str] = {}
        listed: set[int] = set()
        for index in devices:
            try:
                use = self._gpus.use(index)
            except TargetError as error:  # a GPU that is lost is not free, and the end goes on
                left[index] = str(error)
                continue
            here = use.processes.keys() & pids
            listed |= here
            text = f"processes {_words(here)} are still on it" if here else ""
            if text := text or self._memory_left(use, self._idle[index], buffers[index]):
                left[index] = text
        if listed:
            self.names_ours = True
        nowhere = {pid for pid in living if pid not in listed and is_alive(pid)}
        if nowhere:  # each device of the group may be theirs
            text = f"processes {_words(nowhere)} of its group do not end, and may be on it"
            left = {index: left.get(index, text) for index in devices}
        return left

    def _memory_left(self, use: DeviceUse, idle: int | None, buffers: int) -> str:
        now = use.unaccounted_bytes
        if not self.names_ours or idle is None or now is None:
            return ""
        more = now - idle - buffers
        return (
            f"{more >> 20} MiB are in use that belong to no process" if more > _SLACK_BYTES else ""
        )


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


def _chosen(handles: Sequence[Any], ids: Sequence[str]) -> tuple[list[Any], str]:
    """The devices that the user's variable names, by number or by the beginning of an id.

    CUDA, too, ends the list at the first word that it does not know, which is given beside them.
    """
    chosen = os.environ.get(VISIBLE)
    if chosen is None:
        return list(handles), ""
    found: list[Any] = []
    for word in filter(None, (part.strip() for part in chosen.split(","))):
        places = [i for i, name in enumerate(ids) if name.startswith(word)]
        if word.isdigit() and int(word) < len(handles):
            places = [int(word)]
        if len(places) != 1:
            return found, word
        found.append(handles[places[0]])
    return found, ""


def _unknown_words(word: str) -> str:
    """Why the user's variable names no GPU, or no more GPUs, and what to do."""
    if not word:
        return f"{VISIBLE} is empty, so there is no GPU; unset it, or use --target cpu"
    if word.startswith("MIG-"):
        return f"{VISIBLE} names '{word}': MIG instances are not supported; name a whole GPU"
    return f"{VISIBLE} names '{word}', which is not one GPU of this machine; see nvidia-smi -L"


def _words(pids: Collection[int]) -> str:
    return ", ".join(map(str, sorted(pids)))
