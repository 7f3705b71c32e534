"""The view of lines: what lies beyond its edges is marked."""

from __future__ import annotations

import asyncio

import pytest
from textual.app import App, ComposeResult

from kerneltui.tui.text import Line
from kerneltui.tui.widgets.lineview import LineView

LINES: tuple[Line, ...] = (
    (("short", "ink"),),
    (("abcdefghij", "ink"), ("klmno", "strong")),
    (("0123456789", "ink"), ("   ", "strong")),
)


class Shown(App[None]):
    CSS = "LineView { width: 10; height: 3; }"

    def compose(self) -> ComposeResult:
        yield LineView()

    def on_mount(self) -> None:
        self.query_one(LineView).show(lambda _w, _h: LINES)


def rows(view: LineView) -> list[str]:
    return ["".join(s.text for s in view.render_line(y)) for y in range(3)]


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (0, ["short     ", "abcdefghi…", "0123456789"]),
        (2, ["…rt       ", "…defghijk…", "…3456789  "]),
        (5, ["          ", "…ghijklmno", "…6789     "]),
    ],
)
def test_what_lies_beyond_an_edge_is_marked(left: int, expected: list[str]) -> None:
    async def look() -> list[str]:
        app = Shown()
        async with app.run_test(size=(40, 10)):
            view = app.query_one(LineView)
            view.shift(columns=left)
            return rows(view)

    assert asyncio.run(look()) == expected
