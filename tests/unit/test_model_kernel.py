from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kerneltui.model.directive import Backend, Placement
from kerneltui.model.errors import DefinitionError, ExpressionError
from kerneltui.model.kernel import Kernel, TunableKind, parse_kernel

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "kernels" / "gemm_allgather"
WINDOW = parse_kernel((LIBRARY / "window.cpp").read_text(encoding="utf-8"), "window.cpp")

SMALL = """\
// kerneltui: directive backend lsa
// kerneltui: directive issuer thread
// kerneltui: directive placement from PLACEMENT
// kerneltui: directive sync world
// kerneltui: directive chunk_bytes = CHUNK_ROWS * N * 4
// kerneltui: tunable PLACEMENT in PLACEMENT_FUSED PLACEMENT_SEQUENTIAL
#define PLACEMENT PLACEMENT_SEQUENTIAL // when rows go to the peers
// kerneltui: tunable CHUNK_ROWS in 16 32 64 if CHUNK_ROWS <= M / RANKS
#  define   CHUNK_ROWS\t32
// kerneltui: runtime PEERS in -1 0 1 default 0 if PEERS < RANKS
int first = CHUNK_ROWS;
// kerneltui: evolve begin loop
int body = 1;
int more = 2;
// kerneltui: evolve end
int last = 3;
"""


def configurations(kernel: Kernel) -> st.SearchStrategy[dict]:
    return st.fixed_dictionaries({t.name: st.sampled_from(t.values) for t in kernel.tunables})


LINES = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=30)
PLAIN_LINES = LINES.filter(lambda line: "kerneltui:" not in line)


# -- reading


def test_all_that_a_kernel_declares():
    kernel = parse_kernel(SMALL)
    assert kernel.configuration == {
        "PLACEMENT": "PLACEMENT_SEQUENTIAL",
        "CHUNK_ROWS": 32,
        "PEERS": 0,
    }
    assert kernel.runtime == {"PEERS": 0}
    assert [t.kind for t in kernel.tunables] == [TunableKind.COMPILE] * 2 + [TunableKind.RUNTIME]
    assert kernel.tunables[1].values == (16, 32, 64)
    (region,) = kernel.regions
    lines = SMALL.split("\n")[region.first - 1 : region.last]
    assert (region.name, lines) == ("loop", ["int body = 1;", "int more = 2;"])


def test_the_directive_follows_the_choices():
    directive = parse_kernel(SMALL).directive({"M": 128, "N": 10, "RANKS": 2})
    assert directive.backend is Backend.LSA
    assert directive.placement is Placement.SEQUENTIAL
    assert directive.chunk_bytes == 32 * 10 * 4
    other = parse_kernel(parse_kernel(SMALL).render({"PLACEMENT": "PLACEMENT_FUSED"}))
    assert other.directive({"M": 128, "N": 10, "RANKS": 2}).placement is Placement.FUSED


def test_constraints_must_hold_for_every_shape():
    kernel = parse_kernel(SMALL)
    large, small = {"M": 512, "RANKS": 2}, {"M": 64, "RANKS": 2}
    assert kernel.valid({"CHUNK_ROWS": 64, "PEERS": 0}, [large])
    assert not kernel.valid({"CHUNK_ROWS": 64, "PEERS": 0}, [large, small])


@pytest.mark.parametrize("file", ["host.cpp", "window.cpp"])
def test_the_library_declares_a_whole_directive(file: str):
    kernel = parse_kernel((LIBRARY / file).read_text(encoding="utf-8"), file)
    directive = kernel.directive({"M": 512, "N": 512, "K": 512, "RANKS": 2})
    assert (directive.backend is Backend.HOST) == (file == "host.cpp")
    assert kernel.regions
    assert kernel.valid(kernel.configuration, [{"M": 512, "N": 512, "K": 512, "RANKS": 2}])


