from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.model.errors import PatchError
from kerneltui.model.patch import Hunk, apply_hunks, diff_hunks, diff_stat

LINES = st.lists(st.sampled_from(["a", "b", "c", "", "a\r", "\ta"]), max_size=30)
FREE = st.text(max_size=40)


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, str]:
    """A text of distinct lines and another one with some of them changed, added and removed."""
    old = [f"line {number}" for number in range(draw(st.integers(0, 60)))]
    new: list[str] = []
    for line in old:
        what = draw(st.sampled_from(["keep"] * 12 + ["drop", "change", "add"]))
        if what == "change":
            new.append(f"{line} changed")
        elif what == "add":
            new += [line, f"after {line}"]
        elif what == "keep":
            new.append(line)
    end = st.sampled_from(["", "\n"])
    return "\n".join(old) + draw(end), "\n".join(new) + draw(end)


PAIRS = st.one_of(
    edits(), st.tuples(LINES.map("\n".join), LINES.map("\n".join)), st.tuples(FREE, FREE)
)


def assembled(old: str, hunks: tuple[Hunk, ...], chosen: set[int]) -> str:
    """The text from the lines on the screen: in a chosen hunk the new ones, else the old ones."""
    before = old.split("\n")
    out: list[str] = []
    at = 0
    for hunk in hunks:
        out += before[at : hunk.old_start - 1]
        dropped = "-" if hunk.index in chosen else "+"
        out += [line.text for line in hunk.lines if line.kind != dropped]
        at = hunk.old_start - 1 + sum(line.kind != "+" for line in hunk.lines)
    return "\n".join(out + before[at:])


@given(PAIRS)
def test_all_hunks_make_the_new_text_and_none_the_old(pair: tuple[str, str]):
    old, new = pair
    hunks = diff_hunks(old, new)
    assert apply_hunks(old, new, range(len(hunks))) == new
    assert apply_hunks(old, new, []) == old
    assert bool(hunks) == (old != new)


@given(PAIRS, st.sets(st.integers(0, 20)))
def test_any_subset_is_what_the_screen_shows(pair: tuple[str, str], wanted: set[int]):
    old, new = pair
    hunks = diff_hunks(old, new)
    chosen = {hunk.index for hunk in hunks} & wanted
    assert apply_hunks(old, new, chosen) == assembled(old, hunks, chosen)


@given(edits(), st.randoms())
def test_hunks_applied_one_after_another_make_the_new_text(pair: tuple[str, str], random: Random):
    old, new = pair
    total = len(diff_hunks(old, new))
    text = old
    for left in range(total, 0, -1):
        remaining = diff_hunks(text, new)
        assert len(remaining) == left
        text = apply_hunks(text, new, [random.randrange(left)])
    assert text == new


@given(edits(), st.sets(st.integers(0, 20)))
def test_what_was_not_chosen_is_what_remains(pair: tuple[str, str], wanted: set[int]):
    old, new = pair
    hunks = diff_hunks(old, new)
    chosen = {hunk.index for hunk in hunks} & wanted
    rest = diff_hunks(apply_hunks(old, new, chosen), new)
    left = [hunk for hunk in hunks if hunk.index not in chosen]
    assert [[c[2] for c in hunk.changes] for hunk in rest] == [
        [c[2] for c in hunk.changes] for hunk in left
    ]


@given(PAIRS, st.integers(0, 5))
def test_hunks_have_right_numbers_and_context(pair: tuple[str, str], context: int):
    old, new = pair
    before, after = old.split("\n"), new.split("\n")
    hunks = diff_hunks(old, new, context)
    assert [hunk.index for hunk in hunks] == list(range(len(hunks)))
    for hunk in hunks:
        assert hunk.added == sum(line.kind == "+" for line in hunk.lines)
        assert hunk.removed == sum(line.kind == "-" for line in hunk.lines)
        assert hunk.added + hunk.removed > 0
        for line in hunk.lines:
            assert (line.old is None) == (line.kind == "+")
            assert (line.new is None) == (line.kind == "-")
            assert line.old is None or before[line.old - 1] == line.text
            assert line.new is None or after[line.new - 1] == line.text
    changed = [line for hunk in hunks for line in hunk.lines if line.kind != " "]
    assert len(changed) == sum(diff_stat(old, new))


@pytest.mark.parametrize(
    ("old", "new", "stat"),
    [
        ("", "", (0, 0)),
        ("a", "a\n", (1, 0)),
        ("a\n", "a", (0, 1)),
        ("a\r\nb\r\n", "a\nb\n", (2, 2)),
        ("a\nb\n", "a\nx\nb\n", (1, 0)),
        ("a\x0cb\x85c\u2028d", "a\x0cb\x85c\u2028e", (1, 1)),
    ],
)
def test_line_ends_count_and_are_kept(old: str, new: str, stat: tuple[int, int]):
    assert diff_stat(old, new) == stat
    assert apply_hunks(old, new, range(len(diff_hunks(old, new)))) == new


def test_changes_that_are_far_apart_are_hunks_of_their_own():
    old = "\n".join(str(number) for number in range(30))
    new = old.replace("5\n", "five\n", 1).replace("\n25", "\ntwenty-five")
    first, second = diff_hunks(old, new)
    assert (first.old_start, second.old_start) == (3, 23)
    assert apply_hunks(old, new, [1]) == old.replace("\n25", "\ntwenty-five")


@pytest.mark.parametrize("wrong", [-1, 1, 7])
def test_a_hunk_that_does_not_exist_is_refused(wrong: int):
    with pytest.raises(PatchError, match=f"no hunk {wrong + 1}; the diff has 1"):
        apply_hunks("a", "b", [0, wrong])
