"""The coverage grid: what was tried together and what it gave."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import Desk, drive, has, until
from tui_record import record

from kerneltui.model.state import State, fold
from kerneltui.tui.draw.coverage import cells, coverage_lines, fields_of, values_of
from kerneltui.tui.text import line_width, plain

STATE = fold(record().events)


def test_fields_are_those_of_the_directive_then_the_tunables() -> None:
    fields = fields_of(STATE)
    assert fields[:5] == ("backend", "placement", "sync", "issuer", "chunk_bytes")
    assert fields[5:] == ("copy", "PLACEMENT", "SYNC", "COPY_KIND", "CHUNK_ROWS", "KC")


def test_words_show_all_legal_values_and_numbers_those_that_were_tried_in_their_order() -> None:
    assert list(values_of(STATE, "placement")) == [
        "sequential", "stream_overlap", "split_put_wait", "fused", "persistent",
    ]  # fmt: skip
    assert list(values_of(STATE, "CHUNK_ROWS")) == ["8", "24", "48", "96", "192"]


def test_every_candidate_with_a_directive_is_counted_once() -> None:
    found = cells(STATE, "sync", "placement")
    stated = [c for c in STATE.candidates.values() if c.directive]
    assert sum(cell.tried for cell in found.values()) == len(stated) == 30
    assert sum(cell.failed for cell in found.values()) == sum(c.failure is not None for c in stated)
    assert found["flag_per_chunk", "fused"].best == 0.0
    assert found["flag_per_chunk", "split_put_wait"].incumbent


def test_what_is_quarantined_is_no_best() -> None:
    found = cells(STATE, "backend", "placement")["lsa", "split_put_wait"]
    best = max(
        c.measurement.ratio
        for c in STATE.candidates.values()
        if c.measurement and not c.measurement.quarantine
    )
    assert found.best == best < STATE.candidates["c0026"].measurement.ratio


@pytest.mark.parametrize("width", [78, 118])
@pytest.mark.parametrize("rows", ["backend", "sync", "CHUNK_ROWS"])
def test_cells_are_never_cut_on_usual_screens(width: int, rows: str) -> None:
    lines = coverage_lines(STATE, rows, "placement", width)
    assert max(map(line_width, lines)) <= width
    text = "\n".join(plain(line) for line in lines[3:-3])
    assert "…" not in text


def test_what_was_banned_is_said() -> None:
    text = "\n".join(plain(line) for line in coverage_lines(STATE, "KC", "COPY_KIND", 100))
    assert "ban COPY_KIND=COPY_MOVSB" in text


def test_a_session_without_candidates_has_an_empty_grid() -> None:
    lines = coverage_lines(State(), "backend", "placement", 78)
    assert any("0 candidates in 0 of 20 cells" in plain(line) for line in lines)
    assert coverage_lines(State(), "KC", "CHUNK_ROWS", 78)


@drive()
async def test_keys_open_the_grid_and_change_its_sides(desk: Desk, pilot: Any) -> None:
    await pilot.press("u")
    await until(pilot, lambda: has(desk, "rows backend   columns placement"))
    await pilot.press("u")
    await until(pilot, lambda: has(desk, "rows sync   columns placement"))
    await pilot.press("U", "U")
    await until(pilot, lambda: has(desk, "columns chunk_bytes"))
