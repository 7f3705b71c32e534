"""The probe runs as a kernel, its rates make sense together, and they are kept."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from kerneltui.model.limit import Ceilings
from kerneltui.targets.cpu import ceilings as module
from kerneltui.targets.cpu.ceilings import MeasuredCeilings, Rate, measure_ceilings
from kerneltui.targets.cpu.runtime import CpuTarget
from kerneltui.targets.locks import MachineLock

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def test_ceilings_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Small and few, since only the way is tested here and not the numbers.
    monkeypatch.setattr(module, "_GEMM_SHAPES", ((64, 64, 64), (33, 65, 17)))
    monkeypatch.setattr(module, "_COPY_BYTES", (4096, 99 * 4))
    monkeypatch.setattr(module, "_READ_BYTES", (64 << 10,))
    monkeypatch.setattr(module, "_ROUND_TRIPS", 5)
    monkeypatch.setattr(module, "_SAMPLE_NS", 100_000)
    monkeypatch.setattr(module, "_MOST_SAMPLES", 9)
    monkeypatch.setattr(module, "_SETTLED_SPREAD", 1.0)  # the machine may be busy
    with CpuTarget(tmp_path, lock=MachineLock(tmp_path)) as target:
        measured = measure_ceilings(target, 2)
        rates = (measured.peak, *measured.gemms, *measured.copies, *measured.reads)
        assert [r.what for r in measured.gemms] == ["64x64x64", "33x65x17"]
        assert len(measured.copies) == 4
        assert all(r.best > 0 and 0 <= r.spread < 1 for r in rates)
        assert measured.latency.best > 0
        assert measured.model.peak_flops >= measured.model.flops
        monkeypatch.setattr(module, "_measure", None)  # a second measurement would fail
        assert measure_ceilings(target, 2) == measured
        (stored,) = (tmp_path / "ceilings").glob("*.json")
        stored.write_text("{")
        with pytest.raises(TypeError):  # a damaged record is measured again
            measure_ceilings(target, 2)


def test_a_cache_that_cannot_be_written_is_told_and_costs_no_ceilings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_measure", lambda group, threads: example())
    with CpuTarget(tmp_path, lock=MachineLock(tmp_path)) as target:
        (tmp_path / "ceilings").write_text("")
        told: list[str] = []
        target.notices.listen(lambda notice: told.append(notice.text))
        assert measure_ceilings(target, 2) == example()
    assert [text for text in told if "cannot be written" in text] == told and told


def test_a_call_has_fewer_round_trips_where_a_trip_takes_long() -> None:
    assert module._trips(4_000) == 200
    assert module._trips(4 * 3_000_000) == 16  # 50 ms for trips of 3 ms
    assert module._trips(4 * 3e9) == 1


def example() -> MeasuredCeilings:
    rate = Rate("x", 10.0, 0.1)
    return MeasuredCeilings(
        ranks=2,
        peak=dataclasses.replace(rate, best=5.0),
        gemms=(rate, dataclasses.replace(rate, best=20.0)),
        copies=(rate, dataclasses.replace(rate, best=30.0)),
        reads=(rate,),
        latency=dataclasses.replace(rate, best=40.0),
    )


def test_a_bound_takes_the_best_of_each_kind() -> None:
    assert example().model == Ceilings(
        ranks=2,
        flops=20.0,
        peak_flops=20.0,
        memory_bytes=10.0,
        link_bytes=30.0,
        latency_ns=40.0,
    )


@pytest.mark.parametrize(
    ("peak", "gemm", "settled"), [(0.1, 0.1, True), (0.3, 0.1, False), (0.1, 0.3, False)]
)
def test_ceilings_of_a_busy_machine_are_not_settled(
    peak: float, gemm: float, settled: bool
) -> None:
    measured = dataclasses.replace(
        example(), peak=Rate("x", 5.0, peak), gemms=(Rate("x", 10.0, gemm), Rate("x", 1.0, 0.9))
    )
    assert measured.settled is settled


def test_ceilings_survive_json() -> None:
    data = json.loads(json.dumps(example().to_json()))
    assert MeasuredCeilings.from_json(data) == example()
    with pytest.raises(ValueError, match="format 99"):
        MeasuredCeilings.from_json({**data, "format": 99})
