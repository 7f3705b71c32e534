"""The plan of panels: everything is covered once, at every size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.tui.layout import MINIMUM, Panel, Plan, Zoom, plan_replay, plan_tuning

SIZES = st.tuples(st.integers(MINIMUM[0], 260), st.integers(MINIMUM[1], 90))
FOCUSED = st.sampled_from([Panel.CANDIDATES, Panel.MAIN, Panel.BENCH])


def assert_tiles(plan: Plan, width: int, height: int) -> None:
    seen = [[0] * width for _ in range(height)]
    for rect in plan.panels.values():
        assert rect.width > 0
        assert rect.height > 0
        for y in range(rect.y, rect.y + rect.height):
            for x in range(rect.x, rect.x + rect.width):
                seen[y][x] += 1
    assert all(cell == 1 for row in seen for cell in row)


@given(SIZES, st.sampled_from(list(Zoom)), FOCUSED)
def test_the_tuning_screen_is_covered_without_overlap(
    size: tuple[int, int], zoom: Zoom, focused: Panel
) -> None:
    plan = plan_tuning(*size, zoom, focused)
    assert_tiles(plan, *size)
    assert {Panel.HEADER, Panel.STEER, Panel.FOOTER} <= plan.panels.keys()
    assert focused in plan.panels


@given(
    SIZES, st.sampled_from([Zoom.NORMAL, Zoom.FULL]), st.sampled_from([Panel.EVENTS, Panel.MAIN])
)
def test_the_replay_screen_is_covered_without_overlap(
    size: tuple[int, int], zoom: Zoom, focused: Panel
) -> None:
    plan = plan_replay(*size, zoom, focused)
    assert_tiles(plan, *size)
    assert focused in plan.panels


@given(SIZES)
def test_list_diff_and_chart_always_have_rows(size: tuple[int, int]) -> None:
    panels = plan_tuning(*size).panels
    assert panels[Panel.CANDIDATES].height >= 4
    assert panels[Panel.MAIN].height >= 5
    assert panels[Panel.BENCH].height >= 3


@pytest.mark.parametrize("size", [(59, 24), (80, 15), (10, 3)])
def test_below_the_minimum_there_is_a_notice(size: tuple[int, int]) -> None:
    assert set(plan_tuning(*size).panels) == {Panel.NOTICE}
    assert set(plan_replay(*size).panels) == {Panel.NOTICE}


def test_the_drawn_sizes() -> None:
    small = plan_tuning(80, 24)
    assert not small.tree
    assert small.panels[Panel.CANDIDATES].height == 7
    assert small.panels[Panel.MAIN].height == 9
    assert Panel.STRIP in small.panels
    normal = plan_tuning(120, 40)
    assert normal.tree
    assert {Panel.AGENTS, Panel.MACHINE, Panel.HINTS} <= normal.panels.keys()
    wide = plan_tuning(200, 50)
    assert wide.panels[Panel.AGENTS].x == 150
    assert Panel.JOBS in wide.panels
