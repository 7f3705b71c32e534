import math
from collections.abc import Sequence
from contextlib import nullcontext
from statistics import median
from typing import cast

import pytest
from evaluation_fakes import MS, sample

from kerneltui.evaluation.lane import MASKED, Lane
from kerneltui.evaluation.outcome import Interrupted
from kerneltui.evaluation.rounds import ShapeRounds
from kerneltui.evaluation.timing import (
    GPU_PROTOCOL,
    LaneFailure,
    Timer,
    TimingProtocol,
    WrongOutput,
)
from kerneltui.evaluation.values import Fault, FaultKind, Report
from kerneltui.targets.errors import FailureKind, RankFailure
from kerneltui.targets.sample import Sample


class FakeLane:
    """Takes scripted times; remembers what was asked of it."""

    def __init__(self, name: str, log: list[str], time_ms: float = 1.0) -> None:
        self.name = name
        self.log = log
        self.time_ms = time_ms
        self.sets = 3
        self.filled: list[int] = []
        self.checked: list[int] = []
        self.wrong = False
        self.dead = False
        self.enqueues = False
        self.late: list[bool] = []
        self.held = True
        self.graph_safe = True
        self.called = False
        self.graphs: list[bool] = []
        self.masks = False
        self.masked: list[bool] = []
        self.hasty = False
        self._next = 0

    def next_sets(self, calls: int) -> list[int]:
        return [(self._next + i) % self.sets for i in range(calls)]

    def fill(self, sets: Sequence[int]) -> None:
        self.filled = list(sets)

    def can_mask(self, calls: int) -> bool:
        return calls <= self.sets and self.masks

    def sample(
        self, calls: int, *, late_fill: bool = False, graph: bool = False, masked: bool = False
    ) -> Sample:
        if self.dead:
            raise RankFailure(FailureKind.CRASH, 0, "rank 0 crashed")
        self.masked.append(masked)
        self.graphs.append(graph)
        self.called = self.called or not graph
        self.late.append(late_fill)
        assert self.filled == self.next_sets(calls), (
            "fresh values in exactly the sets that are used"
        )
        self.log.append(self.name)
        self._next = (self._next + calls) % self.sets
        self.filled = []
        step = int(self.time_ms * MS)
        ends = [(i + 1) * step for i in range(calls)]
        return sample((0, ends), (0, ends), wall_ns=calls * step + 1000, unheld=not self.held)

    def check(self, sets: Sequence[int]) -> Report:
        self.checked += sets
        fault = Fault(FaultKind.VALUE, 0, sets[0], "C[0, 0] on rank 0 is wrong")
        wrong = self.wrong or (self.hasty and self.masked[-1])
        return Report((fault,) if wrong else (), 0.0, 0.0, ())


def lanes(log: list[str]) -> tuple[FakeLane, FakeLane, FakeLane]:
    return FakeLane("C", log, 1.1), FakeLane("I", log, 1.0), FakeLane("R", log, 2.0)


def timer(**numbers: int) -> Timer:
    protocol = TimingProtocol(**{"kept": 1, "reference_every": 2, **numbers})
    return Timer(protocol, nullcontext, lambda: None)


def as_lane(lane: FakeLane) -> Lane:
    return cast(Lane, lane)


def test_samples_alternate_their_order_within_and_between_rounds() -> None:
    log: list[str] = []
    candidate, incumbent, reference = map(as_lane, lanes(log))
    found = ShapeRounds("s", 2)
    timer(kept=2, reference_every=2).rounds(found, 4, candidate, incumbent, reference)
    discarded, reference_too = "CI", "R"
    assert "".join(log) == discarded + "CIIC" + reference_too + "RICCIR" + "CIIC" + "R" + "RICCIR"
    assert found.log_ratios == pytest.approx([math.log(1.1)] * 8)
    assert found.reference_ratios == pytest.approx([math.log(0.5)] * 4)
    assert [part is None for part in found.reference] == [True, False, True, False]


