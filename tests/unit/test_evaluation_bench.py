"""Plans, results and summaries of side-by-side runs, without processes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from evaluation_fakes import workload
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.evaluation.bench_plan import BenchPlan, chosen_shapes, gaps, spread_order
from kerneltui.evaluation.bench_result import LaneResult, Mode, ModeTimes, ShapeResult, percentile
from kerneltui.evaluation.bench_summary import summaries
from kerneltui.evaluation.bench_times import served
from kerneltui.evaluation.floors import believed_floor
from kerneltui.evaluation.lane_times import Served
from kerneltui.headless.bench_report import all_summaries, report, shape_table, worst_first
from kerneltui.model.bands import BANDS, band_of
from kerneltui.model.statistics import Verdict
from kerneltui.model.workload import Shape

MS = 1_000_000


def shape(m: int) -> Shape:
    return Shape(f"{m}", {"M": m}, ("bench",), 1)


# -- plans


def test_shapes_for_the_benchmark_are_those_for_tuning_unless_there_are_others():
    names = {part.name for part in chosen_shapes(workload(), None)}
    assert names == {part.name for part in workload().shapes_for("tune")}
    assert len(chosen_shapes(workload(), "all")) == len(workload().shapes)
    assert not chosen_shapes(workload(), "bench")


@given(st.integers(1, 70))
def test_every_beginning_of_the_order_is_spread_over_the_work(count: int):
    ordered = spread_order([shape(m) for m in range(count)])
    assert {part.dimensions["M"] for part in ordered} == set(range(count))
    for length in range(2, count):
        places = sorted(part.dimensions["M"] for part in ordered[:length])
        longest = max(b - a for a, b in pairwise(places))
        assert longest <= 4 * count / length + 1


def test_pauses_are_drawn_once_and_are_the_same_for_all_lanes():
    plan = BenchPlan((), gap_ns=1_000_000, seed=3)
    found = gaps(plan, "64x64x64", 0, 4000)
    assert found == gaps(plan, "64x64x64", 0, 4000)
    assert found != gaps(plan, "64x64x64", 1, 4000)
    assert 0.9e6 < sum(found) / len(found) < 1.1e6
    assert min(found) >= 0 and max(found) <= 20e6


def test_calls_that_take_long_arrive_less_often():
    plan = BenchPlan((), gap_ns=1 * MS, arrivals=200, server_ns=600 * MS, chunks=8)
    assert plan.per_chunk(5_000) * plan.chunks == 192
    assert plan.per_chunk(9 * MS) * plan.chunks == 64
    assert plan.per_chunk(500 * MS) == 2


# -- results


def times(*rounds: Sequence[float], **more: Any) -> ModeTimes:
    return ModeTimes(tuple(tuple(row) for row in rounds), more)


def lane(name: str, value: float, *, baseline: bool = True, favoured: str = "") -> LaneResult:
    rows = [[value * 0.999, value, value * 1.001]] * 4
    return LaneResult(name, baseline, {Mode.OFFLINE: times(*rows)}, favoured=favoured)


def result(name: str = "a", flops: float = 2.0**30, *lanes: LaneResult) -> ShapeResult:
    return ShapeResult(
        shape=name,
        dimensions={"M": 64},
        flops=flops,
        bound_ns=50,
        bound_kind="memory",
        sets=3,
        set_bytes=1 << 20,
        cold=False,
        calls=10,
        lanes=lanes,
        seconds=1.0,
        least_delta=0.01,
        multiprocessors=132,
    )


FAILED = LaneResult("broken", baseline=False, error="is wrong")


def test_the_reference_is_the_fastest_baseline_and_the_plain_one_is_not_favoured():
    found = result(
        "a", 2.0**30, lane("nn", 120), lane("tn", 100, favoured="copied"),
        lane("kernel", 90, baseline=False), FAILED,
    )  # fmt: skip
    best, plain = found.reference(Mode.OFFLINE), found.reference(Mode.OFFLINE, plain=True)
    assert best is not None and plain is not None
    assert (best.name, plain.name) == ("tn", "nn")
    kernel = found.lane("kernel")
    interval = found.interval(kernel, Mode.OFFLINE)
    assert interval is not None
    assert interval.ratio()[0] == pytest.approx(100 / 90)
    assert found.verdict(kernel, Mode.OFFLINE) is Verdict.FASTER
    assert found.verdict(found.lane("nn"), Mode.OFFLINE) is Verdict.SLOWER
    assert found.interval(kernel, Mode.SERVER) is None
    assert found.reference(Mode.SERVER) is None


def test_ratios_come_from_the_rounds_in_which_both_took_part():
    early = LaneResult("nn", True, {Mode.OFFLINE: times([200.0] * 2, [200.0] * 2)})
    reference = LaneResult(
        "tn", True, {Mode.OFFLINE: times(*[[v] * 2 for v in (100.0, 100.0, 50.0, 50.0)])}
    )
    interval = result("a", 1.0, early, reference).interval(early, Mode.OFFLINE)
    assert interval is not None
    assert interval.estimate == pytest.approx(math.log(2))


def test_the_record_is_plain_data_with_all_samples():
    gpu = {"sm_clock_mhz": 1980.0}
    kernel = LaneResult("kernel", False, {Mode.OFFLINE: times([2000.0] * 3, gpu=gpu)})
    base = LaneResult("nn", True, {Mode.OFFLINE: times([4000.0] * 3)}, note={"what": "x"})
    record = json.loads(json.dumps(result("a", 2.0**30, base, kernel, FAILED).to_record()))
    assert record["references"]["offline"] == {"best": "nn", "plain": "nn"}
    row = next(row for row in record["ratios"] if row["name"] == "kernel")
    assert row["ratio"] == 2.0 and row["verdict"] == "FASTER"
    # 2^30 operations in 2 us at 1.98 GHz on 132 SMs
    assert row["flop_per_clock_sm"] == pytest.approx(2**30 / (2e-6 * 1.98e9 * 132), rel=1e-3)
    lanes = {part["name"]: part for part in record["lanes"]}
    assert lanes["kernel"]["modes"]["offline"]["rounds_ns"] == [[2000, 2000, 2000]]
    assert lanes["broken"]["error"] == "is wrong"


def test_a_result_comes_back_from_its_record():
    whole = result(
        "a", 2.0**30, lane("nn", 120), lane("tn", 100, favoured="copied"),
        lane("kernel", 90, baseline=False), FAILED,
    )  # fmt: skip
    record = json.loads(json.dumps(whole.to_record()))
    assert ShapeResult.from_record(record).to_record() == record


def test_percentiles_are_values_that_occurred():
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([1, 2, 3, 4], 0.99) == 4
    assert percentile([5], 0.01) == 5


def test_a_single_sample_has_a_ratio_and_no_interval_or_verdict():
    sustained = {Mode.SUSTAINED: times([100.0])}
    kernel = LaneResult("kernel", False, {Mode.SUSTAINED: times([80.0])})
    found = result("a", 2.0**30, LaneResult("nn", True, sustained), kernel)
    assert found.interval(kernel, Mode.SUSTAINED) is None
    assert found.verdict(kernel, Mode.SUSTAINED) is None
    assert found.ratio(kernel, Mode.SUSTAINED) == pytest.approx(1.25)
    assert "1.250x" in shape_table(found)


def test_times_that_cannot_be_are_doubted():
    results = result("a", 2.0**30, lane("nn", 100), lane("kernel", 30, baseline=False))
    kernel = results.lane("kernel")
    assert not results.doubt(kernel, Mode.OFFLINE)
    assert "at its peak" in replace(results, floor_ns=31).doubt(kernel, Mode.OFFLINE)
    text = replace(results, library_factor=3.0).doubt(kernel, Mode.OFFLINE)
    assert "more than 3 times as fast" in text
    assert not replace(results, floor_ns=200).doubt(results.lane("nn"), Mode.OFFLINE)


def test_a_library_that_waits_for_the_host_is_no_measure_of_what_can_be():
    def lanes(share: float) -> ShapeResult:
        library = replace(times([100.0]), more={"enqueueing": share})
        found = result(
            "a",
            2.0**30,
            LaneResult("nn", True, {Mode.SUSTAINED: library}),
            LaneResult("kernel", False, {Mode.SUSTAINED: times([30.0])}),
        )
        return replace(found, library_factor=3.0)

    waits, busy = lanes(0.97), lanes(0.4)
    assert "QUAR" in busy.doubt(busy.lane("kernel"), Mode.SUSTAINED)
    assert not waits.doubt(waits.lane("kernel"), Mode.SUSTAINED)
    assert "host-bound" in shape_table(waits)
    assert "host-bound" not in shape_table(busy)


@pytest.mark.parametrize(("share", "label"), [(0.5, True), (0.125, False), (None, False)])
def test_calls_after_pauses_that_wait_for_the_device_are_labelled(share: float | None, label: bool):
    more = {} if share is None else {"unheld": share}
    library = LaneResult("nn", True, {Mode.SERVER: ModeTimes(((100.0,),) * 8, more)})
    kernel = LaneResult("kernel", False, {Mode.SERVER: times(*[[30.0]] * 8)})
    found = replace(result("a", 2.0**30, library, kernel), library_factor=3.0)
    assert ("host-bound" in shape_table(found)) is label
    assert ("QUAR" in found.doubt(kernel, Mode.SERVER)) is not label
    rows = {row["name"]: row for row in found.to_record()["ratios"]}
    assert rows["nn"].get("host_bound", False) is label
    assert "host_bound" not in rows["kernel"]


def test_calls_of_any_rank_that_could_not_be_held_back_are_remembered():
    ranks = [{"launch_ns": [1], "latency_ns": [5], "device_ns": [7 + rank]} for rank in range(2)]
    held = Served.of(ranks)
    assert held == Served((1,), (5,), (8,))
    unheld = Served.of([ranks[0], {**ranks[1], "unheld": True}])
    assert unheld == replace(held, unheld=True)
    assert "unheld" not in served([held, held], evicted=True).more
    found = served([held, unheld, unheld, unheld], evicted=True)
    assert found.more["unheld"] == 0.75 and found.host_bound
    assert not served([held, held, unheld], evicted=True).host_bound


def test_a_library_that_is_faster_than_the_peak_lowers_the_floor():
    assert believed_floor(100, None) == 100
    assert believed_floor(100, 50.0) == 40
    assert believed_floor(100, 1000.0) == 100
    fast = LaneResult("nn", True, {Mode.SERVER: times([300.0]), Mode.WARM: times([99.0, 90.0])})
    kernel = lane("kernel", 10, baseline=False)
    assert result("a", 1.0, lane("tn", 100), fast, kernel, FAILED).fastest_ns == 90
    assert result("a", 1.0, kernel).fastest_ns is None


def test_a_shape_that_was_left_out_is_in_no_number_and_says_why():
    left_out = replace(result("big", 2.0**41), left_out="the judge: no room")
    assert shape_table(left_out) == "big: left out: the judge: no room"
    measured = result("a", 2.0**30, lane("nn", 100), lane("kernel", 50, baseline=False))
    both = [measured, left_out]
    rows = all_summaries(both, ["kernel"])
    assert [(row.band, row.shapes, row.failed) for row in rows] == [
        ("2^29-33 FLOP", 1, 0),
        ("all", 1, 0),
    ]
    assert "big: the judge: no room" in report(both, ["kernel"], rows)
    assert "left out" not in report([measured], ["kernel"], rows)
    assert ShapeResult.from_record(left_out.to_record()) == left_out


# -- bands


@given(st.floats(1.0, 2.0**60))
def test_every_problem_is_in_one_band(flops: float):
    band = band_of(flops)
    assert band in BANDS
    assert band.low is None or flops >= 2.0**band.low
    assert band.high is None or flops < 2.0**band.high


def test_bands_touch():
    assert [band.high for band in BANDS[:-1]] == [band.low for band in BANDS[1:]]
    assert BANDS[0].name == "< 2^25 FLOP" and BANDS[-1].name == ">= 2^40 FLOP"


def some_results() -> list[ShapeResult]:
    kernel = lambda value: lane("kernel", value, baseline=False)  # noqa: E731
    return [
        result("small", 2.0**20, lane("nn", 100), kernel(50)),
        result("middle", 2.0**30, lane("nn", 100), kernel(200)),
        result("also", 2.0**31, lane("nn", 100), kernel(100)),
        result("large", 2.0**41, lane("nn", 100), FAILED, LaneResult("kernel", False, error="x")),
    ]


def test_summaries_count_wins_losses_and_failures_by_band():
    rows = {row.band: row for row in summaries(some_results(), "kernel", Mode.OFFLINE)}
    assert list(rows) == ["< 2^25 FLOP", "2^29-33 FLOP", ">= 2^40 FLOP", "all"]
    middle = rows["2^29-33 FLOP"]
    assert (middle.wins, middle.losses, middle.unclear) == (0, 1, 1)
    assert middle.geomean is not None
    assert middle.geomean.ratio()[0] == pytest.approx(math.sqrt(0.5), rel=1e-3)
    assert rows[">= 2^40 FLOP"].failed == 1 and rows[">= 2^40 FLOP"].geomean is None
    whole = rows["all"]
    assert (whole.shapes, whole.failed, whole.wins, whole.losses) == (4, 1, 1, 1)
    assert whole.weighted == pytest.approx(300 / 350, abs=1e-3)
    assert json.dumps([row.to_record() for row in rows.values()])


def test_the_report_says_the_worst_first_and_why_others_have_no_times():
    results = some_results()
    text = report(results, ["kernel"], all_summaries(results, ["kernel"]))
    assert "offline: ratio to the best baseline" in text
    assert "server" not in text
    lines = worst_first(results, "kernel")
    assert "large: no times: x" in lines[0] and "middle: 0.500x" in lines[1]
    table = shape_table(results[3])
    assert "FAIL" in table and "best baseline" in table
    short = replace(results[0], calls=480, lanes=(lane("nn", 2_000), lane("tn", 1_000)))
    assert "480 calls a sample (0.48 ms at least), " in shape_table(short)
