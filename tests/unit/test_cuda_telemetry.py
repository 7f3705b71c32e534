"""Readings of GPUs, from a management library that is played by a class."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kerneltui.model.reading import GpuReading, decode_readings, encode_readings, rate
from kerneltui.targets.cuda.telemetry import Telemetry
from kerneltui.targets.errors import TargetError

GIB = 1 << 30
NOT_SUPPORTED = 3


class Nvml:
    """Two H200s; what is in `missing` answers that it is not supported."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, *missing: str, fields: dict[int, int] | None = None) -> None:
        self.missing = missing
        self.fields = {83: 5_250_500, 186: 652_400, 74: 40, 271: 2, 138: 1000, 139: 24}
        self.fields |= fields or {}
        self.reasons = 0x1 | 0x4
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetClockInfo": lambda handle, kind: 1980 if kind == 1 else 3201,
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(
                used=3 * GIB, total=141 * GIB
            ),
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=97),
            "nvmlDeviceGetPowerUsage": lambda handle: 600_000,
            "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 7_000,
            "nvmlDeviceGetTemperature": lambda handle, kind: 61,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: self.reasons,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: self.reasons,
            "nvmlDeviceGetFieldValues": self._values,
        }
        if name not in answers or f"no {name}" in self.missing:
            raise AttributeError(name)
        self.asked.append(name)
        if name in self.missing:
            return self._refuse
        return answers[name]

    def _refuse(self, *arguments: object) -> None:
        raise self.NVMLError("Not Supported")

    def _handle(self, index: int) -> str:
        if index > 1:
            raise self.NVMLError("Invalid Argument")
        return f"gpu {index}"

    def _values(self, handle: object, wanted: list[Any]) -> list[SimpleNamespace]:
        found: list[SimpleNamespace] = []
        for item in wanted:
            field = item[0] if isinstance(item, tuple) else item
            known = field in self.fields
            value = SimpleNamespace(ullVal=self.fields.get(field, 0), uiVal=1)
            code = 0 if known else NOT_SUPPORTED
            found.append(SimpleNamespace(fieldId=field, valueType=3, nvmlReturn=code, value=value))
        return found


def read(nvml: Nvml) -> GpuReading:
    return Telemetry([0, 1], nvml=nvml).read()[1]


def test_a_reading_has_everything_in_its_unit() -> None:
    reading = read(Nvml())
    assert (reading.index, reading.sm_clock_mhz, reading.memory_clock_mhz) == (1, 1980, 3201)
    assert (reading.power_w, reading.energy_j) == (652.4, 5250.5)
    assert (reading.memory_used_bytes, reading.memory_total_bytes) == (3 * GIB, 141 * GIB)
    assert (reading.temperature_c, reading.utilisation) == (61, 0.97)
    assert reading.link_bytes == 1024 * 1024
    assert (reading.power_held_ns, reading.heat_held_ns) == (42, None)
    assert reading.at_ns > 0


def test_reasons_have_names_and_idle_is_none() -> None:
    nvml = Nvml()
    assert read(nvml).throttle == ("power cap",)
    nvml.reasons = 0x1
    assert read(nvml).throttle == ()
    nvml.reasons = 0x20 | 0x40 | 0x80
    assert read(nvml).throttle == ("heat", "heat (hardware)", "power brake")


def test_a_binding_that_knows_only_the_older_name_of_the_reasons_is_asked_by_it() -> None:
    nvml = Nvml("no nvmlDeviceGetCurrentClocksEventReasons")
    assert read(nvml).throttle == ("power cap",)
    assert "nvmlDeviceGetCurrentClocksThrottleReasons" in nvml.asked


def test_what_is_not_supported_is_none_and_not_a_number() -> None:
    everything = (
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetFieldValues",
    )
    reading = read(Nvml(*everything))
    assert reading == GpuReading(index=1, at_ns=reading.at_ns)


def test_the_older_calls_stand_in_for_missing_fields() -> None:
    nvml = Nvml("no nvmlDeviceGetFieldValues")
    reading = read(nvml)
    assert (reading.power_w, reading.energy_j, reading.link_bytes) == (600.0, 7.0, None)


def test_heat_is_the_sum_of_both_kinds() -> None:
    assert read(Nvml(fields={269: 5, 270: 7})).heat_held_ns == 12


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(TargetError, match="Invalid Argument"):
        Telemetry([2], nvml=Nvml())


def test_young_readings_are_not_asked_for_again() -> None:
    nvml = Nvml()
    telemetry = Telemetry([0], nvml=nvml)
    first = telemetry.read()
    asked = len(nvml.asked)
    assert telemetry.latest(3600) is first
    assert len(nvml.asked) == asked
    assert telemetry.latest(0) is not first


def test_a_rate_needs_a_counter_that_went_on() -> None:
    def at(ns: int, link: int | None) -> GpuReading:
        return GpuReading(0, ns, link_bytes=link)

    assert rate(at(0, 100), at(500_000_000, 300), "link_bytes") == 400.0
    assert rate(at(0, None), at(1, 300), "link_bytes") is None
    assert rate(at(0, 300), at(1, 100), "link_bytes") is None  # the driver was loaded again
    assert rate(at(1, 100), at(1, 300), "link_bytes") is None


def test_readings_survive_the_way_to_the_terminal() -> None:
    readings = Telemetry([0, 1], nvml=Nvml()).read()
    assert decode_readings(encode_readings(readings)) == readings
    assert decode_readings('[{"index": 0, "at_ns": 1, "from_the_future": 2}]') == ()
    assert decode_readings("what is this") == ()
