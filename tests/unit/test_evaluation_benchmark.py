import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
from evaluation_fakes import MS, burst, rounds, shape, yardstick

from kerneltui.evaluation.benchmark import (
    Benchmark,
    build_measurement,
    enqueueing_remarks,
    quarantine_reason,
)
from kerneltui.evaluation.lane import Lane
from kerneltui.evaluation.outcome import KernelFault
from kerneltui.evaluation.rounds import ShapeRounds
from kerneltui.evaluation.timing import GPU_PROTOCOL, Timer, TimingProtocol
from kerneltui.model.measurement import FailureKind, Measurement, MeasurementStage
from kerneltui.model.statistics import Verdict

A, B = "512x512x512", "1024x1024x1024"


class ScriptedTimer:
    """Gives every shape a fixed ratio of candidate to incumbent, with a little spread."""

    def __init__(self, ratios: dict[str, float], spread: float = 0.002) -> None:
        self.protocol = TimingProtocol()
        self.ratios = ratios
        self.spread = spread
        self.asked: list[tuple[str, int]] = []

    def rounds(
        self,
        found: ShapeRounds,
        count: int,
        candidate: Any,
        incumbent: Any,
        reference: Any,
        **_: Any,
    ) -> None:
        self.asked.append((found.shape, count))
        for index in range(len(found.candidate), len(found.candidate) + count):
            wobble = 1 + self.spread * ((index * 7) % 5 - 2)
            found.candidate.append(burst(10 * self.ratios[found.shape] * wobble))
            found.incumbent.append(burst(10))
            found.reference.append(burst(12) if reference is not None and index % 5 == 2 else None)


def benchmark(timer: ScriptedTimer, delta: float = 0.01) -> Benchmark:
    yards = {name: yardstick(name) for name in (A, B)}
    return Benchmark(cast(Timer, timer), yards, delta, "base", lambda *_: None)


def lane(name: str) -> Lane:
    return cast(Lane, SimpleNamespace(shape=shape(name)))


def screen_all(found: Benchmark) -> None:
    for name in (A, B):
        found.screen(lane(name))


def measure_all(found: Benchmark, total: int) -> None:
    for name in (A, B):
        found.measure(lane(name), name, total)


def test_a_much_slower_candidate_is_abandoned_with_its_numbers() -> None:
    found = benchmark(ScriptedTimer({A: 1.8, B: 1.7}))
    with pytest.raises(KernelFault) as caught:
        screen_all(found)
    assert caught.value.kind is FailureKind.TOO_SLOW
    assert "1.74 times the incumbent's time" in caught.value.reason
    assert "10.00 ms" in caught.value.reason


def test_a_shape_alone_abandons_nobody_unless_it_is_hopeless() -> None:
    screen_all(benchmark(ScriptedTimer({A: 1.7, B: 0.7})))
    with pytest.raises(KernelFault):
        benchmark(ScriptedTimer({A: 2.4, B: 0.5})).screen(lane(A))


def test_one_noisy_round_abandons_nobody() -> None:
    screen_all(benchmark(ScriptedTimer({A: 1.6, B: 1.6}, spread=0.2)))


def test_who_would_be_abandoned_is_asked_once_more() -> None:
    class Struck(ScriptedTimer):
        """All pairs of a shape's first round are struck by a neighbour."""

        def rounds(self, found: ShapeRounds, *arguments: Any, **options: Any) -> None:
            self.ratios[found.shape] = 1.0 if found.candidate else 1.6
            super().rounds(found, *arguments, **options)

    struck = Struck({A: 0.0, B: 0.0})
    screen_all(benchmark(struck))
    assert struck.asked[:3] == [(A, 1), (B, 1), (B, 1)]
    slow = ScriptedTimer({A: 1.8, B: 1.7})
    with pytest.raises(KernelFault):
        screen_all(benchmark(slow))
    assert slow.asked == [(A, 1), (B, 1), (B, 1)]


def test_a_clearly_slower_candidate_needs_no_benchmark() -> None:
    timer = ScriptedTimer({A: 1.10, B: 1.08})
    found = benchmark(timer)
    screen_all(found)
    assert timer.asked == [(A, 1), (B, 1)]
    assert found.settled()
    result = found.result()
    assert result.verdict is Verdict.SLOWER
    assert result.slower_shapes == (A, B)


def test_a_promising_candidate_is_measured_further_while_it_is_set_up() -> None:
    timer = ScriptedTimer({A: 0.5, B: 0.5})
    found = benchmark(timer)
    screen_all(found)
    assert timer.asked == [(A, 1), (A, 3), (B, 1), (B, 3)]
    assert not found.settled(), "few rounds are no base for FASTER"
    measure_all(found, 11)
    assert timer.asked[4:] == [(A, 7), (B, 7)]
    assert [part.rounds for part in found.result().shapes] == [11, 11]


