"""Marks of a new file are accepted only if nothing hides behind them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.agents.edits.failure import EditFailure, EditKind
from kerneltui.agents.edits.marking import check_marks, prove_marked, without_marks
from kerneltui.agents.edits.verifying import verify
from kerneltui.model.kernel import Kernel, parse_kernel

KERNELS = sorted(
    path
    for path in (Path(__file__).parents[2] / "kernels").rglob("*")
    if path.suffix in (".cpp", ".cu", ".py")
)
OLD = """\
#include <kerneltui/kernel.h>
// kerneltui: directive backend host
// kerneltui: tunable ROWS in 8 16
#define ROWS 8
int a = 1;
int b = 2;
// kerneltui: evolve begin work
int c = 3;
// kerneltui: evolve end
int d = 4;
"""


def read(source: str, file: str = "kernel.cpp") -> Kernel:
    return parse_kernel(source, file)


def refused(source: str, file: str = "kernel.cpp") -> EditFailure:
    with pytest.raises(EditFailure) as caught:
        check_marks(read(source, file))
    return caught.value


def region(text: str, name: str = "new") -> str:
    return f"// kerneltui: evolve begin {name}\n{text}// kerneltui: evolve end\n"


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_the_marks_of_every_library_kernel_hold(path: Path):
    kernel = read(path.read_text(), path.name)
    check_marks(kernel)
    prove_marked(kernel, kernel)
    assert "evolve" not in without_marks(kernel.source)


@pytest.mark.parametrize(
    ("new", "word"),
    [
        ("int a;\n", "no evolve region"),
        (region("// kerneltui: directive backend lsa\n"), "holds a declaration"),
        (region("// kerneltui: tunable X in 1 2\n#define X 1\n"), "holds a declaration"),
        ('auto t = R"(\n' + region("x\n") + ')";\n', "line 2: an evolve mark is not a comment"),
        ("/*\n" + region("int a;\n") + "*/\n", "line 2: an evolve mark is not a comment"),
        ("#define A \\\n" + region("int a;\n"), "line 2: an evolve mark is not a comment"),
        (region("int a;\n", "x \\"), "line 1: an evolve mark is not a comment"),
        (region("/*\n"), "leaves a comment open"),
        (region('auto t = R"x(\n'), "leaves a raw string open"),
        (region("#if 0\n"), "leaves an #if open"),
        (region("if (0) {\n") + "int kept;\n" + region("}\n", "two"), "leaves a block open"),
        (region("} int f() {\n"), "leaves a block open"),
    ],
)
def test_what_hides_behind_marks_is_refused(new: str, word: str):
    assert word in refused(new).reason


@pytest.mark.parametrize(
    "text",
    ['auto t = R"({ /* )";\n', "char c = '{';\n", "#if A\nif (x) {\n#else\nif (y) {\n#endif\n}\n", "{ }\n"],
)  # fmt: skip
def test_what_is_closed_or_cannot_be_known_is_left_alone(text: str):
    check_marks(read(region(text)))


def test_a_mark_in_a_text_of_python_is_refused():
    text = 'T = """\n# kerneltui: evolve begin a\n# kerneltui: evolve end\n"""\n'
    assert "line 2" in refused(text, "kernel.py").reason


def test_a_region_around_a_whole_file_is_refused_whatever_is_in_it():
    host = (KERNELS[0].parent.parent / "gemm_allgather" / "host.cpp").read_text()
    other = host.replace("all_gather", "barrier")
    for program in (host, other):
        declared, rest = without_marks(program).split("namespace {", 1)
        failure = refused(declared + region(f"namespace {{{rest}"))
        assert failure.kind is EditKind.REGION
        assert "holds the function requirements of the contract" in failure.reason
    python = "# kerneltui: evolve begin all\ndef run(context, state):\n    pass\n# kerneltui: evolve end\n"
    assert "holds the function run of the contract" in refused(python, "kernel.py").reason
    check_marks(read(region('/* kerneltui_run( */ const char *t = "kerneltui_run(";\n')))


PYTHON = """\
def run(context, state, set, epoch):
    total = 0
    # kerneltui: evolve begin work
{work}    # kerneltui: evolve end
{then}
"""


@pytest.mark.parametrize(
    ("work", "then", "what"),
    [
        ("    if False:\n", "        total = 1", "a block"),
        ("    total = 2\nif False:\n    pass\n", "    return total", "a block"),
        ("    total = 2\ndef other():\n    pass\n", "    return total", "a block"),
        ("    for i in state:\n        pass\n    else:\n", "        total = 1", "a block"),
        ("    @state\n", "    def kept(): pass", "a decorator"),
    ],
)
def test_a_region_of_python_takes_no_frozen_line_into_a_block(work: str, then: str, what: str):
    failure = refused(PYTHON.format(work=work, then=then), "kernel.py")
    assert failure.kind is EditKind.FROZEN and f"leaves {what} open" in failure.reason
    whole = "    if state:\n        total = 2\n    else: total = 3\n"
    check_marks(read(PYTHON.format(work=whole, then="    return total"), "kernel.py"))


