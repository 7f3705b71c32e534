"""Who is faster on a shape alone: one for each shape, never somebody who has won as a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.agents.evidence import winners_text
from kerneltui.engine.reader import opened_recording
from kerneltui.model.candidate import AgentName, Candidate, Origin
from kerneltui.model.measurement import Measurement, MeasurementStage, ShapeMeasurement
from kerneltui.model.state import State, fold
from kerneltui.model.statistics import Interval, Verdict, judge_interval
from kerneltui.model.winners import shape_winners

DELTA = 0.01
BUNDLE = Path(__file__).parents[2] / "sessions" / "gemm_allgather-cpu.bundle"


def interval(gain: float) -> Interval:
    middle = -math.log(gain)
    return Interval(middle, middle - 0.002, middle + 0.002)


def measured(id_: str, gains: Mapping[str, float], *, against: str = "c0001", quarantine: str = ""):
    shapes = tuple(
        ShapeMeasurement(
            shape=name, rounds=4, candidate_ns=round(1e6 / gain), incumbent_ns=1_000_000,
            reference_ns=1_000_000, reference="vendor", interval=interval(gain),
            reference_interval=interval(gain), verdict=judge_interval(interval(gain), DELTA),
            bound_share=0.5,
        )
        for name, gain in gains.items()
    )  # fmt: skip
    mean = math.prod(gains.values()) ** (1 / max(1, len(gains)))
    measurement = Measurement(
        stage=MeasurementStage.CONFIRMED, against=against, delta=DELTA, shapes=shapes, geomean=interval(mean),
        verdict=judge_interval(interval(mean), DELTA), ratio=mean, bound_share=0.5, groups=1,
        quarantine=quarantine,
    )  # fmt: skip
    return Candidate(
        id=id_, sha=id_, parents=(against,), agent=AgentName.SLOW, origin=Origin.DIFF,
        reason=f"idea {id_}", directive=None, proposed_at=1, measurement=measurement,
    )  # fmt: skip


def test_the_fastest_on_each_shape_with_what_it_costs_elsewhere() -> None:
    found = shape_winners(
        [
            measured("c0002", {"a": 1.05, "b": 0.9}),
            measured("c0003", {"a": 1.08, "b": 0.8}),
            measured("c0004", {"a": 1.004, "b": 1.0}),
        ],
        "c0001",
    )
    (winner,) = found
    assert (winner.candidate.id, winner.part.shape, winner.worst.shape) == ("c0003", "a", "b")


@pytest.mark.parametrize(
    "candidate",
    [
        measured("c0002", {"a": 1.2, "b": 1.0}),  # FASTER as a whole
        measured("c0002", {"a": 1.2, "b": 0.5}, quarantine="below the floor"),
        measured("c0002", {"a": 1.2, "b": 0.5}, against="c0000"),
        measured("c0002", {}),
    ],
)
def test_who_is_no_winner(candidate: Candidate) -> None:
    assert shape_winners([candidate], "c0001") == ()


@given(
    st.lists(
        st.fixed_dictionaries({"a": st.floats(0.5, 2.0), "b": st.floats(0.5, 2.0)}), max_size=6
    )
)
def test_a_winner_is_faster_and_nobody_is_faster_than_it(gains: list[dict[str, float]]) -> None:
    candidates = [measured(f"c{i:04}", row) for i, row in enumerate(gains, 2)]
    found = shape_winners(candidates, "c0001")
    assert len({winner.part.shape for winner in found}) == len(found)
    for winner in found:
        assert winner.part.verdict is Verdict.FASTER
        rivals = [
            part.interval.estimate
            for candidate in candidates
            if candidate.measurement and candidate.measurement.verdict is not Verdict.FASTER
            for part in candidate.measurement.shapes
            if part.shape == winner.part.shape
        ]
        assert winner.part.interval.estimate == min(rivals)
        assert winner.worst.interval.estimate >= winner.part.interval.estimate


def test_agents_are_told_of_a_choice_that_pays_on_one_shape_of_a_recorded_session() -> None:
    with opened_recording(BUNDLE) as recording:
        state = fold(recording.events)
    text = winners_text("c0001", state)
    assert "- 1000x777x333: c0004 1.263x, but 0.901x on 512x512x512: " in text
    assert winners_text("c0008", state) == ""
    assert winners_text("c0000", State()) == ""