def test_a_faster_candidate_stops_at_the_first_look() -> None:
    found = benchmark(ScriptedTimer({A: 0.9, B: 0.8}))
    screen_all(found)
    measure_all(found, 11)
    assert found.more() == []
    result = found.result()
    assert result.verdict is Verdict.FASTER
    assert result.geomean.estimate == pytest.approx((math.log(0.9) + math.log(0.8)) / 2, abs=1e-3)
    assert result.stage is MeasurementStage.BENCHMARK
    assert not result.acceptable_by_rule, "it is not confirmed"


def test_rounds_are_added_where_the_interval_is_wide() -> None:
    timer = ScriptedTimer({A: 0.985, B: 0.985}, spread=0.01)
    found = benchmark(timer)
    screen_all(found)
    measure_all(found, 11)
    assert found.more() == [A, B]


def test_the_slow_side_gets_no_further_look() -> None:
    found = benchmark(ScriptedTimer({A: 1.012, B: 1.012}, spread=0.01))
    screen_all(found)
    measure_all(found, 11)
    assert found.more() == []


def test_equal_kernels_are_not_measured_for_ever() -> None:
    found = benchmark(ScriptedTimer({A: 1.0, B: 1.0}, spread=0.02))
    screen_all(found)
    measure_all(found, 11)
    assert found.more() == []
    assert found.result().verdict is Verdict.UNCLEAR


def measured(part: ShapeRounds, **changes: Any) -> tuple[dict[str, Any], Measurement]:
    yards = {A: yardstick(A, **changes)}
    return yards, build_measurement(
        yards, {A: [part]}, delta=0.01, against="base", confidence=0.95,
        stage=MeasurementStage.BENCHMARK,
    )  # fmt: skip


def test_the_ratio_to_the_reference_goes_over_the_incumbent() -> None:
    _, result = measured(
        rounds([8] * 11, [10] * 11), reference_ratios={False: [math.log(10 / 16)] * 3}
    )
    assert result.shapes[0].reference_ns == pytest.approx(16 * MS, abs=1)
    assert result.ratio == pytest.approx(2.0)
    assert result.bound_share == pytest.approx(0.5 / 8)


def test_a_shape_is_judged_with_its_own_noise() -> None:
    part = rounds([10.5] * 11, [10] * 11)
    assert measured(part, noise=0.0)[1].slower_shapes == (A,)
    assert measured(part, noise=0.03)[1].slower_shapes == ()


@pytest.mark.parametrize("who", ["candidate", "incumbent", "reference"])
def test_short_calls_are_graphs_of_all_lanes_or_of_none_and_it_is_said(who: str) -> None:
    safe, unsafe = (cast(Lane, SimpleNamespace(graph_safe=value)) for value in (True, False))
    lanes = {name: unsafe if name == who else safe for name in ("incumbent", "reference")}
    short = yardstick(A, short=True, calls=7, kept=4, **lanes)
    long = yardstick(B, incumbent=safe, reference=safe)
    own = unsafe if who == "candidate" else safe
    found = {A: [short.rounds(own)], B: [long.rounds(safe)]}
    assert not found[A][0].graph and not found[B][0].graph
    assert (found[A][0].calls, found[A][0].kept) == (7, 4)
    yards = {A: short, B: long}
    (text,) = enqueueing_remarks(yards, found)
    assert text.startswith(f"{A}: ") and "graph_safe" in text
    good = yardstick(A, short=True, incumbent=safe, reference=safe)
    graphs = {A: [good.rounds(safe), good.rounds(safe, safe)], B: found[B]}
    assert all(part.graph for part in graphs[A])
    assert not enqueueing_remarks({**yards, A: good}, graphs)


def test_of_short_calls_one_by_one_nothing_counts_that_streams_can_make() -> None:
    """Both shapes take 4 us, the candidate 4 % less; another stream makes as much."""
    safe, unsafe = (cast(Lane, SimpleNamespace(graph_safe=value)) for value in (True, False))
    us = 1e-3
    found: dict[bool, Measurement] = {}
    for graph, lane in ((True, safe), (False, unsafe)):
        yards = {
            name: yardstick(name, short=True, call_ns=4_000.0, incumbent=safe, reference=safe)
            for name in (A, B)
        }
        parts = {name: yard.rounds(lane) for name, yard in yards.items()}
        for part in parts.values():
            filled = rounds([3.85 * us] * 11, [4 * us] * 11)
            part.candidate, part.incumbent = filled.candidate, filled.incumbent
            part.reference = filled.reference
        found[graph] = build_measurement(
            yards, {name: [part] for name, part in parts.items()}, delta=0.01, against="c0001",
            confidence=0.95, stage=MeasurementStage.BENCHMARK,
        )  # fmt: skip
    assert found[True].verdict is Verdict.FASTER and found[True].delta == 0.01
    assert found[False].verdict is Verdict.UNCLEAR
    assert found[False].delta == pytest.approx(0.05, rel=0.05)
    assert {part.verdict for part in found[False].shapes} == {Verdict.UNCLEAR}


