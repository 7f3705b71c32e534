"""The diff of a candidate as it is drawn: hunks, context, marks within lines, long lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.model.patch import apply_hunks
from kerneltui.tui.draw.diff import draw_diff, intra_line, make_diff
from kerneltui.tui.text import plain, without


def test_intra_line_marks_are_whole_words_and_deterministic() -> None:
    old, new = "#define CHUNK_ROWS 48", "#define CHUNK_ROWS 24"
    gone, come = intra_line(old, new)
    assert [old[a:b] for a, b in gone] == ["48"]
    assert [new[a:b] for a, b in come] == ["24"]
    assert intra_line("completely(different);", "nothing + alike") == ((), ())
    assert intra_line("x" * 500, "y" * 500) == ((), ())


LINES = st.lists(st.sampled_from(["a", "b", "c", "", "f(x) {", "}"]), max_size=40)


@given(LINES, LINES, st.integers(0, 12))
def test_context_never_changes_what_a_hunk_is(old: list[str], new: list[str], context: int) -> None:
    diff = make_diff("c2", "s", parent="c1", file="k", texts=("\n".join(old), "\n".join(new)))
    everything = frozenset(hunk.index for hunk in diff.hunks)
    drawn = draw_diff(diff, selected=everything, current=0, context=context, width=80)
    assert len(drawn.starts) == len(diff.hunks)
    texts = [plain(line) for line in drawn.lines]
    for sign, count in (("+ ", diff.added), ("- ", diff.removed)):
        shown = [t for i, t in enumerate(texts) if i not in drawn.starts and t[9:11] == sign]
        assert len(shown) == count
    assert apply_hunks("\n".join(old), "\n".join(new), everything) == "\n".join(new)


def test_context_shows_no_line_twice() -> None:
    old = "\n".join(f"line {i}" for i in range(60))
    new = old.replace("line 20", "line twenty").replace("line 30", "line thirty")
    diff = make_diff("c2", "s", parent="c1", file="k", texts=(old, new))
    assert len(diff.hunks) == 2
    drawn = draw_diff(diff, selected=frozenset({0, 1}), current=0, context=30, width=80)
    numbers = [plain(line)[5:8].strip() for line in drawn.lines if plain(line)[9:11] == "  "]
    assert len(numbers) == len(set(numbers))


def test_marks_stand_where_earlier_hunks_moved_the_lines() -> None:
    old = "a\nb\nc\nd\ne\nf\ng\nvalue = 1;\n"
    new = "a\nnew\nnew\nb\nc\nd\ne\nf\ng\nvalue = 2;\n"
    diff = make_diff("c2", "s", parent="c1", file="k", texts=(old, new))
    assert diff.marks == {("-", 8): ((8, 9),), ("+", 10): ((8, 9),)}


@pytest.mark.parametrize("width", [40, 62, 80])
def test_a_change_at_the_end_of_a_long_line_is_in_sight(width: int):
    before = "// kerneltui: runtime SHARE_LAST in 0 8 16 24 48 default 16"
    texts = (f"int x;\n{before}\n", f"int x;\n{before[:-2]}8\n")
    diff = make_diff("c0002", "abc", parent="c0001", file="k.cu", texts=texts)
    for selected in (frozenset({0}), frozenset[int]()):
        drawn = draw_diff(diff, selected=selected, current=0, context=3, width=width)
        lines = [plain(line) for line in drawn.lines]
        gone, come = (next(x for x in lines if f" {sign} //" in x) for sign in "-+")
        assert gone.endswith("default 16") and come.endswith("default 8")
        assert len(come) < len(gone) <= width
        assert gone.index("default") == come.index("default")
        assert ("…" in gone) is (width < 80)


def test_a_line_whose_change_is_in_sight_is_left_as_it_is():
    texts = ("int a = 1;" + " " * 80 + "// end\n", "int a = 2;" + " " * 80 + "// end\n")
    diff = make_diff("c0002", "abc", parent="c0001", file="k.cu", texts=texts)
    drawn = draw_diff(diff, selected=frozenset({0}), current=0, context=3, width=40)
    assert any(plain(line).endswith("// end") for line in drawn.lines)
    assert not any("…" in plain(line) for line in drawn.lines[1:])


@given(st.lists(st.text(max_size=6), max_size=6), st.integers(0, 30), st.integers(1, 10))
def test_what_is_left_out_of_a_line_leaves_the_rest(parts: list[str], start: int, many: int):
    text = "".join(parts)
    start = min(start, max(len(text) - 1, 0))
    end = min(start + many, len(text))
    line = without(tuple((part, "code") for part in parts), start, end, ("…", "faint"))
    wanted = text[:start] + "…" + text[end:] if start < end else text
    assert plain(line) == wanted
    assert all(style == "code" for part, style in line if part != "…" and part)