@pytest.mark.parametrize("graph", [False, True])
def test_all_lanes_of_a_round_are_enqueued_in_the_same_way(graph: bool) -> None:
    played = lanes([])
    found = ShapeRounds("s", 2, graph=graph)
    timer(kept=2).rounds(found, 4, *map(as_lane, played))
    for lane in played:
        first, *others = lane.graphs
        assert not first or not graph, "what the first call of a process prepares is not captured"
        assert set(others) == {graph}
    assert found.to_record().get("graph", False) is graph


def test_only_short_calls_of_one_rank_are_timed_as_graphs_and_only_of_who_can_be_captured() -> None:
    assert GPU_PROTOCOL.in_graph(99_000.0, 1)
    assert not GPU_PROTOCOL.in_graph(101_000.0, 1)
    assert not GPU_PROTOCOL.in_graph(1_000.0, 2)
    assert not TimingProtocol().in_graph(1_000.0, 1)
    safe, unsafe = FakeLane("a", []), FakeLane("b", [])
    unsafe.graph_safe = False
    for lane in (safe, unsafe):
        timer().burst(as_lane(lane), 2, graph=True)
    assert set(safe.graphs) == {True} and set(unsafe.graphs) == {False}


def test_only_the_first_sample_after_a_pause_is_discarded() -> None:
    log: list[str] = []
    candidate, incumbent, _ = map(as_lane, lanes(log))
    found = ShapeRounds("s", 1)
    timer(kept=3).rounds(found, 2, candidate, incumbent, None)
    timer(kept=3).rounds(found, 1, candidate, incumbent, None)
    assert log.count("C") == log.count("I") == 9 + 2


def test_what_slows_the_machine_for_a_while_cancels_in_pairs() -> None:
    """Half of the speed is gone for 7 samples of 20, whoever runs."""
    log: list[str] = []

    class Slowed(FakeLane):
        def sample(self, calls: int, **how: bool) -> Sample:
            own = self.time_ms
            self.time_ms = own * (1.6 if len(log) % 20 < 7 else 1.0)
            try:
                return super().sample(calls, **how)
            finally:
                self.time_ms = own

    found = ShapeRounds("s", 1)
    candidate, incumbent = Slowed("C", log, 1.05), Slowed("I", log, 1.0)
    timer(kept=3).rounds(found, 11, as_lane(candidate), as_lane(incumbent), None)
    spoiled = [d for d in found.log_ratios if abs(d - math.log(1.05)) > 0.01]
    assert 0 < len(spoiled) < 8
    assert median(found.log_ratios) == pytest.approx(math.log(1.05), abs=1e-3)


def test_where_calls_are_enqueued_the_verified_sample_gets_its_inputs_late() -> None:
    candidate, incumbent, _ = lanes([])
    candidate.enqueues = incumbent.enqueues = True
    timer().rounds(ShapeRounds("s", 1), 11, as_lane(candidate), as_lane(incumbent), None)
    assert candidate.late.count(True) == len(candidate.checked) == 1


def test_a_kernel_that_cannot_be_held_back_is_verified_in_a_sample_of_its_own() -> None:
    candidate, incumbent, _ = lanes([])
    candidate.enqueues, candidate.held = True, False
    timer().rounds(ShapeRounds("s", 1), 11, as_lane(candidate), as_lane(incumbent), None)
    late = candidate.late.index(True)
    assert candidate.late[late + 1] is False
    assert len(candidate.checked) == 1
    assert len(candidate.late) == 1 + 11 + 1  # the discarded one, the rounds, the one again


def test_who_worked_before_the_inputs_came_is_told_so() -> None:
    candidate, incumbent, _ = lanes([])
    candidate.enqueues = candidate.wrong = True
    with pytest.raises(WrongOutput, match="written after its calls were enqueued"):
        timer().rounds(ShapeRounds("s", 1), 11, as_lane(candidate), as_lane(incumbent), None)


