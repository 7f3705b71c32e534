"""Integer, boolean and arithmetic expressions in workload files and kernel comments.

A small, closed language: numbers, names, + - * / // %, comparisons, and / or / not, min, max, ceil,
parentheses. Parsed by Python's own parser and held against a list of allowed nodes, so that a workload
file can never run code.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kerneltui.model.errors import ExpressionError

__all__ = ["Expression", "Value", "parse_expression"]

Value = int | float | str | bool

MOST_NESTED = 100  # far below Python's own limit, so that evaluation cannot run out of stack

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[object, object], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,  # pyright: ignore[reportAssignmentType]
    ast.LtE: operator.le,  # pyright: ignore[reportAssignmentType]
    ast.Gt: operator.gt,  # pyright: ignore[reportAssignmentType]
    ast.GtE: operator.ge,  # pyright: ignore[reportAssignmentType]
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max, "ceil": math.ceil}


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression: its text and the names that it needs."""

    text: str
    names: frozenset[str]
    _tree: ast.expr

    def evaluate(self, values: Mapping[str, Value]) -> Value:
        """Evaluates with the given names.

        A name that is not given stands for itself as a word, so that `COPY == COPY_STREAM` compares
        the tunable COPY with the word COPY_STREAM.

        Raises:
            ExpressionError: An operation does not fit its operands, such as a division by zero.
        """
        try:
            return _evaluate(self._tree, values)
        except (TypeError, ZeroDivisionError, OverflowError, ValueError) as error:
            raise ExpressionError(f"{_quoted(self.text)}: {error}") from error

    def number(self, values: Mapping[str, Value]) -> float:
        """Evaluates to a number.

        Raises:
            ExpressionError: The result is a word, or no finite number.
        """
        result = self.evaluate(values)
        if isinstance(result, str):
            raise ExpressionError(f"{_quoted(self.text)}: '{result}' is not a known name")
        try:
            number = float(result)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise ExpressionError(f"{_quoted(self.text)}: is not a finite number")
        return number

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Evaluates as a condition."""
        return bool(self.evaluate(values))


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> Expression:
    """Parses an expression.

    Raises:
        ExpressionError: It does not parse, or uses something that the language does not have.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{_quoted(text)}: not an expression") from error
    names: set[str] = set()
    _check(tree, text, names, MOST_NESTED)
    return Expression(text.strip(), frozenset(names), tree)


def _quoted(text: str) -> str:
    """Returns a text for an error line: short, and on one line."""
    line = " ".join(text.split())
    return f"'{line[:77]}…'" if len(line) > 80 else f"'{line}'"


def _check(node: ast.expr, text: str, names: set[str], depth: int) -> None:
    if depth == 0:
        raise ExpressionError(f"{_quoted(text)}: is nested more than {MOST_NESTED} deep")
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return
        case ast.Name(id=name):
            names.add(name)
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            children = [left, right]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=operand):
            children = [operand]
        case ast.BoolOp(values=values):
            children = values
        case ast.Compare(left=left, ops=ops, comparators=right) if all(
            type(op) in _COMPARE for op in ops
        ):
            children = [left, *right]
        case ast.Call(func=ast.Name(id=function), args=args, keywords=[]) if (
            function in _FUNCTIONS and args
        ):
            children = args
        case _:
            raise ExpressionError(
                f"{_quoted(text)}: only numbers, names, + - * / // %, comparisons, and/or/not, min, max, ceil"
            )
    for child in children:
        _check(child, text, names, depth - 1)


def _evaluate(node: ast.expr, values: Mapping[str, Value]) -> Value:
    match node:
        case ast.Constant(value=value):
            return value  # pyright: ignore[reportReturnType]
        case ast.Name(id=name):
            return values.get(name, name)
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_number(left, values), _number(right, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, values)
        case ast.UnaryOp(op=op, operand=operand):
            number = _number(operand, values)
            return -number if isinstance(op, ast.USub) else number
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_evaluate(part, values) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_evaluate(part, values) for part in parts)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            current = _evaluate(left, values)
            for op, right in zip(ops, comparators, strict=True):
                following = _evaluate(right, values)
                if not _COMPARE[type(op)](current, following):
                    return False
                current = following
            return True
        case ast.Call(func=ast.Name(id=function), args=args):
            return _FUNCTIONS[function](*(_number(arg, values) for arg in args))
        case _:
            raise ExpressionError(f"unexpected {type(node).__name__}")


def _number(node: ast.expr, values: Mapping[str, Value]) -> float:
    value = _evaluate(node, values)
    if isinstance(value, str):
        raise ExpressionError(f"'{value}' is not a known name")
    return value