def test_the_kernel_of_the_documentation_is_one(tmp_path: Path):
    page = (ROOT / "docs" / "kernel-contract.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```cpp\n(.*?)```", page, re.DOTALL)
    kernel = parse_kernel(source)
    assert kernel.directive({"M": 512, "N": 512, "K": 512, "RANKS": 2}).backend is Backend.LSA
    assert [region.name for region in kernel.regions] == ["exchange"]
    compiler = shutil.which("g++") or shutil.which("clang++")
    assert compiler, "no C++ compiler; install g++"
    file = tmp_path / "kernel.cpp"
    file.write_text(source, encoding="utf-8")
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    command = [compiler, *flags, f"-I{ROOT / 'kerneltui' / 'include'}", str(file)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


# -- rendering


@settings(max_examples=25)
@given(configurations(WINDOW))
def test_render_and_parse_give_the_configuration_back(configuration: dict):
    rendered = WINDOW.render(configuration)
    again = parse_kernel(rendered, WINDOW.file)
    assert again.configuration == configuration
    # back to where it was, byte for byte
    assert again.render(WINDOW.configuration) == WINDOW.source
    changed = [t for t in WINDOW.tunables if configuration[t.name] != t.value]
    before, after = WINDOW.source.split("\n"), rendered.split("\n")
    differing = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert len(differing) == len(changed)


@given(configurations(parse_kernel(SMALL)), st.booleans())
def test_rendering_changes_nothing_but_values(configuration: dict, windows: bool):
    source = SMALL.replace("\n", "\r\n") if windows else SMALL
    kernel = parse_kernel(source)
    expected = (
        source.replace(" PLACEMENT_SEQUENTIAL //", f" {configuration['PLACEMENT']} //")
        .replace("CHUNK_ROWS\t32", f"CHUNK_ROWS\t{configuration['CHUNK_ROWS']}")
        .replace("default 0", f"default {configuration['PEERS']}")
    )
    assert kernel.render(configuration) == expected
    assert kernel.render({}) == source


def test_a_value_is_written_as_it_is_declared():
    kernel = parse_kernel(SMALL)
    assert kernel.render({"CHUNK_ROWS": 64.0}) == kernel.render({"CHUNK_ROWS": 64})
    assert kernel.render({"PEERS": True}) == kernel.render({"PEERS": 1})


def test_words_of_the_language_can_be_names():
    text = "// kerneltui: runtime default in 0 1 default 1\n"
    kernel = parse_kernel(text)
    assert kernel.render({"default": 0}) == text.replace("default 1", "default 0")


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [("NOTHING", 1, "no such tunable"), ("CHUNK_ROWS", 48, "'48' is not one of 16 32 64")],
)
def test_only_declared_values_can_be_rendered(name: str, value: int, what: str):
    with pytest.raises(DefinitionError, match=what):
        parse_kernel(SMALL).render({name: value})


@settings(max_examples=25)
@given(configurations(WINDOW), configurations(WINDOW))
def test_one_build_serves_all_run_time_values(one: dict, other: dict):
    runtime = {t.name for t in WINDOW.tunables if t.kind is TunableKind.RUNTIME}
    merged = {**one, **{name: other[name] for name in runtime}}
    builds = [parse_kernel(WINDOW.render(c)).build_text() for c in (one, merged)]
    assert builds[0] == builds[1]
    compiled = {name for name in one if name not in runtime and one[name] != other[name]}
    if compiled:
        assert parse_kernel(WINDOW.render(other)).build_text() != builds[0]


# -- frozen text


@given(configurations(parse_kernel(SMALL)), st.lists(PLAIN_LINES, max_size=4))
def test_values_and_regions_are_not_frozen(configuration: dict, body: list[str]):
    kernel = parse_kernel(SMALL)
    lines = kernel.render(configuration).split("\n")
    region = kernel.regions[0]
    lines[region.first - 1 : region.last] = body
    assert parse_kernel("\n".join(lines)).frozen_text() == kernel.frozen_text()


@given(st.integers(0, 15), PLAIN_LINES, st.sampled_from(["insert", "replace", "delete"]))
def test_any_change_outside_is_seen(index: int, line: str, how: str):
    kernel = parse_kernel(SMALL)
    lines = SMALL.split("\n")
    region = kernel.regions[0]
    if how == "insert":
        # before the first line of a region and after its last is still inside
        assume(not region.first - 1 <= index <= region.last)
        lines.insert(index, line)
    else:
        assume(not region.first - 1 <= index < region.last)
        if how == "delete":
            del lines[index]
        else:
            assume(lines[index] != line)
            lines[index] = line
    try:
        changed = parse_kernel("\n".join(lines))
    except DefinitionError:
        return  # refused even earlier
    assume(changed.configuration == kernel.configuration)
    assert changed.frozen_text() != kernel.frozen_text()


def test_a_line_that_is_one_null_character_is_frozen_as_any_other():
    assert parse_kernel(SMALL + "\0\n").frozen_text() != parse_kernel(SMALL).frozen_text()


