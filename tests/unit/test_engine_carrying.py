"""A candidate whose parent was overtaken is carried over to main, or the conflict is shown."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kerneltui.engine.carrying import carried
from kerneltui.engine.errors import Refused
from kerneltui.model.candidate import AgentName, Candidate, Origin
from kerneltui.model.event import ShapeInfo
from kerneltui.model.state import State

TEXT = """\
// kerneltui: directive backend lsa
// kerneltui: directive issuer thread
// kerneltui: directive placement fused
// kerneltui: directive sync world
// kerneltui: directive chunk_bytes = 64
int frozen = 1;
// kerneltui: evolve begin work
int first = 1;

int between = 0;

int second = 2;
// kerneltui: evolve end
"""


def recorder(sources: dict[str, str], parents: dict[str, tuple[str, ...]], incumbent: str) -> Any:
    base = Candidate(
        id="c0000", sha="0" * 40, parents=(), agent=AgentName.SLOW, origin=Origin.DIFF,
        reason="why", directive=None, proposed_at=0, seed_file="kernel.cpp",
    )  # fmt: skip
    state = State(base="c0000", incumbent=incumbent)
    state.shapes = (ShapeInfo("s", {"M": 8, "RANKS": 2}, 1.0),)
    for name in sources:
        state.candidates[name] = replace(base, id=name, parents=parents.get(name, ()))
    return SimpleNamespace(state=state, source=sources.__getitem__)


def of(change: str, main: str) -> Any:
    sources = {"c0000": TEXT, "c0001": change, "c0002": main}
    return recorder(sources, {"c0001": ("c0000",), "c0002": ("c0000",)}, "c0002")


def test_changes_of_different_lines_come_together_on_main() -> None:
    change = TEXT.replace("first = 1", "first = 10")
    main = TEXT.replace("second = 2", "second = 20")
    proposal = carried(of(change, main), "c0001")
    assert "first = 10" in proposal.source
    assert "second = 20" in proposal.source
    assert proposal.parents == ("c0002", "c0001")
    assert proposal.agent is AgentName.HUMAN
    assert proposal.reason == "c0001 carried over to c0002: why"


def test_changes_of_one_line_are_shown_from_both_sides() -> None:
    change = TEXT.replace("first = 1", "first = 10")
    main = TEXT.replace("first = 1", "first = 11")
    with pytest.raises(Refused) as caught:
        carried(of(change, main), "c0001")
    lines = str(caught.value).splitlines()
    assert "changed the same lines (line 8, region work)" in lines[0]
    assert "c0002: int first = 11;" in lines
    assert "c0001: int first = 10;" in lines


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("c0009", "there is no candidate c0009"),
        ("c0000", "c0000 is the seed"),
        ("c0002", "or is on main"),
    ],
)
def test_what_cannot_be_carried_says_why(name: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        carried(of(TEXT.replace("first = 1", "first = 3"), TEXT), name)


def test_a_change_that_main_has_already_is_nothing_new() -> None:
    change = TEXT.replace("first = 1", "first = 10")
    with pytest.raises(Refused, match="cannot be carried over to c0002"):
        carried(of(change, change.replace("second = 2", "second = 20")), "c0001")
