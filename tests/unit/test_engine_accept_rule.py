"""What the rule says of a candidate that it turns down."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))

from tui_record import record

from kerneltui.engine.accept_rule import rule_verdict
from kerneltui.model.state import fold
from kerneltui.model.statistics import Interval, Verdict
from kerneltui.tui.format import difference

STATE = fold(record().events)


def test_the_rule_gives_the_numbers_that_the_screen_shows() -> None:
    candidate = STATE.candidates["c0028"]
    assert candidate.measurement is not None
    slow = replace(
        candidate.measurement, geomean=Interval(0.35, 0.30, 0.40), verdict=Verdict.SLOWER
    )
    assert rule_verdict(replace(candidate, measurement=slow)) == "SLOWER -29.5% [-33.0, -25.9]"
    assert difference(slow.geomean, slow.verdict) == "-29.5% [-33.0, -25.9] SLOWER"


def test_what_was_not_measured_is_said() -> None:
    candidate = replace(STATE.candidates["c0028"], measurement=None)
    assert rule_verdict(candidate) == "not measured"