def test_what_was_open_over_frozen_lines_may_stay_so():
    then = "        total = 1\n    return total"
    old = read(PYTHON.format(work="    if epoch:\n", then=then), "kernel.py")
    new = PYTHON.format(work="    if epoch > 1:\n", then=then)
    assert verify(old, new)[0].source == new
    closed = read(PYTHON.format(work="    total = 2\n", then="    return total"), "kernel.py")
    with pytest.raises(EditFailure, match="leaves a block open"):
        verify(closed, PYTHON.format(work="    x = 1\nif x:\n    x = 2\n", then="    return total"))


def proof(new: str) -> EditFailure | None:
    try:
        prove_marked(read(OLD), read(new))
    except EditFailure as failure:
        assert failure.kind is EditKind.REGION
        return failure
    return None


@pytest.mark.parametrize(
    "new",
    [
        OLD,
        without_marks(OLD),
        OLD.replace("int b = 2;\n", region("int b = 2;\n")),
        OLD.replace("int b = 2;\n", region("int b = 5;\nint more;\n")),
        OLD.replace("int a = 1;\n", region("")),
        OLD.replace("int c = 3;\n", "int other;\n"),
        OLD.replace("int d = 4;\n", "int d = 4;\n" + region("int tail;\n")),
        OLD.replace("backend host", "backend lsa").replace("ROWS 8", "ROWS 16"),
        region("int first;\n") + OLD,
    ],
)
def test_changes_inside_of_regions_are_proven(new: str):
    assert proof(new) is None


@pytest.mark.parametrize(
    ("new", "word"),
    [
        (OLD.replace("int b = 2;", "int b = 5;"), "line 6 ('int b = 5;') is outside"),
        (OLD.replace("int d = 4;", "int d = 4; "), "line 10"),
        (without_marks(OLD).replace("int d = 4;\n", ""), "missing at the end of the file: 'int d = 4;'"),
        (without_marks(OLD).replace("int c = 3;", "int c;"), "line 7 ('int c;') is outside"),
        (OLD.replace("int a = 1;\nint b = 2;\n", "int b = 2;\n" + region("int a = 1;\n")), "line 5"),
        (region("x\n") + "int hidden;\n" + OLD, "line 4 ('int hidden;')"),
        (OLD + "int more;\n", "line 11"),
    ],
)  # fmt: skip
def test_a_change_outside_of_regions_is_named(new: str, word: str):
    failure = proof(new)
    assert failure is not None and word in failure.reason


LINES = st.lists(st.sampled_from(["int a;\n", "int b;\n", "\n", "f();\n"]), max_size=8)


@given(frozen=st.lists(LINES, min_size=2, max_size=4), old=st.lists(LINES), new=st.lists(LINES))
def test_any_text_of_regions_is_proven_and_their_frozen_text_is_kept(
    frozen: list[list[str]], old: list[list[str]], new: list[list[str]]
):
    def text(inner: list[list[str]], marks: bool) -> str:
        parts = ["".join(frozen[0])]
        for index, piece in enumerate(frozen[1:]):
            inside = "".join(inner[index] if index < len(inner) else [])
            parts.append(region(inside, f"r{index}") if marks else inside)
            parts.append("".join(piece))
        return "".join(parts)

    prove_marked(read(text(old, False)), read(text(new, True)))


@given(before=LINES, after=LINES)
def test_without_regions_only_the_same_text_is_proven(before: list[str], after: list[str]):
    old, new = read("".join(before)), read("".join(after))
    if before == after:
        prove_marked(old, new)
    else:
        with pytest.raises(EditFailure):
            prove_marked(old, new)


@given(old=LINES, head=LINES, inner=LINES, tail=LINES)
def test_what_is_proven_is_what_the_docstring_says(
    old: list[str], head: list[str], inner: list[str], tail: list[str]
):
    """One region: the old text begins with the first frozen piece and ends with the last, apart."""
    new = read("".join(head) + region("".join(inner)) + "".join(tail))
    holds = (
        len(head) + len(tail) <= len(old)
        and old[: len(head)] == head
        and old[len(old) - len(tail) :] == tail
    )
    try:
        prove_marked(read("".join(old)), new)
        assert holds
    except EditFailure:
        assert not holds
