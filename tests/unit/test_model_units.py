from __future__ import annotations

import pytest

from kerneltui.model.units import milliseconds


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (2_676, "0.0027"),
        (82_100, "0.0821"),
        (1_355_000, "1.355"),
        (21_360_000, "21.36"),
        (3.2e9, "3200"),
    ],
)
def test_milliseconds(time_ns: float, text: str) -> None:
    assert milliseconds(time_ns) == text
