"""The steps by which an edit finds its place, what is checked afterwards, and merging into a new parent."""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from kerneltui.agents.edits.applying import apply_reply
from kerneltui.agents.edits.carrying import carry_over
from kerneltui.agents.edits.copying import placeholder, unnumbered
from kerneltui.agents.edits.edit import Edit, Reply, Rewrite, lines_of
from kerneltui.agents.edits.failure import EditFailure, EditKind
from kerneltui.agents.edits.finding import Step
from kerneltui.agents.edits.nearest import visible
from kerneltui.agents.edits.repairing import repair_note
from kerneltui.agents.edits.reply import read_reply
from kerneltui.agents.edits.tool_input import MOST_CHARACTERS, read_tool_input
from kerneltui.agents.edits.verifying import pieces_of, verify
from kerneltui.model.kernel import Kernel, parse_kernel

SOURCE = """\
#include <cstdint>
// kerneltui: tunable STEP in 1 2 4
#define STEP 1
// kerneltui: runtime PEER in 0 1 default 0
int frozen(int value);
// kerneltui: evolve begin loop
void loop(int *to, int count) {
    for (int i = 0; i < count; i += STEP) {
        to[i] = frozen(i);
        to[i] += 10;
    }
}

void other(int *to) {
\tto[0] = 10;
}
// kerneltui: evolve end
int between;
// kerneltui: evolve begin tail
int tail = 3;
// kerneltui: evolve end
int frozen(int value) { return value; }
"""
KERNEL = parse_kernel(SOURCE)


def edited(
    search: str, replace: str, kernel: Kernel = KERNEL, region: str = ""
) -> tuple[str, Step]:
    edit = Edit(lines_of(search), lines_of(replace), "", region)
    applied = apply_reply(kernel, Reply((edit,)))
    return applied.source, applied.placed[0].step


def failure(*edits: Edit | Rewrite, kernel: Kernel = KERNEL) -> EditFailure:
    with pytest.raises(EditFailure) as caught:
        apply_reply(kernel, Reply(edits))
    return caught.value


def swapped(old: str, new: str, source: str = SOURCE) -> str:
    assert source.count(old) == 1
    return source.replace(old, new)


# -- steps


@pytest.mark.parametrize(
    ("search", "replace", "old", "new", "step"),
    [
        ("int tail = 3;", "int tail = 4;", "tail = 3", "tail = 4", Step.EXACT),
        ("int tail = 3;  \t", "int tail = 4;", "tail = 3", "tail = 4", Step.TRAILING),
        (
            "to[i] = frozen(i);\nto[i] += 10;",
            "to[i] = frozen(i) + 10;",
            "        to[i] = frozen(i);\n        to[i] += 10;\n",
            "        to[i] = frozen(i) + 10;\n",
            Step.SHIFTED,
        ),
        ("to[i] += 10", "to[i] += 11", "to[i] += 10", "to[i] += 11", Step.PARTIAL),
        ("    to[0] = 10;", "    to[0] = 9;", "\tto[0] = 10;", "\tto[0] = 9;", Step.COLLAPSED),
        ("int  tail =  3;", "int tail = 4;", "tail = 3", "tail = 4", Step.COLLAPSED),
        (
            "void loop(int *to, int count) {\n    for (int i = 0; i < counts; i += STEP) {\n"
            "        to[i] = frozen(i);",
            "void loop(int *to, int count) {\n    for (int i = 0; i < counts; i += STEP) {\n"
            "        to[i] = 2 * frozen(i);",
            "= frozen(i)",
            "= 2 * frozen(i)",
            Step.FUZZY,
        ),
    ],
)
def test_each_step_finds_what_the_ones_before_do_not(
    search: str, replace: str, old: str, new: str, step: Step
):
    assert edited(search, replace) == (swapped(old, new), step)


def test_lines_that_an_edit_keeps_stay_as_the_kernel_has_them():
    source, step = edited("to[0]  = 10;\n}", "to[0]  = 10;\nto[1] = 1;\n}")
    assert step is Step.COLLAPSED
    assert source == swapped("\tto[0] = 10;\n", "\tto[0] = 10;\n\tto[1] = 1;\n")


def test_a_part_is_whole_tokens():
    assert failure(Edit(("to[i] += 1",), ("to[i] += 2",))).kind is EditKind.MISSING
    assert failure(Edit(("ail = 3",), ("ail = 4",))).kind is EditKind.MISSING
    assert failure(Edit(("i <",), ("j <",)), kernel=parse_kernel(swapped("i <", "i <="))).kind is (
        EditKind.MISSING
    )


