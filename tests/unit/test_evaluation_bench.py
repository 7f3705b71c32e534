"""Plans, results and summaries of side-by-side runs, and how lanes are timed in turn, without processes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from evaluation_fakes import sample, workload
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.evaluation.bench_modes import Timed, Track
from kerneltui.evaluation.bench_plan import BenchPlan, chosen_shapes, gaps, spread_order
from kerneltui.evaluation.bench_result import LaneResult, Mode, ModeTimes, ShapeResult, percentile
from kerneltui.evaluation.bench_summary import summaries
from kerneltui.evaluation.lane import Lane
from kerneltui.evaluation.lane_times import Served, Sustained
from kerneltui.evaluation.stand import Stand
from kerneltui.evaluation.timing import TimingProtocol
from kerneltui.evaluation.values import Fault, FaultKind, Report
from kerneltui.headless.bench_file import BenchFile
from kerneltui.headless.bench_report import all_summaries, report, shape_table, worst_first
from kerneltui.model.bands import BANDS, band_of
from kerneltui.model.errors import UserError
from kerneltui.model.statistics import Verdict
from kerneltui.model.workload import Shape
from kerneltui.targets.errors import FailureKind, RankFailure

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


def bench_file(path: Path, **head: Any) -> BenchFile:
    names = ("schema", "workload", "definition", "target", "kernels", "plan")
    return BenchFile(path, {**dict.fromkeys(names, 1), "kernels": {"k": "1"}, **head})


def test_a_run_goes_on_with_its_file(tmp_path: Path):
    path = tmp_path / "new" / "bench.json"
    first = bench_file(path)
    first.check()
    first.go_on()
    assert not first.measured
    first.begin()["environment"] = {"gpu": "one"}
    first.add(result("a", 2.0**30, lane("nn", 100)))
    second = bench_file(path)
    second.go_on()
    second.begin()
    second.add(result("b", 2.0**30, lane("nn", 100)))
    third = bench_file(path)
    third.go_on()
    assert [(part, found.shape) for part, found in third.results] == [(0, "a"), (1, "b")]
    assert third.parts[0]["environment"] == {"gpu": "one"}
    assert [file.name for file in path.parent.iterdir()] == ["bench.json"]


def test_a_file_of_another_run_or_of_none_is_refused(tmp_path: Path):
    path = tmp_path / "bench.json"
    other = bench_file(path, kernels={"k": "2"})
    other.begin()
    other.write()
    with pytest.raises(UserError, match="another run \\(other kernels\\)"):
        bench_file(path).go_on()
    path.write_text("{")
    with pytest.raises(UserError, match="is no file of a benchmark"):
        bench_file(path).go_on()
    path.write_text("[]")
    with pytest.raises(UserError, match="another run \\(other schema\\)"):
        bench_file(path).go_on()
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        bench_file(blocked / "bench.json").check()


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


# -- timing in turn


class FakeLane:
    """A lane whose calls take a fixed time."""

    def __init__(self, call_ns: float, *, choices: Sequence[float] = ()) -> None:
        self.call_ns = call_ns
        self.choices = choices
        self.sets = 4
        self.enqueues = False
        self.broken_after: int | None = None
        self.wrong = False
        self.samples: list[dict[str, Any]] = []
        self.filled: list[int] = []
        self.ever_filled: set[int] = set()
        self.sustained = 0
        self.latency_ns = 0.0
        self.room = 10**9  # calls that a gate can hold back
        self.group = SimpleNamespace(facts={"choices": len(choices)}, pids=(), ranks=1)

    def next_sets(self, calls: int) -> list[int]:
        return list(range(min(calls, self.sets)))

    def fill(self, sets: Sequence[int]) -> None:
        self.filled = [*sets]
        self.ever_filled |= set(sets)

    def choose(self, index: int) -> None:
        self.call_ns = self.choices[index]

    def check(self, sets: Sequence[int]) -> Report:
        assert set(sets) <= set(self.filled)
        faults = (Fault(FaultKind.VALUE, 0, 0, "C[0] is wrong"),) if self.wrong else ()
        return Report(faults=faults, error=0.0, library_share=0.0, digests=())

    def sample(self, calls: int, **how: Any) -> Any:
        if self.broken_after is not None and len(self.samples) >= self.broken_after:
            raise RankFailure(FailureKind.CRASH, 0, "it crashed")
        self.samples.append({"calls": calls, **how})
        busy = self.latency_ns + calls * self.call_ns
        end = round(busy * (1 + 0.0001 * (len(self.samples) % 3)))
        found = sample((0, [*([end] * (calls - 1)), end]), wall_ns=end + 1000)
        ranks = tuple(replace(rank, unheld=calls > self.room) for rank in found.ranks)
        return replace(found, ranks=ranks)

    def serve(self, pauses: Sequence[int], *, evict: bool) -> Served:
        half = len(pauses) // 2
        return Served((5,) * half, (9_000,) * half, (int(self.call_ns),) * half)

    def sustain(self, calls: int, chunk: int, limit_s: float) -> Sustained:
        self.sustained += calls
        return Sustained(round(1.5 * calls * self.call_ns))


def stand() -> Stand:
    target = SimpleNamespace(readings=lambda oldest_s=0.0: (), cache_bytes=1 << 20)
    made = SimpleNamespace(
        protocol=TimingProtocol(), target=target, machine=nullcontext, checkpoint=lambda: None
    )
    return cast(Stand, made)


def timed(plan: BenchPlan, *tracks: Track) -> tuple[Timed, dict[str, str]]:
    failed: dict[str, str] = {}

    def drop(track: Track, reason: str) -> None:
        failed[track.name] = reason

    silent = {"lost": lambda track: None, "say": lambda text: None}
    return Timed(stand(), plan, tracks, drop, **silent), failed


def track(name: str, fake: FakeLane, *, baseline: bool = True) -> Track:
    return Track(name, cast(Lane, fake), baseline)


def test_a_sample_is_long_enough_and_has_not_too_many_calls():
    run, _ = timed(BenchPlan((), sample_ns=1 * MS), track("a", FakeLane(10_000)))
    run.settle()
    assert run.calls == 100
    run, _ = timed(BenchPlan(()), track("a", FakeLane(100)))
    run.settle()
    assert run.calls == 480
    run, _ = timed(BenchPlan(()), track("a", FakeLane(30 * MS)))
    run.settle()
    assert run.calls == 1


def test_calls_are_counted_by_the_fastest_lane_among_many_and_not_by_a_single_call():
    fast, slow = FakeLane(3_000.0), FakeLane(9_000.0)
    fast.latency_ns = slow.latency_ns = 5_000.0  # of a single call, the way to the device and back
    one, other = track("fast", fast, baseline=False), track("slow", slow)
    run, _ = timed(BenchPlan((), rounds=4), one, other)
    run.settle()
    run.offline()
    assert run.calls * min(one.times[Mode.OFFLINE].rounds[0]) >= 1 * MS
    assert run.calls * 3_000.0 < 1.1 * MS


def test_a_choice_that_turns_out_faster_gets_more_calls():
    fake = FakeLane(8_000.0, choices=(8_000.0, 4_000.0))
    run, _ = timed(BenchPlan(()), track("tuned", fake))
    run.settle()
    assert run.calls * 4_000.0 >= 1 * MS


def test_no_more_calls_make_a_sample_than_a_gate_holds_back():
    several, single = FakeLane(2_500.0), FakeLane(2_500.0)
    several.room = 250  # a call of it is several launches, and the stream takes so many
    run, _ = timed(BenchPlan(()), track("several", several), track("single", single))
    run.settle()
    assert 100 <= run.calls <= 250
    never = FakeLane(2_500.0)
    never.room = 0  # it waits for the device in every call: that is no reason
    run, _ = timed(BenchPlan(()), track("never", never))
    run.settle()
    assert run.calls * 2_500.0 >= 1 * MS


def test_the_fastest_choice_of_a_baseline_is_kept_and_noted():
    fake = FakeLane(500_000.0, choices=(500_000.0, 300_000.0, 400_000.0))
    one = track("tuned", fake)
    run, _ = timed(BenchPlan(()), one)
    run.settle()
    assert fake.call_ns == 300_000.0
    assert one.note["chosen"] == 1 and len(one.note["choices_ns"]) == 3


def test_rounds_end_when_the_intervals_are_narrow_and_slow_baselines_sit_out():
    fast, slow = track("fast", FakeLane(1e6)), track("slow", FakeLane(2e6))
    kernel = track("kernel", FakeLane(3e6), baseline=False)
    run, _ = timed(BenchPlan((), rounds=22, least_rounds=4), fast, slow, kernel)
    run.settle()
    run.offline()
    assert len(fast.times[Mode.OFFLINE].rounds) == 4
    assert len(kernel.times[Mode.OFFLINE].rounds) == 4
    assert len(slow.times[Mode.OFFLINE].rounds) == 4
    assert len(fast.times[Mode.WARM].rounds) == 2
    how = cast(Any, fast.lane).samples
    assert any(one.get("evict") for one in how) and any(one.get("warm") for one in how)
    assert not any(one.get("evict") and one.get("warm") for one in how)


def test_a_lane_that_fails_leaves_and_the_others_go_on():
    good, bad = track("good", FakeLane(1e6)), track("bad", FakeLane(1e6))
    cast(Any, bad.lane).broken_after = 6
    run, failed = timed(BenchPlan(()), good, bad)
    run.settle()
    run.offline()
    assert failed == {"bad": "it crashed"}
    assert [one.name for one in run.tracks] == ["good"]
    assert len(good.times[Mode.OFFLINE].rounds) >= 4
    assert Mode.OFFLINE not in bad.times


def test_a_wrong_output_of_a_timed_call_ends_a_lane():
    good, bad = track("good", FakeLane(1e6)), track("bad", FakeLane(1e6))
    cast(Any, bad.lane).wrong = True
    run, failed = timed(BenchPlan(()), good, bad)
    run.settle()
    assert "is wrong" in failed["bad"]


def test_the_server_mode_has_quantiles_of_host_and_device():
    one = track("a", FakeLane(7_000.0))
    run, _ = timed(BenchPlan((), arrivals=32, gap_ns=1000), one)
    run.settle()
    run.server("64x64x64")
    found = one.times[Mode.SERVER]
    assert found.time_ns == 7_000
    assert found.more["arrivals"] == 32
    assert found.more["launch_ns"]["p50"] == 5
    assert found.more["latency_ns"]["p99"] == 9_000


def test_every_set_has_inputs_before_anything_is_timed():
    many = FakeLane(1_000.0)
    many.sets = 64
    run, _ = timed(BenchPlan((), fresh=4), track("a", many))
    run.settle()
    assert many.ever_filled == set(range(64))


def test_calls_without_a_pause_work_on_inputs_in_all_sets_and_last_as_long_as_asked_for():
    slow, fast = FakeLane(1e6), FakeLane(1e5)
    fast.group.ranks = 2
    tracks = [track("a", slow), track("b", fast)]
    for fake in (slow, fast):
        fake.sets = 32
    run, failed = timed(BenchPlan((), fresh=4, sustained_s=0.01), *tracks)
    run.settle()
    run.offline()
    run.sustained(run.tracks)
    assert not failed
    assert set(slow.filled) == set(fast.filled) == set(range(32))
    # Each by its own time: what is asked for, and little beyond it.
    for one, call_ns in zip(tracks, (1.5e6, 1.5e5), strict=True):
        found = one.times[Mode.SUSTAINED]
        assert found.time_ns == pytest.approx(call_ns)
        assert 0.01 <= found.more["seconds"] <= 0.012


def test_who_fails_without_a_pause_keeps_its_other_times():
    fake = FakeLane(1e6)
    one, other = track("a", fake), track("b", FakeLane(1e6))
    run, failed = timed(BenchPlan((), fresh=4, sustained_s=0.01), one, other)
    run.settle()
    run.offline()

    def hang(calls: int, chunk: int, limit_s: float) -> int:
        raise RankFailure(FailureKind.HANG, 0, "it hung")

    fake.sustain = hang  # type: ignore[method-assign]
    run.sustained(run.tracks)
    assert not failed and list(run.tracks) == [other]
    assert set(one.times) == {Mode.OFFLINE, Mode.WARM}
    assert one.note["sustained"] == "it hung"
    assert Mode.SUSTAINED in other.times


def test_a_run_goes_on_when_no_lane_is_left_or_a_clock_stood_still():
    bad, still = track("bad", FakeLane(1e6)), track("still", FakeLane(0.0))
    cast(Any, bad.lane).broken_after = 8
    run, failed = timed(BenchPlan(()), bad, still)
    run.settle()
    run.offline()
    assert failed["bad"] == "it crashed"
    assert "0" in failed["still"]
    assert not run.tracks


def test_inputs_are_fresh_in_some_sets_of_short_calls_and_in_all_of_others():
    many = FakeLane(1_000.0)
    many.sets = 64
    run, _ = timed(BenchPlan((), fresh=8), track("a", many))
    run.settle()
    run.offline()
    assert 1 <= len(many.filled) <= 8