def test_a_region_cannot_be_made_larger():
    moved = SMALL.replace(
        "// kerneltui: evolve end\nint last = 3;", "int last = 3;\n// kerneltui: evolve end"
    )
    assert parse_kernel(moved).frozen_text() != parse_kernel(SMALL).frozen_text()
    second = SMALL.replace(
        "int first", "// kerneltui: evolve begin\n// kerneltui: evolve end\nint first"
    )
    assert parse_kernel(second).frozen_text() != parse_kernel(SMALL).frozen_text()


# -- the meaning of a text

SPACES = st.text(" \t\n", min_size=1, max_size=3)
COMMENTS = st.one_of(
    SPACES,
    st.text("ab \"'*#/", max_size=6)
    .filter(lambda text: "*/" not in text)
    .map(lambda text: f"/*{text}x*/"),
    st.text("ab \"'*#/", max_size=6).map(lambda text: f"//{text}\n"),
)
TOKENS = [
    "int",
    "x",
    "=",
    "a",
    "+",
    "++",
    "b",
    "42",
    "1.5f",
    '"te//xt"',
    '"/*"',
    "'\"'",
    "(",
    ")",
    ";",
    "->",
]


@given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=12), st.data())
def test_spaces_and_comments_mean_nothing(tokens: list[str], data: st.DataObject):
    one, other = ("".join(token + data.draw(COMMENTS) for token in tokens) for _ in range(2))
    assert parse_kernel(one).token_hash() == parse_kernel(other).token_hash()


@given(st.lists(st.sampled_from(TOKENS), max_size=8), st.lists(st.sampled_from(TOKENS), max_size=8))
def test_other_tokens_are_another_program(one: list[str], other: list[str]):
    assume(one != other)
    first, second = (parse_kernel(" ".join(tokens)) for tokens in (one, other))
    assert first.token_hash() != second.token_hash()


@settings(max_examples=25)
@given(configurations(WINDOW), configurations(WINDOW))
def test_other_values_are_another_program(one: dict, other: dict):
    first, second = (parse_kernel(WINDOW.render(c)).token_hash() for c in (one, other))
    assert (first == second) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('say("http://a", x);', 'say("http://a", y);'),
        ("say('/', '/', x); // end", "say('/', '/', y); // end"),
        ("a + ++b", "a++ + b"),
        ("#define A\nB", "#define A B"),
        ('#include "a//b.h"', '#include "a//c.h"'),
        ("x = 1; /* open", "y = 1; /* open"),
    ],
)
def test_texts_that_only_look_alike(one: str, other: str):
    assert parse_kernel(one).token_hash() != parse_kernel(other).token_hash()


def test_comments_on_preprocessor_lines_mean_nothing():
    one = "#define A 1 // one\n  #  if A /* yes */\nint x;\n#endif"
    other = "#define A 1\n#if A\n\nint x; /* a\n#define B */\n#endif // A\n"
    assert parse_kernel(one).token_hash() == parse_kernel(other).token_hash()


@given(st.text(max_size=60))
def test_any_text_has_a_hash_or_is_refused(text: str):
    try:
        kernel = parse_kernel(text)
    except DefinitionError:
        return
    assert len(kernel.token_hash()) == 16


