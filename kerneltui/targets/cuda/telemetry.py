"""Clocks, power, heat and links of the GPUs, by the management library; nothing is ever changed.

Field numbers and their units are those of NVML's header, nvml.h ("Field Value Enums"): energy in
millijoules, power in milliwatts, times for which something held the clock down in nanoseconds, data over
the links in KiB. A field that a driver or a GPU does not have is left out of the reading.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kerneltui.model.reading import GpuReading
from kerneltui.targets.errors import TargetError

__all__ = ["GpuReading", "Telemetry"]

T = TypeVar("T")

_ENERGY, _POWER_NOW, _LINK_SENT, _LINK_RECEIVED = 83, 186, 138, 139
_HELD_BY_POWER, _HELD_BY_BRAKE = 74, 271
_HELD_BY_HEAT, _HELD_BY_HEAT_HARDWARE = 269, 270
_ALL_LINKS = 0xFFFFFFFF
_FIELDS: tuple[int | tuple[int, int], ...] = (
    _ENERGY,
    _POWER_NOW,
    _HELD_BY_POWER,
    _HELD_BY_BRAKE,
    _HELD_BY_HEAT,
    _HELD_BY_HEAT_HARDWARE,
    (_LINK_SENT, _ALL_LINKS),
    (_LINK_RECEIVED, _ALL_LINKS),
)
_IDLE = 0x1
_REASONS = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
    0x100: "display clock",
    0x200: "board limit",
    0x400: "reliability",
}
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


class Telemetry:
    """Reads GPUs. Safe to use from several threads; a reading takes about a millisecond.

    Args:
        gpus: Which GPUs: their numbers in the management library, or its handles; the first one is
            GPU 0 of the readings.
        nvml: The management library; the installed one by default.

    Raises:
        TargetError: If the management library is not there, or does not know a GPU.
    """

    def __init__(self, gpus: Sequence[Any], *, nvml: Any = None) -> None:
        self._nvml: Any = nvml or _library()
        self._lock = threading.Lock()
        self._latest: tuple[GpuReading, ...] = ()
        try:
            self._nvml.nvmlInit()
            self._handles = [
                self._nvml.nvmlDeviceGetHandleByIndex(gpu) if isinstance(gpu, int) else gpu
                for gpu in gpus
            ]
        except self._nvml.NVMLError as error:
            raise TargetError(f"no GPU to be read: {error}") from error

    def read(self) -> tuple[GpuReading, ...]:
        """Reads every GPU now, in their order."""
        found = tuple(self._one(index, handle) for index, handle in enumerate(self._handles))
        with self._lock:
            self._latest = found
        return found

    def latest(self, oldest_s: float) -> tuple[GpuReading, ...]:
        """The last readings if they are young enough, else new ones.

        While somebody else reads, as the timing of a candidate does, nothing is asked a second time.

        Args:
            oldest_s: How old they may be.
        """
        with self._lock:
            found = self._latest
        if found and time.monotonic_ns() - found[0].at_ns < oldest_s * 1e9:
            return found
        return self.read()

    def _one(self, index: int, handle: Any) -> GpuReading:
        nvml = self._nvml
        at_ns = time.monotonic_ns()
        fields = self._fields(handle)
        memory = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        rates = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        power = fields.get(_POWER_NOW)
        if power is None:
            power = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        energy = fields.get(_ENERGY)
        if energy is None:
            energy = self._ask(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        links = _sum(fields.get(_LINK_SENT), fields.get(_LINK_RECEIVED))
        return GpuReading(
            index=index,
            at_ns=at_ns,
            sm_clock_mhz=self._ask(
                lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
            ),
            memory_clock_mhz=self._ask(
                lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
            ),
            power_w=None if power is None else power / 1e3,
            energy_j=None if energy is None else energy / 1e3,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            temperature_c=self._ask(
                lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
            utilisation=None if rates is None else int(rates.gpu) / 100,
            throttle=self._ask(lambda: _reasons(nvml, handle)),
            link_bytes=None if links is None else links * 1024,
            power_held_ns=_sum(fields.get(_HELD_BY_POWER), fields.get(_HELD_BY_BRAKE)),
            heat_held_ns=_sum(fields.get(_HELD_BY_HEAT), fields.get(_HELD_BY_HEAT_HARDWARE)),
        )

    def _fields(self, handle: Any) -> dict[int, int]:
        """Those of the fields that this GPU has; one call for all."""
        values = self._ask(lambda: self._nvml.nvmlDeviceGetFieldValues(handle, list(_FIELDS)))
        found: dict[int, int] = {}
        for value in values or ():
            member = _MEMBERS.get(int(value.valueType))
            if int(value.nvmlReturn) == 0 and member is not None:
                found[int(value.fieldId)] = int(getattr(value.value, member))
        return found

    def _ask(self, question: Callable[[], T]) -> T | None:
        """An answer, or None where the GPU, the driver or the binding has none."""
        try:
            return question()
        except (self._nvml.NVMLError, AttributeError):
            return None


def _library() -> Any:
    try:
        import pynvml  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise TargetError(
            "readings of GPUs need nvidia-ml-py: pip install '.[cuda13]' in kerneltui's folder"
        ) from error
    return pynvml


def _reasons(nvml: Any, handle: Any) -> tuple[str, ...]:
    """Why the clock is low, by name; drivers before 535 know the call by its older name."""
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    ask = ask or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    bits = int(ask(handle)) & ~_IDLE
    return tuple(name for bit, name in _REASONS.items() if bits & bit)


def _sum(*parts: int | None) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None