def test_one_sample_beside_the_timed_ones_has_inputs_that_are_right_only_in_turn() -> None:
    places: set[int] = set()
    for _ in range(60):
        candidate, incumbent, _ = lanes([])
        candidate.masks = incumbent.masks = True
        found = ShapeRounds("s", 2, graph=True)
        timer().rounds(found, 4, as_lane(candidate), as_lane(incumbent), None, masked=True)
        assert [candidate.masked.count(True), incumbent.masked.count(True)] == [1, 0]
        place = candidate.masked.index(True)
        assert not candidate.graphs[place]
        assert [len(burst.samples_ns) for burst in found.candidate] == [1] * 4
        assert found.checked >= 2
        places.add(place)
    assert len(places) == 4, "the kernel cannot know which"


def test_who_works_before_its_turn_is_told_so() -> None:
    candidate, incumbent, _ = lanes([])
    candidate.masks = candidate.hasty = True
    with pytest.raises(WrongOutput, match="only when the caller's stream was done with") as caught:
        timer().rounds(
            ShapeRounds("s", 1), 4, as_lane(candidate), as_lane(incumbent), None, masked=True
        )
    assert caught.value.how == MASKED


def test_more_calls_than_sets_are_not_masked() -> None:
    candidate, incumbent, _ = lanes([])
    candidate.masks, candidate.sets = True, 1
    timer().rounds(
        ShapeRounds("s", 2), 4, as_lane(candidate), as_lane(incumbent), None, masked=True
    )
    assert not any(candidate.masked)


def test_one_timed_sample_of_the_candidate_is_verified() -> None:
    candidate, incumbent, reference = lanes([])
    timer().rounds(
        ShapeRounds("s", 1), 5, as_lane(candidate), as_lane(incumbent), as_lane(reference)
    )
    assert len(candidate.checked) == 1


def test_a_wrong_timed_output_names_its_lane() -> None:
    candidate, incumbent, reference = lanes([])
    candidate.wrong = True
    with pytest.raises(WrongOutput) as caught:
        timer().rounds(
            ShapeRounds("s", 1), 5, as_lane(candidate), as_lane(incumbent), as_lane(reference)
        )
    assert caught.value.lane is as_lane(candidate)


def test_a_group_that_fails_names_its_lane() -> None:
    candidate, incumbent, reference = lanes([])
    incumbent.dead = True
    with pytest.raises(LaneFailure) as caught:
        timer().rounds(
            ShapeRounds("s", 1), 2, as_lane(candidate), as_lane(incumbent), as_lane(reference)
        )
    assert caught.value.lane is as_lane(incumbent)


def test_the_wish_to_stop_is_heard_between_rounds() -> None:
    def stop() -> None:
        raise Interrupted("stop")

    candidate, incumbent, _ = lanes([])
    with pytest.raises(Interrupted):
        Timer(TimingProtocol(), nullcontext, stop).rounds(
            ShapeRounds("s", 1), 1, as_lane(candidate), as_lane(incumbent), None
        )


def test_small_problems_rotate_over_more_sets() -> None:
    protocol = TimingProtocol()
    assert protocol.rotation(200 << 20) == protocol.sets
    assert protocol.rotation(8 << 20) == 12
    assert protocol.rotation(1000) == 16
    assert protocol.rotation(1000, calls=40) == 40
    assert protocol.rotation(1000, calls=4000) == protocol.most_sets


@pytest.mark.parametrize(
    ("calls", "call_ms", "samples"), [(1, 33.0, 3), (1, 8.0, 5), (2, 2.2, 9), (1, 0.0, 9)]
)
def test_short_calls_get_more_samples_in_a_round(calls: int, call_ms: float, samples: int) -> None:
    assert TimingProtocol().samples(calls, call_ms * MS) == samples


def test_a_round_has_as_many_samples_as_its_shape_wants() -> None:
    candidate, incumbent, _ = lanes([])
    found = ShapeRounds("s", 1, kept=4)
    timer(kept=1).rounds(found, 2, as_lane(candidate), as_lane(incumbent), None)
    assert len(found.log_ratios) == 8
