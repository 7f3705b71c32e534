"""Parameters of a search, the conditions that bind them, and the listing of what is valid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Constraint",
    "Parameter",
    "SpaceError",
    "checked",
    "encode",
    "enumerate_valid",
    "holds",
    "keys_of",
]

Value = int | float | str
Configuration = tuple[Value, ...]
Codes = tuple[int, ...]
Rows = NDArray[np.int64]

# The rows of a half-built product may outnumber the valid ones, since later names prune too.
_PARTIAL_FACTOR = 4


class SpaceError(ValueError):
    """A space, a configuration or a restriction that makes no sense; the text says which."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named choice with its legal values in their natural order.

    Attributes:
        name: The tunable or directive field.
        values: The legal values; neighbours in this list are neighbours for the search.
        default: The value that the source has now; ``None`` if there is none to return to.
    """

    name: str
    values: tuple[Value, ...]
    default: Value | None = None

    def __post_init__(self) -> None:
        if not self.values:
            raise SpaceError(f"parameter {self.name}: no values; declare at least one")
        if len(set(self.values)) != len(self.values):
            raise SpaceError(f"parameter {self.name}: a value is listed twice")
        if self.default is not None and self.default not in self.values:
            raise SpaceError(f"parameter {self.name}: default {self.default} is not a legal value")

    def code(self, value: Value) -> int:
        """Gives the position of a value.

        Raises:
            SpaceError: The value is not legal.
        """
        try:
            return self.values.index(value)
        except ValueError:
            legal = " ".join(str(known) for known in self.values)
            raise SpaceError(
                f"parameter {self.name}: {value} is not a legal value; use one of {legal}"
            ) from None

    def parse(self, text: str) -> Value:
        """Finds the value that a person means by ``text``, as in ``/ban CHUNK_ROWS=64``.

        Raises:
            SpaceError: No legal value is written so.
        """
        for value in self.values:
            if str(value) == text.strip():
                return value
        return self.values[self.code(text)]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on some of the parameters.

    Attributes:
        names: The parameters that the condition reads. The fewer, the earlier it prunes.
        holds: Gets a mapping with exactly these names and says whether the combination is legal.
    """

    names: tuple[str, ...]
    holds: Callable[[Mapping[str, Value]], bool]


def checked(parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """Refuses an empty list and names that occur twice."""
    parameters = tuple(parameters)
    if not parameters:
        raise SpaceError("a space needs at least one parameter")
    names = [parameter.name for parameter in parameters]
    for name in names:
        if names.count(name) > 1:
            raise SpaceError(f"parameter {name} is declared twice")
    return parameters


def encode(parameters: tuple[Parameter, ...], configuration: Configuration) -> Codes:
    """Turns values into codes; refuses a wrong number of values and values that are not legal."""
    if len(configuration) != len(parameters):
        raise SpaceError(
            f"{len(configuration)} values for {len(parameters)} parameters in {configuration}"
        )
    return tuple(
        parameter.code(value) for parameter, value in zip(parameters, configuration, strict=True)
    )


def keys_of(parameters: tuple[Parameter, ...], rows: Rows) -> NDArray[Any]:
    """Turns each row of codes into one number, ascending in the order of the rows."""
    weights = [1]
    for parameter in reversed(parameters[1:]):
        weights.append(weights[-1] * len(parameter.values))
    # Python integers are slow, but right, where the product exceeds 64 bits.
    combinations = math.prod(len(parameter.values) for parameter in parameters)
    dtype = np.dtype(np.int64) if combinations < 2**62 else np.dtype(object)
    return rows.astype(dtype) @ np.array(weights[::-1], dtype=dtype)


def enumerate_valid(
    parameters: tuple[Parameter, ...],
    constraints: tuple[Constraint, ...],
    allowed: tuple[Codes, ...],
    limit: int,
) -> Rows | None:
    """Lists the valid rows in ascending order; ``None`` if there are more than ``limit``."""
    names = [parameter.name for parameter in parameters]
    bound_at = [
        max((names.index(name) for name in constraint.names), default=0)
        for constraint in constraints
    ]
    rows = np.zeros((1, 0), dtype=np.int64)
    for place, codes in enumerate(allowed):
        if len(rows) * len(codes) > _PARTIAL_FACTOR * limit:
            return None
        column = np.tile(np.array(codes, dtype=np.int64), len(rows))
        rows = np.column_stack([np.repeat(rows, len(codes), axis=0), column])
        for constraint, bound in zip(constraints, bound_at, strict=True):
            if bound == place:
                rows = rows[_mask(parameters, constraint, names, rows)]
    return rows if len(rows) <= limit else None


def _mask(
    parameters: tuple[Parameter, ...], constraint: Constraint, names: list[str], rows: Rows
) -> NDArray[np.bool_]:
    """Evaluates a constraint once for each distinct combination of the values that it reads."""
    places = tuple(names.index(name) for name in constraint.names)
    if not len(rows):
        return np.zeros(0, dtype=bool)
    if not places:
        return np.full(len(rows), holds(parameters, constraint, (), ()))
    read = tuple(parameters[place] for place in places)
    keys = keys_of(read, rows[:, places])
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    verdicts = [holds(parameters, constraint, places, tuple(rows[row, places])) for row in first]
    return np.array(verdicts, dtype=bool)[inverse.reshape(-1)]


def holds(
    parameters: tuple[Parameter, ...],
    constraint: Constraint,
    places: tuple[int, ...],
    part: Codes,
) -> bool:
    """Evaluates a constraint on the codes of the parameters that it reads."""
    named = {
        parameters[place].name: parameters[place].values[code]
        for place, code in zip(places, part, strict=True)
    }
    try:
        return bool(constraint.holds(named))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise SpaceError(f"a constraint cannot be evaluated at {named}: {error}") from error
