"""Typed values out of a TOML table, with errors that name file and key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from kerneltui.model.errors import DefinitionError, ExpressionError
from kerneltui.model.expression import Expression, parse_expression

__all__ = ["TableReader"]

_MISSING: Any = object()


class TableReader:
    """Takes typed values out of a TOML table and names the key when one does not fit."""

    def __init__(self, file: str, prefix: str, table: Mapping[str, Any]) -> None:
        self._file = file
        self._prefix = prefix
        self._table = table
        self._taken: set[str] = set()

    def error(self, key: str, problem: str) -> DefinitionError:
        """Returns the error for a key."""
        return DefinitionError(self._file, f"{self._prefix}{key}", problem)

    def finish(self) -> None:
        """Refuses keys that nobody asked for.

        Raises:
            DefinitionError: There is one; as from every other method.
        """
        unknown = [key for key in self._table if key not in self._taken]
        if unknown:
            known = ", ".join(sorted(self._taken))
            raise self.error(unknown[0], f"unknown key; known here: {known}")

    def _take(self, key: str, kinds: type | tuple[type, ...], what: str, default: Any) -> Any:
        self._taken.add(key)
        value = self._table.get(key, default)
        if value is _MISSING:
            raise self.error(key, f"is missing, expected {what}")
        if value is not default and (
            not isinstance(value, kinds) or (isinstance(value, bool) and bool not in _tuple(kinds))
        ):
            raise self.error(key, f"expected {what}, found {value!r}")
        return value

    def word(self, key: str, default: str = _MISSING) -> str:
        """Returns a text."""
        return self._take(key, str, "a text", default)

    def number(self, key: str) -> float:
        """Returns a finite number above 0."""
        value = float(self._take(key, (int, float), "a number", _MISSING))
        if not math.isfinite(value) or value <= 0:
            raise self.error(key, f"is {value:g}, expected a finite number above 0")
        return value

    def integer(self, key: str, *, minimum: int | None = None, default: int = _MISSING) -> int:
        """Returns an integer."""
        value: int = self._take(key, int, "an integer", default)
        if minimum is not None and value < minimum:
            raise self.error(key, f"is {value}, expected at least {minimum}")
        return value

    def optional_integer(self, key: str, *, minimum: int | None = None) -> int | None:
        """Returns an integer, or None if it is not there."""
        return self.integer(key, minimum=minimum) if key in self._table else self._nothing(key)

    def _nothing(self, key: str) -> None:
        self._taken.add(key)

    def flag(self, key: str) -> bool:
        """Returns true or false; false if it is not there."""
        return self._take(key, bool, "true or false", False)

    def choice(self, key: str, legal: Any, default: str = _MISSING) -> str:
        """Returns one of the legal texts."""
        value = self.word(key, default)
        if value not in legal:
            raise self.error(key, f"'{value}' is not one of {', '.join(legal)}")
        return value

    def words(self, key: str, default: tuple[str, ...] = _MISSING) -> tuple[str, ...]:
        """Returns a list of texts."""
        value: Any = self._take(key, list, "a list of texts", default)
        if value is default:
            return default
        items = cast("list[Any]", value)
        if not all(isinstance(item, str) for item in items):
            raise self.error(key, f"expected a list of texts, found {items!r}")
        return tuple(items)

    def expression(self, key: str) -> Expression:
        """Returns an expression; a plain integer is one too."""
        return self.expression_text(
            str(self._take(key, (str, int), "an expression", _MISSING)), key
        )

    def optional_expression(self, key: str) -> Expression | None:
        """Returns an expression, or None if it is not there."""
        return self.expression(key) if key in self._table else self._nothing(key)

    def expression_text(self, text: str, key: str) -> Expression:
        """Parses an expression that stands at a key."""
        try:
            return parse_expression(text)
        except ExpressionError as error:
            raise self.error(key, str(error)) from error

    def table(self, key: str) -> TableReader:
        """Returns a reader of a table."""
        return self._reader(key, self._take(key, dict, "a table", _MISSING))

    def tables(self, key: str) -> dict[str, TableReader]:
        """Returns readers of the named tables below a key."""
        value: Any = self._take(key, dict, "tables", _MISSING)
        parts = cast("dict[str, Any]", value).items()
        return {name: self._reader(f"{key}.{name}", part) for name, part in parts}

    def integers(self, key: str, *, minimum: int | None = None) -> tuple[int, ...]:
        """Returns a list of at least one integer, each of them once."""
        value: Any = self._take(key, list, "a list of integers", _MISSING)
        items = cast("list[Any]", value)
        if not items or not all(type(item) is int for item in items):
            raise self.error(key, f"expected a list of integers, found {items!r}")
        doubled = [item for item in items if items.count(item) > 1]
        if doubled:
            raise self.error(key, f"{doubled[0]} is listed twice")
        low = [item for item in items if minimum is not None and item < minimum]
        if low:
            raise self.error(key, f"has {low[0]}, expected at least {minimum}")
        return tuple(items)

    def list_of_tables(
        self, key: str, default: tuple[TableReader, ...] = _MISSING
    ) -> list[TableReader]:
        """Returns readers of an array of tables."""
        value: Any = self._take(key, list, f"[[{key}]] tables", default)
        if value is default:
            return list(default)
        parts = enumerate(cast("list[Any]", value))
        return [self._reader(f"{key}[{index}]", part) for index, part in parts]

    def _reader(self, key: str, part: Any) -> TableReader:
        if not isinstance(part, dict):
            raise self.error(key, f"expected a table, found {part!r}")
        table = cast("dict[str, Any]", part)
        return TableReader(self._file, f"{self._prefix}{key}.", table)


def _tuple(kinds: type | tuple[type, ...]) -> tuple[type, ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)
