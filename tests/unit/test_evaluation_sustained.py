"""Calls without a pause: how many are made, and what is said of the GPUs meanwhile."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kerneltui.evaluation.lane import Lane
from kerneltui.evaluation.lane_times import Sustained
from kerneltui.evaluation.sustained import sustain
from kerneltui.model.reading import GpuReading


class Gpus:
    """Three GPUs whose energy grows by 10, 20 and 40 J in a second; the second one's clock falls."""

    def __init__(self, *, counts: bool = True) -> None:
        self.taken = 0
        self._counts = counts

    def readings(self, oldest_s: float = 0.0) -> tuple[GpuReading, ...]:
        at = self.taken
        self.taken += 1
        return tuple(
            GpuReading(
                index=i,
                at_ns=at * 1_000_000_000,
                sm_clock_mhz=1980 - (100 * min(at, 2) if i == 1 else 0),
                power_w=100.0 * (i + 1),
                energy_j=10.0 * 2**i * at if self._counts else None,
                temperature_c=40 + i,
                throttle=("power cap",) if i == 1 and at >= 2 else (),
            )
            for i in range(3)
        )


class Calls:
    """A lane of two ranks whose calls take a while each; all together go on for some readings."""

    def __init__(self, call_ns: int = 2_000_000, gpus: Gpus | None = None) -> None:
        self.group = SimpleNamespace(ranks=2)
        self.call_ns = call_ns
        self.gpus = gpus
        self.asked: list[Any] = []

    def sustain(self, calls: int, chunk: int, limit_s: float) -> Sustained:
        self.asked.append((calls, chunk, limit_s))
        end = time.monotonic() + 20
        while self.gpus is not None and len(self.asked) > 1 and self.gpus.taken < 8:
            assert time.monotonic() < end, "the GPUs are not read"
            time.sleep(0.01)
        return Sustained(calls * self.call_ns, calls * 500_000)


@pytest.mark.parametrize("call_ns", [500_000, 4_000_000])
def test_as_many_calls_as_that_time_needs_in_chunks_of_two_milliseconds_of_bursts(call_ns: int):
    lane = Calls(call_ns)  # with 4 ms the host is slower than the device
    sustain(cast(Lane, lane), Gpus(), 0.5, 500_000.0)
    (probed, _, _), (calls, chunk, limit_s) = lane.asked
    assert 0.5e9 <= calls * call_ns <= 0.55e9
    assert probed == 16 and chunk == 4
    assert limit_s > 0.5


def test_the_state_is_that_of_the_lanes_gpus_at_the_end():
    gpus = Gpus()
    found = sustain(cast(Lane, Calls(gpus=gpus)), gpus, 0.5, 500_000.0)
    gpu = found.more["gpu"]
    assert found.time_ns == pytest.approx(2e6)
    assert found.more["seconds"] == pytest.approx(0.526)
    assert found.more["enqueueing"] == 0.25
    assert gpu["sm_clock_mhz"] == 1780.0  # of the slower one of the two
    assert gpu["power_w"] == 30.0  # the counters of both; the third GPU has no rank
    assert gpu["energy_j"] == pytest.approx(30.0 * 2e-3)
    assert gpu["temperature_c"] == 41
    assert gpu["held"] == {"power cap": gpu["readings"]}


def test_without_counters_the_power_is_that_of_the_readings():
    gpus = Gpus(counts=False)
    found = sustain(cast(Lane, Calls(gpus=gpus)), gpus, 0.5, 500_000.0)
    assert found.more["gpu"]["power_w"] == 300.0


def test_a_machine_that_reads_nothing_has_a_time_alone():
    silent = SimpleNamespace(readings=lambda oldest_s=0.0: ())
    assert "gpu" not in sustain(cast(Lane, Calls()), silent, 0.5, 500_000.0).more