def test_lines_below_a_part_are_as_deep_as_it():
    kernel = parse_kernel(swapped("int tail = 3;", "    int tail = 3; // so far"))
    source, step = edited("int tail = 3;", "int tail = 3;\nint more = 4;", kernel)
    assert step is Step.PARTIAL
    assert "    int tail = 3;\n    int more = 4; // so far\n" in source


def test_fuzzy_needs_one_place_in_the_whole_file():
    block = "int fa(int x) {\n    return x + some_long_name_of_a_thing;\n}\n"
    source = swapped("int between;\n", block) + block
    kernel = parse_kernel(source.replace("int tail = 3;\n", block))
    search = "int fa(int x) {\n    return x + some_long_name_of_a_think;\n}"
    found = failure(Edit(lines_of(search), lines_of("int fa(int x) { return 1; }")), kernel=kernel)
    assert found.kind is EditKind.AMBIGUOUS


def test_the_first_step_that_finds_anything_decides():
    # exactly copied from frozen code, so it is not the editable line that is like it
    kernel = parse_kernel(swapped("int tail = 3;", "  int between;"))
    assert failure(Edit(("int between;",), ("int b;",)), kernel=kernel).kind is EditKind.FROZEN


def test_ambiguous_missing_and_identical_are_different_and_show_lines():
    kernel = parse_kernel(swapped("int tail = 3;", "    for (;;) {\n        to[i] += 10;\n    }"))
    ambiguous = failure(Edit(("        to[i] += 10;",), ("x();",)), kernel=kernel)
    missing = failure(Edit(("        to[i] += 20;",), ("x();",)))
    identical = failure(Edit(("int tail = 3;",), ("int tail = 3;",)))
    kinds = [ambiguous.kind, missing.kind, identical.kind]
    assert kinds == [EditKind.AMBIGUOUS, EditKind.MISSING, EditKind.IDENTICAL]
    assert "lines 10, 21" in ambiguous.reason
    assert "   10 [editable, loop] ········to[i] += 10;" in missing.detail
    assert "   21 [editable, tail]" in ambiguous.detail


def test_a_frozen_place_is_named_with_the_regions():
    found = failure(Edit(("int between;",), ()))
    assert found.kind is EditKind.FROZEN
    assert "line 18" in found.reason
    assert "loop (lines 7 to 16), tail (lines 20 to 20)" in found.reason
    assert "   18 [frozen] int between;" in found.detail


def test_changes_in_two_regions_are_two_edits():
    search = SOURCE[SOURCE.index("\tto[0]") : SOURCE.index("int frozen(int value) {")]
    found = failure(Edit(lines_of(search), lines_of(search.replace("10", "9").replace("3", "4"))))
    assert found.kind is EditKind.FROZEN


# -- results


@pytest.mark.parametrize("final", [True, False])
def test_line_ends_and_the_last_newline_are_the_parents(final: bool):
    source = SOURCE.replace("\n", "\r\n")
    kernel = parse_kernel(source if final else source.removesuffix("\r\n"))
    result, _ = edited("int tail = 3;", "int tail = 4;\nint more = 5;", kernel)
    assert result == kernel.source.replace("tail = 3;", "tail = 4;\r\nint more = 5;")
    whole = SOURCE.replace("tail = 3", "tail = 4")
    rewritten = apply_reply(kernel, Reply((Rewrite(lines_of(whole)),)), whole_file=True).source
    assert rewritten == kernel.source.replace("tail = 3", "tail = 4")


def test_mixed_line_ends_stay_where_nothing_changes():
    kernel = parse_kernel(swapped("int between;\n", "int between;\r\n"))
    result, _ = edited("int tail = 3;", "int tail = 4;", kernel)
    assert result == kernel.source.replace("tail = 3", "tail = 4")


def test_a_tunable_gets_another_of_its_values_and_nothing_else():
    result, step = edited("#define STEP 1", "#define STEP 4")
    assert (result, step) == (swapped("STEP 1\n", "STEP 4\n"), Step.EXACT)
    runtime, _ = edited(
        "// kerneltui: runtime PEER in 0 1 default 0", "// kerneltui: runtime PEER in 0 1 default 1"
    )
    assert runtime == swapped("default 0", "default 1")
    for new in ("#define STEP 3", "#define STEP 2 + 0"):
        assert failure(Edit(("#define STEP 1",), (new,))).kind is EditKind.DECLARATION
    for new in ("#define STEP 4\nint x;", "#define  STEP 4"):
        assert failure(Edit(("#define STEP 1",), lines_of(new))).kind is EditKind.FROZEN