def test_ratios_to_the_reference_are_kept_apart_by_how_calls_were_enqueued() -> None:
    yard = yardstick(A, reference_ratios={})
    yard.remember([-0.2], graph=True)
    assert yard.to_reference(graph=False) == [-0.2], "better than none"
    yard.remember([0.1], graph=False)
    assert (yard.to_reference(graph=True), yard.to_reference(graph=False)) == ([-0.2], [0.1])


def test_a_time_below_the_floor_is_quarantined() -> None:
    part = rounds([8] * 11, [10] * 11)
    yards, result = measured(part, floor_ns=9 * MS)
    assert "below the floor" in quarantine_reason(yards, result, [part], 3.0)


def test_much_faster_than_the_library_is_quarantined() -> None:
    part = rounds([2] * 11, [10] * 11)
    yards, result = measured(part, reference_ratios={False: [0.0] * 3})
    assert "5.0 times as fast as torch_gloo" in quarantine_reason(yards, result, [part], 3.0)


def test_much_faster_than_a_library_that_varies_is_not() -> None:
    part = rounds([3] * 11, [10] * 11)
    yards, result = measured(part, reference_ratios={False: [-0.3, -0.1, 0.0, 0.4, 0.6]})
    assert result.shapes[0].ratio > 3.0
    assert quarantine_reason(yards, result, [part], 3.0) == ""


def test_time_that_only_the_engine_saw_is_quarantined() -> None:
    part = rounds([8] * 11, [10] * 11)
    part.candidate = [burst(8, gap_ns=3 * MS) for _ in range(11)]
    yards, result = measured(part)
    assert "engine's clock saw 3.000 ms more" in quarantine_reason(yards, result, [part], 3.0)


def test_a_moment_that_only_the_engine_saw_proves_nothing_against_what_is_slower() -> None:
    for time_ms, bursts, quarantined in ((12, 1, False), (12, 3, True), (8, 1, True)):
        part = rounds([time_ms] * bursts, [10] * bursts)
        part.candidate = [burst(time_ms, gap_ns=6 * MS) for _ in range(bursts)]
        yards, result = measured(part)
        assert bool(quarantine_reason(yards, result, [part], 3.0)) is quarantined


def test_a_plausible_measurement_is_not_quarantined() -> None:
    part = rounds([8] * 11, [10] * 11)
    yards, result = measured(part)
    assert quarantine_reason(yards, result, [part], 3.0) == ""


@pytest.mark.parametrize(
    ("ratio", "spread", "delta", "settled"),
    [
        (1.08, 0.002, 0.01, True),  # SLOWER without doubt
        (1.08, 0.002, 0.20, True),  # the machine is noisy: nobody can tell
        (1.00, 0.002, 0.01, True),  # equal: it cannot become FASTER
        (1.02, 0.020, 0.03, True),
        (1.02, 0.020, 0.01, False),  # it may be SLOWER: more rounds will tell
        (1.00, 0.100, 0.01, False),  # rounds disagree
        (0.99, 0.020, 0.01, False),  # it may be FASTER
        (0.90, 0.002, 0.01, False),
    ],
)
def test_a_candidate_is_let_go_early_only_without_doubt(
    ratio: float, spread: float, delta: float, settled: bool
) -> None:
    found = benchmark(ScriptedTimer({A: ratio, B: ratio}, spread=spread), delta)
    screen_all(found)
    assert found.settled() is settled
    if settled:
        assert found.result().verdict is not Verdict.FASTER


def test_an_early_end_is_as_careful_as_a_late_one() -> None:
    """Seldom is the 99 % interval the narrower one; here it must be the one that is shown."""
    found = benchmark(ScriptedTimer({A: 1.0, B: 1.0}, spread=0.02))
    screen_all(found)
    early = found.result().geomean
    found.more()
    assert found.result().geomean.low > early.low


def test_a_sample_is_as_long_as_the_incumbent_needs_it() -> None:
    yard = yardstick()
    nbytes = 1 << 20
    yard.fit(TimingProtocol(), 2_000_000.0, nbytes)
    assert (yard.calls, yard.sets, yard.short) == (2, 16, False)
    yard.fit(GPU_PROTOCOL, 60_000.0, nbytes)
    assert (yard.calls, yard.sets, yard.kept) == (34, 34, 3)
    assert yard.short is (yard.shape.ranks == 1)
    yard.fit(GPU_PROTOCOL, 50_000_000.0, 1 << 30)
    assert (yard.calls, yard.sets, yard.kept, yard.call_ns) == (1, 3, 3, 50_000_000.0)
