"""Lanes timed in turn, mode by mode, with lanes that are played."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from evaluation_fakes import sample

from kerneltui.evaluation.bench_modes import Timed, Track
from kerneltui.evaluation.bench_plan import BenchPlan
from kerneltui.evaluation.bench_result import Mode
from kerneltui.evaluation.lane import MASKED, Lane
from kerneltui.evaluation.lane_times import Served, Sustained
from kerneltui.evaluation.stand import Stand
from kerneltui.evaluation.timing import GPU_PROTOCOL, TimingProtocol
from kerneltui.evaluation.values import Fault, FaultKind, Report
from kerneltui.model.workload import Shape
from kerneltui.targets.errors import FailureKind, RankFailure

MS = 1_000_000


def shape(m: int) -> Shape:
    return Shape(f"{m}", {"M": m}, ("bench",), 1)


class FakeLane:
    """A lane whose calls take a fixed time."""

    def __init__(self, call_ns: float, *, choices: Sequence[float] = ()) -> None:
        self.call_ns = call_ns
        self.choices = choices
        self.sets = 4
        self.enqueues = False
        self.masks = self.hasty = False
        self.graph_safe = True
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

    def can_mask(self, calls: int) -> bool:
        return calls <= self.sets and self.masks

    def choose(self, index: int) -> None:
        self.call_ns = self.choices[index]

    def check(self, sets: Sequence[int]) -> Report:
        assert set(sets) <= set(self.filled)
        wrong = self.wrong or (self.hasty and self.samples[-1].get("masked"))
        faults = (Fault(FaultKind.VALUE, 0, 0, "C[0] is wrong"),) if wrong else ()
        return Report(faults=faults, error=0.0, library_share=0.0, digests=())

    def sample(self, calls: int, **how: Any) -> Any:
        if self.broken_after is not None and len(self.samples) >= self.broken_after:
            raise RankFailure(FailureKind.CRASH, 0, "it crashed")
        self.samples.append({"calls": calls, **how})
        busy = self.latency_ns + calls * self.call_ns
        end = round(busy * (1 + 0.0001 * (len(self.samples) % 3)))
        found = sample((0, [*([end] * (calls - 1)), end]), wall_ns=end + 1000)
        late = calls > self.room and not how.get("graph")
        ranks = tuple(replace(rank, unheld=late) for rank in found.ranks)
        return replace(found, ranks=ranks)

    def serve(self, pauses: Sequence[int], *, evict: bool) -> Served:
        half = len(pauses) // 2
        return Served((5,) * half, (9_000,) * half, (int(self.call_ns),) * half)

    def sustain(self, calls: int, chunk: int, limit_s: float) -> Sustained:
        self.sustained += calls
        return Sustained(round(1.5 * calls * self.call_ns))


def stand(protocol: TimingProtocol) -> Stand:
    target = SimpleNamespace(readings=lambda oldest_s=0.0: (), cache_bytes=1 << 20)
    made = SimpleNamespace(
        protocol=protocol, target=target, machine=nullcontext, checkpoint=lambda: None
    )
    return cast(Stand, made)


def timed(
    plan: BenchPlan, *tracks: Track, protocol: TimingProtocol | None = None
) -> tuple[Timed, dict[str, str]]:
    failed: dict[str, str] = {}

    def drop(track: Track, reason: str) -> None:
        failed[track.name] = reason

    silent = {"lost": lambda track: None, "say": lambda text: None}
    return Timed(stand(protocol or TimingProtocol()), plan, tracks, drop, **silent), failed


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


def test_short_calls_are_timed_as_graphs_and_one_by_one_beside_it():
    fake, tuned = FakeLane(3_000.0), FakeLane(9_000.0, choices=(9_000.0, 4_000.0))
    fake.enqueues = True
    one, other = track("kernel", fake, baseline=False), track("tuned", tuned)
    run, _ = timed(BenchPlan((), rounds=4), one, other, protocol=GPU_PROTOCOL)
    run.settle()
    assert run.graph and not run.stream_share
    assert any(how["graph"] and how["late_fill"] for how in fake.samples), "who works ahead is seen"
    assert not any(how["graph"] for how in tuned.samples if how["calls"] == 1), (
        "code is loaded then"
    )
    assert tuned.samples[-1]["graph"], "choices are told apart as they are timed"
    del fake.samples[:]
    run.offline()
    assert set(one.times) == {Mode.OFFLINE, Mode.EAGER, Mode.WARM}
    eager = [how for how in fake.samples if not how["graph"]]
    samples = 1 + 2 * GPU_PROTOCOL.kept
    assert len(eager) == samples and all(how["evict"] for how in eager[1:])
    assert len(fake.samples) - len(eager) == 1 + 4 * GPU_PROTOCOL.kept + samples


@pytest.mark.parametrize("hasty", [False, True])
def test_a_kernel_makes_one_sample_whose_inputs_are_right_only_in_turn(hasty: bool):
    fake, other = FakeLane(3_000.0), FakeLane(3_000.0)
    fake.masks = other.masks = True
    fake.hasty = other.hasty = hasty
    one = track("kernel", fake, baseline=False)
    run, failed = timed(BenchPlan((), rounds=4), one, track("a", other), protocol=GPU_PROTOCOL)
    run.settle()
    run.offline()
    masked = [how for how in fake.samples if how["masked"]]
    assert len(masked) == 1 and not masked[0]["graph"] and masked[0]["calls"] == fake.sets
    assert not any(how["masked"] for how in other.samples), "baselines are trusted"
    if hasty:
        assert failed == {"kernel": f"C[0] is wrong{MASKED}"}
    else:
        assert not failed and Mode.EAGER in one.times


def test_a_graph_has_more_calls_than_a_gate_holds_back_one_by_one():
    fake = FakeLane(2_500.0)
    fake.room = 250  # a call is several launches, and the stream takes so many
    one = track("kernel", fake, baseline=False)
    run, _ = timed(
        BenchPlan((), rounds=4), one, track("a", FakeLane(2_500.0)), protocol=GPU_PROTOCOL
    )
    run.settle()
    del fake.samples[:]
    run.offline()
    calls = {
        graph: {how["calls"] for how in fake.samples if how["graph"] is graph}
        for graph in (True, False)
    }
    assert min(calls[True]) * 2_500.0 >= 1 * MS
    assert max(calls[False]) <= 250


@pytest.mark.parametrize(
    ("call_ns", "ranks", "safe"), [(150_000.0, 1, True), (3_000.0, 2, True), (3_000.0, 1, False)]
)
def test_no_lane_is_timed_as_a_graph_unless_all_can_be(call_ns: float, ranks: int, safe: bool):
    fake, other = FakeLane(call_ns), FakeLane(call_ns)
    fake.group.ranks = other.group.ranks = ranks
    fake.graph_safe = safe
    tracks = [track("kernel", fake, baseline=False), track("a", other)]
    run, _ = timed(BenchPlan((), rounds=4), *tracks, protocol=GPU_PROTOCOL)
    run.settle()
    run.offline()
    assert not run.graph and not any(how["graph"] for how in fake.samples + other.samples)
    # What streams may make of short calls is no verdict; longer ones and several ranks know none of that.
    assert run.stream_share == (0.0 if safe else pytest.approx(200 / call_ns, rel=0.01))
    assert Mode.EAGER not in tracks[0].times


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
