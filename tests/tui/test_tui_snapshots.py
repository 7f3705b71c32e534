"""What the screens look like, as pictures. Tied to the pinned version of Textual.

The pictures are drawn from the same session with clocks that stand still, so they are equal on every
machine. To look at a change: `pytest tests/tui/test_tui_snapshots.py` writes a report; to accept it,
add `--snapshot-update`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_engine import Paper
from fakes import Desk, until
from model_session import with_models

from kerneltui.tui.text import plain
from kerneltui.tui.widgets.main import MODEL_TABS, TABS

SMALL, NORMAL, WIDE, TINY = (80, 24), (120, 40), (200, 50), (60, 16)
TAB = "right_square_bracket"


def draw(
    compare: Any,
    size: tuple[int, int],
    *keys: str,
    select: str = "",
    ready: str = "",
    **options: Any,
) -> None:
    """Compares the screen after some keys with its picture; `ready` is a tab that loads by itself."""
    desk = Desk(**options)

    async def prepare(pilot: Any) -> None:
        await until(pilot, lambda: desk.app.base is not None, "the screen")
        screen: Any = desk.app.base
        await until(pilot, lambda: screen.loaded is not None, "the first diff")
        if select:
            screen.candidates.select(select)
            await until(pilot, lambda: screen.loaded and screen.loaded.candidate == select, select)
        desk.clock.advance(1)
        for key in keys:
            await pilot.press(key)
        await until(pilot, lambda: screen.loaded is not None, "the last diff")
        if ready:
            view = screen.main.view(ready)
            await until(pilot, lambda: view.lines and "reading" not in plain(view.lines[0]), ready)
        await pilot.wait_for_scheduled_animations()

    assert compare(desk.app, terminal_size=size, run_before=prepare)


@pytest.mark.parametrize("size", [SMALL, NORMAL, WIDE, TINY], ids=lambda s: f"{s[0]}x{s[1]}")
def test_tuning(snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    draw(snap_compare, size)


@pytest.mark.parametrize("size", [SMALL, NORMAL, WIDE, TINY], ids=lambda s: f"{s[0]}x{s[1]}")
def test_replay(snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    draw(snap_compare, size, "left", "left", replay=True)


@pytest.mark.parametrize("size", [SMALL, NORMAL], ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("tab", range(1, 6), ids=["code", "log", "jobs", "bench", "directive"])
def test_tabs(snap_compare: Callable[..., bool], size: tuple[int, int], tab: int) -> None:
    draw(snap_compare, size, "0", *[TAB] * tab, select="c0028")


def test_failure(snap_compare: Callable[..., bool]) -> None:
    draw(snap_compare, SMALL, TAB, TAB, select="c0007")


def test_hunks_left_out(snap_compare: Callable[..., bool]) -> None:
    draw(snap_compare, NORMAL, "0", "l", "space", select="c0008")


def test_more_context_full_screen(snap_compare: Callable[..., bool]) -> None:
    draw(snap_compare, SMALL, "0", "f", *["right_curly_bracket"] * 3, select="c0008")


def test_chart_of_every_shape(snap_compare: Callable[..., bool]) -> None:
    draw(snap_compare, NORMAL, "3", "f", select="c0028")


def test_steering(snap_compare: Callable[..., bool]) -> None:
    draw(snap_compare, SMALL, "s", *"@fast also check odd rows")


def test_refusal(snap_compare: Callable[..., bool]) -> None:
    draw(snap_compare, SMALL, "a", select="c0027")


def test_note_dialog(snap_compare: Callable[..., bool]) -> None:
    draw(snap_compare, SMALL, "a", select="c0031")


def test_rule_dialog(snap_compare: Callable[..., bool]) -> None:
    draw(snap_compare, SMALL, "A", select="c0028")


def test_quit_dialog(snap_compare: Callable[..., bool]) -> None:
    draw(snap_compare, SMALL, "q")


def test_help(snap_compare: Callable[..., bool]) -> None:
    draw(snap_compare, NORMAL, "question_mark")


def test_read_only(snap_compare: Callable[..., bool]) -> None:
    draw(snap_compare, SMALL, writer=False)


def test_filter(snap_compare: Callable[..., bool]) -> None:
    draw(snap_compare, SMALL, "slash", *"fail")


def test_without_colour(snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    draw(snap_compare, SMALL)


@pytest.mark.parametrize("size", [SMALL, NORMAL, WIDE], ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("tab", ["Agents", "Spend", "Grid", "Notes"])
def test_session_tabs(snap_compare: Callable[..., bool], size: tuple[int, int], tab: str) -> None:
    keys = ("0", *[TAB] * (*TABS, *MODEL_TABS).index(tab))
    draw(snap_compare, size, *keys, ready=tab, paper=Paper(with_models()))


def test_a_model_without_a_price(snap_compare: Callable[..., bool]) -> None:
    keys = ("0", "left_square_bracket", "f")
    draw(snap_compare, SMALL, *keys, paper=Paper(with_models(priced=False, budget=None)))


def test_triage(snap_compare: Callable[..., bool]) -> None:
    draw(snap_compare, SMALL, "c", "c", "c", "ctrl+p", *"triage", "enter", "down")