def test_a_transform_may_change_everything_but_must_stay_readable():
    reply = Reply((Edit(("int between;",), ("long between;",), "", ""),))
    assert apply_reply(KERNEL, reply, whole_file=True).source == swapped(
        "int between", "long between"
    )
    broken = Reply((Edit(("#define STEP 1",), ()),))
    with pytest.raises(EditFailure) as caught:
        apply_reply(KERNEL, broken, whole_file=True)
    assert caught.value.kind is EditKind.DECLARATION
    region = Reply((Rewrite(("int tail = 4;",), "", "tail"),))
    assert apply_reply(KERNEL, region, whole_file=True).source == swapped("tail = 3", "tail = 4")


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("int between;", "int  between;", EditKind.FROZEN),
        ("int between;\n", "int between;\n\n", EditKind.FROZEN),
        ("evolve begin tail", "evolve begin end", EditKind.MARKS),
        ("// kerneltui: evolve begin tail\n", "", EditKind.MARKS),
        ("#define STEP 1", "#define STEP 7", EditKind.DECLARATION),
        ("int tail = 3;", "int tail = 3; // three", EditKind.IDENTICAL),
        ("int tail = 3;", "int tail = 3;\a", EditKind.MALFORMED),
    ],
)
def test_verification_stands_alone(old: str, new: str, kind: EditKind):
    with pytest.raises(EditFailure) as caught:
        verify(KERNEL, swapped(old, new))
    assert caught.value.kind is kind


@pytest.mark.parametrize(
    "new",
    ["int tail = 3; /*", "*/ int tail = 3;", "#if 0", "#endif", "#if 1\n#else\n#endif\n#else",
     "#endif\n#if 1"],
)  # fmt: skip
def test_a_region_cannot_swallow_frozen_code(new: str):
    found = failure(Edit(("int tail = 3;",), lines_of(new)))
    assert found.kind is EditKind.FROZEN and "the region tail" in found.reason


@pytest.mark.parametrize(
    "new",
    ["#if 1\nint tail = 4;\n#elif 2\n#else\n#endif", 'auto tail = "/*";', "int tail = 1'000; /* it's */",
     "int tail = 4; // don't /*", "/* # if */ int tail = '\"';"],
)  # fmt: skip
def test_what_a_region_opens_and_closes_is_its_own(new: str):
    assert edited("int tail = 3;", new)[0] == swapped("int tail = 3;", new)


def test_a_region_of_python_cannot_swallow_frozen_code():
    source = "# kerneltui: evolve begin a\nx = 1\n# kerneltui: evolve end\ny = 2\n"
    kernel = parse_kernel(source, "kernel.py")
    for new in ('"""', "x = '''", 'x = """a""" + """'):
        assert failure(Edit(("x = 1",), (new,)), kernel=kernel).kind is EditKind.FROZEN
    assert edited("x = 1", 'x = """a\nb"""  # """', kernel)[0] == source.replace(
        "x = 1", 'x = """a\nb"""  # """'
    )


def test_pieces_are_the_whole_text():
    pieces = pieces_of(SOURCE)
    assert [len(pieces.frozen), len(pieces.free)] == [3, 2]
    parts = [part for pair in zip(pieces.frozen, (*pieces.free, ""), strict=True) for part in pair]
    assert "".join(parts) == SOURCE


def test_what_is_too_long_is_refused():
    with pytest.raises(EditFailure) as caught:
        read_reply("x" * (MOST_CHARACTERS + 1))
    assert caught.value.kind is EditKind.TOO_LONG
    with pytest.raises(EditFailure) as caught:
        read_tool_input({"edits": [{"search": "a", "replace": "b"}] * 201})
    assert caught.value.kind is EditKind.TOO_LONG
    assert failure(Edit(("int tail = 3;",), ("x;",) * 6000)).kind is EditKind.TOO_LONG


@pytest.mark.parametrize(
    "line",
    ["...", "// ...", "/* ... */", "# …", "// ... rest unchanged ...", "// [existing code here]",
     "// the rest of the function stays the same", "... (other lines as before)", "// (unchanged)..."],
)  # fmt: skip
def test_placeholders_are_known(line: str):
    assert placeholder(f"    {line}")


@pytest.mark.parametrize(
    "line",
    ["catch (...) {", "void print(const char *format, ...);", "template <typename... Args>",
     "f(args...);", "// waits for the peers...", "// the rest of the rows goes to the last rank",
     "#define LOG(...) print(__VA_ARGS__)", "x = [...]", "// existing flags are kept"],
)  # fmt: skip
def test_code_and_comments_are_no_placeholders(line: str):
    assert not placeholder(f"    {line}")


def test_numbers_are_taken_away_only_if_they_count():
    assert unnumbered(["9 | a", "10 | b", "11 |"]) == ("a", "b", "")
    assert unnumbered(["9 | a", "11 | b"]) is None
    assert unnumbered(["a", "b"]) is None


# -- repair


