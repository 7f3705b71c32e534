"""What the GPUs did under the lanes of an evaluation, from readings that are played by a list."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from evaluation_fakes import MS, rounds, sample, workload, yardstick

from kerneltui.evaluation import gpu_use as module
from kerneltui.evaluation.bench_times import gpu_note
from kerneltui.evaluation.benchmark import build_measurement
from kerneltui.evaluation.code_record import code_record, loud_findings
from kerneltui.evaluation.gpu_use import BurstUse, Watch, add_gpu_use
from kerneltui.evaluation.lane import Lane
from kerneltui.evaluation.rounds import ShapeRounds
from kerneltui.evaluation.timing import Timer, TimingProtocol
from kerneltui.model.measurement import GpuUse, Measurement, MeasurementStage
from kerneltui.model.reading import GpuReading
from kerneltui.targets.errors import TargetError
from kerneltui.targets.port import Build
from kerneltui.targets.sample import Sample

S = 1_000_000_000
SHAPE = "512x512x512"


def reading(index: int = 0, at_s: float = 0.0, **known: Any) -> GpuReading:
    return GpuReading(index, round(at_s * S), **known)


def watched(taken: Sample, *readings: Sequence[GpuReading]) -> BurstUse | None:
    left = list(readings)
    watch = Watch(lambda: tuple(left.pop(0)), 1)
    watch.sampled(0, taken)
    return watch.burst(0)


def short(ms: int = 4) -> Sample:
    return replace(sample((0, [ms * MS]), (0, [ms * MS])), calls=2)


def test_the_slowest_gpu_has_the_clock_and_all_have_the_power() -> None:
    use = watched(
        short(120),
        [reading(0), reading(1), reading(2)],
        [
            reading(0, 0.01, sm_clock_mhz=1980, power_w=600.0, throttle=()),
            reading(1, 0.01, sm_clock_mhz=1800, power_w=650.0, throttle=("power cap",)),
            reading(2, 0.01, sm_clock_mhz=900, power_w=90.0, throttle=("heat",)),  # of nobody here
        ],
    )
    assert use is not None
    assert (use.sm_clock_mhz, use.power_w) == (1800, 1250.0)
    assert use.held == ("power cap",)
    assert (use.energy_j, use.counted) == (1250.0 * 0.06, False)  # power times the time of a call
    assert use.to_record() == [1800, 1250, 75000.0, "power cap"]


def test_power_that_is_an_average_over_other_lanes_too_is_nobodys() -> None:
    def at(ms: float) -> list[GpuReading]:
        return [reading(n, ms / 1e3, sm_clock_mhz=1980, power_w=650.0) for n in (0, 1)]

    for ms, known in ((4, False), (99, False), (100, True)):
        use = watched(short(ms), at(0), at(ms))
        assert use is not None and use.sm_clock_mhz == 1980
        assert (use.power_w, use.energy_j) == (
            (1300.0, pytest.approx(1300.0 * ms / 2e3)) if known else (None, None)
        )


def test_bursts_of_a_bench_say_no_power_that_is_not_a_lanes_own() -> None:
    made = with_use([BurstUse(1980, 3201, None, None, False, ())] * 2, [use_of()] * 2)
    assert gpu_note(made.candidate)["gpu"] == {"sm_clock_mhz": 1980.0, "rounds": 2, "held": {}}
    assert gpu_note(made.incumbent)["gpu"]["power_w"] == 1300.0


def test_a_long_sample_has_the_energy_that_the_gpus_counted() -> None:
    use = watched(
        replace(sample((0, [2 * S])), calls=1000),
        [reading(0, 0.0, energy_j=100.0, power_w=500.0)],
        [reading(0, 2.5, energy_j=1600.0, power_w=600.0)],
    )
    assert use is not None and use.counted
    assert use.energy_j == 1500.0 * 0.8 / 1000  # for four fifths of the time the calls ran


def test_a_moment_of_a_limit_inside_a_sample_is_seen_by_its_counter() -> None:
    before = reading(0, 0.0, power_held_ns=10 * MS, heat_held_ns=0)
    after = reading(
        0, 0.01, power_held_ns=13 * MS, heat_held_ns=0, throttle=("heat", "board limit")
    )
    use = watched(short(), [before, reading(1)], [after, reading(1, 0.01)])
    # the counter says that there was no heat in the sample, whatever holds the clock down now
    assert use is not None and use.held == ("power cap", "board limit")


def test_without_gpus_there_is_nothing() -> None:
    assert watched(short(), [], []) is None


def test_what_is_not_known_stays_unknown() -> None:
    use = watched(short(), [reading(0), reading(1)], [reading(0, 0.1), reading(1, 0.1)])
    assert use == BurstUse(None, None, None, None, False, ())
    assert use.to_record() == [None, None, None]


def use_of(*held: str, mhz: float = 1900.0) -> BurstUse:
    return BurstUse(mhz, 3201.0, 1300.0, 0.5, False, held)


def with_use(candidate: Sequence[BurstUse], incumbent: Sequence[BurstUse]) -> ShapeRounds:
    made = rounds([10.0] * len(candidate), [11.0] * len(candidate))
    made.candidate = [replace(b, gpu=u) for b, u in zip(made.candidate, candidate, strict=True)]
    made.incumbent = [replace(b, gpu=u) for b, u in zip(made.incumbent, incumbent, strict=True)]
    return made


def measured(*parts: ShapeRounds) -> Measurement:
    bare = build_measurement(
        {SHAPE: yardstick()},
        {SHAPE: parts},
        delta=0.01,
        against="c0001",
        confidence=0.95,
        stage=MeasurementStage.BENCHMARK,
    )
    return add_gpu_use(bare, {SHAPE: parts}, workload(), 132)


def test_operations_per_clock_and_sm() -> None:
    found = measured(with_use([use_of()] * 4, [use_of()] * 4)).shapes[0].gpu
    assert found is not None
    clocks = 0.010 * 1900e6 * 132
    shape = next(s for s in workload().shapes if s.name == SHAPE)
    operations = workload().limit.flops.number(shape.values)
    assert found.flop_per_clock == round(operations / clocks, 1)
    assert (found.sm_clock_mhz, found.power_w, found.energy_j) == (1900.0, 1300.0, 0.5)
    assert (found.rounds, found.power_rounds, found.heat_rounds) == (4, 0, 0)


def test_a_limit_that_holds_both_lanes_is_no_remark() -> None:
    both = with_use([use_of("power cap")] * 4, [use_of("power brake")] * 4)
    found = measured(both)
    assert found.shapes[0].gpu is not None and found.shapes[0].gpu.power_rounds == 4
    assert found.remarks == ()


def test_a_limit_that_holds_one_lane_alone_is_said() -> None:
    hot = with_use([use_of("heat")] * 5 + [use_of()], [use_of()] * 6)
    assert measured(hot).remarks == ()
    hot = with_use([use_of("heat")] * 6, [use_of()] * 6)
    assert measured(hot).remarks == (
        f"{SHAPE}: heat held the clock down in 6 of 6 rounds of the candidate, and in 0 of the "
        "incumbent",
    )
    other = with_use([use_of()] * 5, [use_of("power cap")] * 5)
    assert "a power limit held the clock down in 0 of 5" in measured(other).remarks[0]


@pytest.mark.parametrize("rounds_read", [1, 2, 3, 4])
def test_few_readings_are_no_remark(rounds_read: int) -> None:
    once = with_use([use_of("power cap")] * rounds_read, [use_of()] * rounds_read)
    assert measured(once).remarks == ()


def use_on(shape: str, mine: int, other: int, of: int) -> tuple[str, GpuUse]:
    return shape, GpuUse(1900, 3201, None, None, False, None, of, mine, 0, other, 0)


def test_few_readings_on_each_of_many_shapes_are_taken_together() -> None:
    assert module._unequal([use_on(f"s{n}", 1, 0, 1) for n in range(5)]) == [
        "all shapes: a power limit held the clock down in 5 of 5 rounds of the candidate, "
        "and in 0 of the incumbent"
    ]
    assert module._unequal([use_on(f"s{n}", n % 2, 0, 1) for n in range(8)]) == []
    assert module._unequal([use_on("a", 6, 0, 6), use_on("b", 6, 6, 6)]) == [
        "a: a power limit held the clock down in 6 of 6 rounds of the candidate, "
        "and in 0 of the incumbent"
    ]


def test_lanes_that_are_held_down_alike_are_told_apart_in_less_than_one_of_a_hundred() -> None:
    drawn = random.Random(7)
    for share in (0.1, 0.5, 0.8):
        counts = [
            [sum(drawn.random() < share for _ in range(12)) for _ in "CI"] for _ in range(4000)
        ]
        assert sum(module._apart(mine, other, 12) for mine, other in counts) < 40


def test_a_machine_without_gpus_measures_as_before() -> None:
    bare = rounds([10.0, 10.1], [11.0, 11.1])
    found = measured(bare)
    assert found.shapes[0].gpu is None and found.remarks == ()
    assert "gpu" not in bare.to_record()


def test_rounds_say_in_their_record_what_the_gpus_did() -> None:
    record = with_use([use_of("heat")], [use_of()]).to_record()
    assert record["gpu"] == {
        "candidate": [[1900, 1300, 500.0, "heat"]],
        "incumbent": [[1900, 1300, 500.0]],
    }


def test_the_timer_reads_between_the_samples_and_not_inside_them() -> None:
    story: list[str] = []

    def read() -> tuple[GpuReading, ...]:
        story.append("read")
        return (reading(0, len(story), sm_clock_mhz=1900),)

    def lane(name: str) -> Lane:
        def take(calls: int, *, late_fill: bool = False, graph: bool = False) -> Sample:
            story.append(name)
            return sample((0, [calls * MS]))

        return cast(
            Lane,
            SimpleNamespace(
                enqueues=False,
                next_sets=lambda calls: [0],
                fill=lambda sets: None,
                sample=take,
            ),
        )

    timer = Timer(TimingProtocol(kept=2), nullcontext, lambda: None, read)
    bursts = timer.round([lane("a"), lane("b")], 1)
    assert story == ["a", "b", "read", "b", "read", "a", "read"]
    assert [burst.gpu.sm_clock_mhz for burst in bursts if burst.gpu] == [1900, 1900]
    story.clear()
    bursts = timer.round([lane("a"), lane("b")], 1)
    assert story == ["a", "b", "b", "a"], "the next round comes too soon for another reading"
    assert [burst.gpu for burst in bursts] == [None, None]


def test_a_toolchain_that_makes_no_report_has_no_record() -> None:
    assert code_record(object(), cast(Any, None)) is None


def test_a_report_that_cannot_be_made_says_why() -> None:
    class Gone:
        def code_record(self, build: object) -> dict[str, Any]:
            raise TargetError("gone from the cache")

    def build(name: str) -> Build:
        return Build(Path(name), "5d20b77", True, 1.0, "")

    assert code_record(Gone(), build("kernel.so")) == {"missing": "gone from the cache"}
    assert "compiled by its ranks" in (code_record(Gone(), build("kernel.py")) or {})["missing"]
    assert loud_findings({"missing": "gone from the cache"}) == []


def test_what_the_compiler_warned_of_loudly_becomes_a_remark() -> None:
    quiet = {"loud": False, "line": 1, "text": "unused"}
    loud = {"loud": True, "line": 40, "text": "wgmma serialized"}
    nowhere = {"loud": True, "line": 0, "text": "setmaxnreg ignored"}
    assert loud_findings({"findings": [quiet, loud, nowhere]}) == [
        "the compiler: wgmma serialized (line 40)",
        "the compiler: setmaxnreg ignored",
    ]
    assert loud_findings(None) == []


def test_where_readings_take_long_each_lane_is_looked_at_once_in_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_SLOW_NS", -1)
    asked: list[int] = []

    def read() -> tuple[GpuReading, ...]:
        asked.append(1)
        return (reading(0, len(asked), sm_clock_mhz=1000 + len(asked)),)

    watch = Watch(read, 2)
    for lane in (0, 1, 1, 0, 0, 1):
        watch.sampled(lane, short())
    assert len(asked) == 3
    found = [watch.burst(lane) for lane in (0, 1)]
    assert [use.sm_clock_mhz for use in found if use] == [1002, 1003]