# -- what is refused


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("// kerneltui: tunabel A in 1\n", 1, "expected tunable, runtime"),
        ("\n// kerneltui:\n", 2, "expected tunable, runtime"),
        ("// kerneltui: tunable A\n#define A 1\n", 1, "tunable NAME in VALUES"),
        ("// kerneltui: tunable A in\n#define A 1\n", 1, "tunable NAME in VALUES"),
        ("// kerneltui: tunable 1A in 1 2\n#define A 1\n", 1, "tunable NAME in VALUES"),
        ("// kerneltui: tunable A in 1 2.5\n#define A 1\n", 1, "'2.5' is not an integer or a word"),
        ("// kerneltui: tunable A in 1, 2\n#define A 1\n", 1, "'1,' is not an integer or a word"),
        ("// kerneltui: tunable A in 1 2 1\n#define A 1\n", 1, "lists a value twice"),
        ("// kerneltui: tunable A in 1 2\n\n#define A 1\n", 1, "next line must be '#define A"),
        ("// kerneltui: tunable A in 1 2", 1, "next line must be '#define A"),
        ("// kerneltui: tunable A in 1 2\n#define B 1\n", 1, "next line must be '#define A"),
        ("// kerneltui: tunable A in 1 2\n#define A 3\n", 1, "A is 3, not one of its values"),
        ("// kerneltui: tunable A in 1 2 default 2\n#define A 1\n", 1, "only a runtime tunable"),
        ("// kerneltui: tunable A in 1 2 if A <=\n#define A 1\n", 1, "not an expression"),
        ("// kerneltui: tunable A in 1 2 if open(A)\n#define A 1\n", 1, "only numbers, names"),
        ("// kerneltui: runtime A in 1 2\n", 1, "needs 'default VALUE'"),
        ("// kerneltui: runtime A in 1 2 default 3\n", 1, "A is 3, not one of its values"),
        ("// kerneltui: runtime A in one two default one\n", 1, "are integers"),
        (
            "// kerneltui: runtime A in 1 2 default 1\n" * 2,
            2,
            "tunable A is declared twice",
        ),
        ("x\n// kerneltui: directive backend\n", 2, "expected 'directive FIELD"),
        ("// kerneltui: directive chunk_bytes = 4 *\n", 1, "not an expression"),
        ("// kerneltui: directive sync world\n// kerneltui: directive sync none\n", 2, "twice"),
        ("// kerneltui: directive placement from PLACEMENT\n", 1, "no tunable PLACEMENT"),
        ("// kerneltui: evolve end\n", 1, "without a begin"),
        ("x\n// kerneltui: evolve begin a\n", 2, "never closed"),
        ("// kerneltui: evolve begin\n// kerneltui: evolve begin\n", 2, "twice (line 1)"),
        ("// kerneltui: evolve beginning\n", 1, "expected tunable, runtime"),
        ("// kerneltui: evolve\n", 1, "expected tunable, runtime"),
    ],
)
def test_a_malformed_declaration_names_its_line(text: str, line: int, what: str):
    with pytest.raises(DefinitionError) as caught:
        parse_kernel(text, "mine.cpp")
    assert str(caught.value).startswith(f"mine.cpp: line {line}: ")
    assert what in str(caught.value)


@given(st.lists(st.sampled_from(SMALL.splitlines()) | LINES, max_size=12))
def test_any_file_is_a_kernel_or_a_definition_error(lines: list[str]):
    try:
        kernel = parse_kernel("\n".join(lines))
    except DefinitionError as error:
        assert error.key.startswith("line ")
        return
    assert parse_kernel(kernel.render(kernel.configuration)).configuration == kernel.configuration


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("// kerneltui: directive sync world\n", "", "sync"),
        ("backend lsa", "backend nvlink", "nvlink"),
        ("CHUNK_ROWS * N * 4", "CHUNK_ROWS * ROWS", "'ROWS' is not a known name"),
        ("CHUNK_ROWS * N * 4", "0 - N", "chunk_bytes is -10"),
    ],
)
def test_a_directive_that_is_none_names_the_file(old: str, new: str, what: str):
    kernel = parse_kernel(SMALL.replace(old, new), "mine.cpp")
    with pytest.raises(DefinitionError, match=what) as caught:
        kernel.directive({"M": 128, "N": 10, "RANKS": 2})
    assert str(caught.value).startswith("mine.cpp: directive")


def test_a_condition_with_an_unknown_name_is_an_error_and_not_true():
    kernel = parse_kernel(SMALL.replace("M / RANKS", "ROWS / RANKS"))
    with pytest.raises(ExpressionError, match="'ROWS' is not a known name"):
        kernel.valid(kernel.configuration, [{"M": 1, "RANKS": 2}])


@pytest.mark.parametrize("rest", ["", "  ", " // rows", " /* rows */", "\r"])
def test_a_comment_may_follow_the_value_of_a_tunable(rest: str):
    kernel = parse_kernel(f"// kerneltui: tunable ROWS in 1 2\n#define ROWS 1{rest}\n")
    assert kernel.configuration == {"ROWS": 1}
    assert kernel.render({"ROWS": 2}).endswith(f"#define ROWS 2{rest}\n")


@pytest.mark.parametrize(
    "rest", [" + f()", " ; int x", " \\", " /* open", " /* */ + 1", " // rows \\"]
)
def test_code_may_not_follow_the_value_of_a_tunable(rest: str):
    with pytest.raises(DefinitionError, match="ROWS"):
        parse_kernel(f"// kerneltui: tunable ROWS in 1 2\n#define ROWS 1{rest}\n")