def test_every_kind_has_its_word():
    text = resources.files("kerneltui.agents.edits").joinpath("repair.toml").read_text("utf-8")
    assert set(tomllib.loads(text)["kinds"]) == {kind.value for kind in EditKind}


def test_a_repair_note_is_bounded_and_keeps_what_matters():
    detail = "\n".join(f"line {number} " + "x" * 80 for number in range(500))
    note = repair_note(EditFailure(EditKind.MISSING, "edit 1 " + "y" * 1000, detail), limit=2000)
    assert len(note) <= 2000
    assert (
        "line 0 " in note
        and "Copy the lines to look for" in note
        and "again with all edits" in note
    )


def test_models_are_told_of_the_tool_that_they_have():
    text = resources.files("kerneltui.agents.edits").joinpath("repair.toml").read_text("utf-8")
    assert "`propose`" in tomllib.loads(text)["closing"]
    assert not re.search("SEARCH|REPLACE|REGION", text)


def test_blanks_are_visible():
    assert visible("\t  a\tb \u00a0c \t") == "→··a→b ⍽c·→"


# -- carrying over


def test_a_change_is_carried_over_to_a_new_parent():
    proposal = parse_kernel(swapped("to[i] += 10", "to[i] += 11"))
    new = parse_kernel(
        swapped("int tail = 3;", "int tail = 4;").replace("#define STEP 1", "#define STEP 2")
    )
    carried = carry_over(KERNEL, proposal, new)
    assert carried.conflicts == ()
    assert carried.kernel is not None
    assert carried.kernel.source == new.source.replace("to[i] += 10", "to[i] += 11")


def test_conflicts_are_data():
    proposal = parse_kernel(swapped("tail = 3", "tail = 4"))
    new = parse_kernel(
        swapped("tail = 3", "tail = 5").replace("(int *to) {", "(int *to) {\n\tto[1] = 1;")
    )
    carried = carry_over(KERNEL, proposal, new)
    assert carried.kernel is None
    (conflict,) = carried.conflicts
    assert (conflict.base, conflict.new_parent, conflict.proposal) == (
        ("int tail = 3;",),
        ("int tail = 5;",),
        ("int tail = 4;",),
    )
    assert (conflict.line, conflict.region) == (21, "tail")


def test_line_ends_are_the_new_parents():
    proposal = parse_kernel(swapped("tail = 3", "tail = 4"))
    new = parse_kernel(swapped("to[i] += 10", "to[i] += 11").replace("\n", "\r\n"))
    carried = carry_over(KERNEL, proposal, new)
    assert carried.kernel is not None
    assert carried.kernel.source == new.source.replace("tail = 3", "tail = 4")


def test_a_change_that_is_there_already_is_identical():
    proposal = parse_kernel(swapped("tail = 3", "tail = 4"))
    with pytest.raises(EditFailure) as caught:
        carry_over(KERNEL, proposal, proposal)
    assert caught.value.kind is EditKind.IDENTICAL


def test_frozen_text_is_the_new_parents():
    proposal = parse_kernel(swapped("int between", "long between"))
    new = parse_kernel(swapped("tail = 3", "tail = 4"))
    with pytest.raises(EditFailure) as caught:
        carry_over(KERNEL, proposal, new)
    assert caught.value.kind is EditKind.FROZEN
    carried = carry_over(KERNEL, proposal, new, whole_file=True)
    assert carried.kernel is not None and "long between" in carried.kernel.source


def test_without_git_there_is_no_merge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EditFailure) as caught:
        carry_over(KERNEL, parse_kernel(swapped("tail = 3", "tail = 4")), KERNEL)
    assert caught.value.kind is EditKind.UNAVAILABLE


@pytest.mark.parametrize(
    ("new", "what"),
    [
        ("total = (", "a bracket"),
        ("total = [", "a bracket"),
        ("total = 1)", "a bracket"),
        ("total = (1]", "a bracket"),
        ("total = (\n    1,\n)", ""),
        ('total = f"({first}" # (', ""),
        ("total = {1: [2, (3,)]}[1][0]", ""),
    ],
)
def test_what_a_region_of_python_opens_is_closed_in_it(new: str, what: str):
    source = (
        "def run(first):\n"
        "    # kerneltui: evolve begin sum\n"
        "    total = first\n"
        "    # kerneltui: evolve end\n"
        "    first.frozen()\n"
    )
    kernel = parse_kernel(source, "kernel.py")
    changed = source.replace("    total = first\n", new.replace("total", "    total") + "\n")
    if not what:
        assert verify(kernel, changed)[0].source == changed
        return
    with pytest.raises(EditFailure, match=f"the region sum leaves {what} open"):
        verify(kernel, changed)
