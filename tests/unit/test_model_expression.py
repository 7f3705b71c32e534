from __future__ import annotations

import math
import re
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.model.errors import ExpressionError
from kerneltui.model.expression import MOST_NESTED, Expression, parse_expression

NAMES = ("M", "N", "RANKS", "MR")
VALUES = {"M": 512, "N": 777, "RANKS": 2, "MR": 6}
PIECES = (
    *NAMES, "0", "1", "7", "1e308", "'word'", "+", "-", "*", "/", "//", "%", "**", "<", "<=", "==",
    "and", "or", "not", "min", "max", "ceil", "(", ")", ",", "if", "else", "lambda", ":", ".", "[",
    "]", "{", "}", "=", ":=", "f'{M}'", "__import__", "open", "True", "None", "1j", "b'x'", "\n",
)  # fmt: skip


def outcome(text: str) -> object:
    """The value of a text, or the error; anything else than an ExpressionError gets out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return parse_expression(text).evaluate(VALUES)
        except ExpressionError as error:
            assert "\n" not in str(error)
            return error


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_an_expression_error(text: str):
    assert isinstance(outcome(text), int | float | str | ExpressionError)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join))
def test_any_text_of_pieces_of_the_language_is_a_value_or_an_expression_error(text: str):
    assert isinstance(outcome(text), int | float | str | ExpressionError)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').abort()",
        "open('/etc/passwd')",
        "().__class__",
        "M.real",
        "[M][0]",
        "{M}",
        "lambda: M",
        "(M := 3)",
        "[x for x in (1, 2)]",
        "f'{M}'",
        "min(*M)",
        "min(key=M)",
        "max()",
        "print(M)",
        "eval('1')",
        "2 ** 9999999",
        "1 if M else 2",
        "M is N",
        "M in N",
        "~M",
        "M << 70",
        "None",
        "...",
        "1j",
        "b'x'",
        "await M",
        "",
        "M +",
        "M; N",
        "import os",
    ],
)
def test_nothing_outside_the_language_is_parsed(text: str):
    with pytest.raises(ExpressionError):
        parse_expression(text)


def test_no_code_runs(tmp_path: Path):
    mark = tmp_path / "mark"
    for text in (f"open({str(mark)!r}, 'w')", f"__import__('pathlib').Path({str(mark)!r}).touch()"):
        with pytest.raises(ExpressionError):
            parse_expression(text).evaluate({})
    assert not mark.exists()


NUMBERS = st.recursive(
    st.integers(0, 50).map(str) | st.sampled_from(NAMES),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
            lambda part: f"({part[0]} {part[1]} {part[2]})"
        ),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(
            lambda part: f"{part[0]}({part[1]}, {part[2]})"
        ),
        inner.map(lambda part: f"-{part}"),
        inner.map(lambda part: f"ceil({part})"),
    ),
    max_leaves=8,
)


@given(NUMBERS)
def test_arithmetic_is_pythons(text: str):
    try:
        expected = eval(
            text, {"__builtins__": {}}, {**VALUES, "min": min, "max": max, "ceil": math.ceil}
        )
    except (ZeroDivisionError, OverflowError):
        with pytest.raises(ExpressionError):
            parse_expression(text).number(VALUES)
        return
    assert parse_expression(text).number(VALUES) == pytest.approx(float(expected), rel=1e-12)


@given(
    NUMBERS,
    NUMBERS,
    st.sampled_from(["<", "<=", "==", "!=", ">", ">="]),
    st.sampled_from(["and", "or"]),
)
def test_conditions_are_pythons(left: str, right: str, compare: str, join: str):
    text = f"{left} {compare} {right} {join} not {right} > {left}"
    try:
        expected = eval(
            text, {"__builtins__": {}}, {**VALUES, "min": min, "max": max, "ceil": math.ceil}
        )
    except (ZeroDivisionError, OverflowError):
        return
    assert parse_expression(text).holds(VALUES) is bool(expected)


@given(NUMBERS)
def test_names_are_those_of_the_text(text: str):
    words = re.findall(r"[A-Za-z]+", text)
    assert parse_expression(text).names == set(words) & set(NAMES)


def test_a_name_that_is_not_given_is_a_word():
    condition = parse_expression("COPY == COPY_STREAM")
    assert condition.holds({"COPY": "COPY_STREAM"})
    assert not condition.holds({"COPY": "COPY_MEMCPY"})


def test_comparisons_chain():
    assert parse_expression("1 < MR <= 6").holds(VALUES)
    assert not parse_expression("1 < MR < 6").holds(VALUES)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("M / (RANKS - 2)", "division"),
        ("ROWS * 2", "'ROWS' is not a known name"),
        ("WORD", "'WORD' is not a known name"),
        ("M < WORD", "not supported"),
        ("1e308 * 10", "finite"),
        ("1e999 - 1e999", "finite"),
        ("9" * 400, "finite"),
        ("ceil(1e999)", "infinity"),
    ],
)
def test_what_has_no_value_is_an_error_that_shows_the_text(text: str, what: str):
    with pytest.raises(ExpressionError, match=what) as caught:
        parse_expression(text).number(VALUES)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "text",
    [
        "1" + " + 1" * 5000,
        "-" * 3000 + "1",
        "(" * 500 + "1" + ")" * 500,
        "min(" * 90 + "1" + ")" * 90,
    ],
)
def test_depth_is_limited_and_never_a_recursion_error(text: str):
    assert isinstance(outcome(text), ExpressionError | int | float)


def test_the_longest_chain_works():
    text = " + ".join(["1"] * MOST_NESTED)
    assert parse_expression(text).number({}) == MOST_NESTED
    with pytest.raises(ExpressionError, match="nested"):
        parse_expression(text + " + 1")
    assert parse_expression(" and ".join(["1"] * 1000)).holds({})


def test_expressions_are_values():
    one, other = parse_expression(" M + 1 "), parse_expression("M + 1")
    assert isinstance(one, Expression)
    assert one.text == other.text == "M + 1"
