"""The set of configurations that a search may propose.

A configuration is a tuple of values, one for each parameter, in the order of the parameters.
Inside the search it is a row of *codes*: the position of each value in its parameter's list.
Codes make the moves (next value, swap, crossover) and the surrogate independent of what the
values are: numbers, or words such as the fields of a directive.

Up to a million valid configurations are enumerated, one parameter after the other; a constraint
is applied as soon as its names are bound, once for each distinct combination of their values.
Larger spaces are sampled, and what violates a constraint is repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerneltui.search.parameter import (
    Codes,
    Configuration,
    Constraint,
    Parameter,
    Rows,
    SpaceError,
    Value,
    checked,
    encode,
    enumerate_valid,
    holds,
    keys_of,
)

__all__ = ["Space"]

ENUMERATION_LIMIT = 1_000_000
_REPAIR_STEPS = 64
_DRAWS_PER_SAMPLE = 400


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """The valid configurations of some parameters; never empty.

    Build one with :meth:`of` or :meth:`of_valid`, narrow it with :meth:`restricted`.

    Attributes:
        parameters: In the order of a configuration's values.
        constraints: Every one holds for every configuration of the space.
        allowed: For each parameter the codes that are not banned.
        rows: All valid configurations as codes, shape (size, parameters), in ascending order;
            ``None`` if there are too many to list.
    """

    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...]
    allowed: tuple[Codes, ...]
    rows: Rows | None
    _keys: NDArray[Any] | None = field(default=None, repr=False)
    _known: dict[tuple[int, Codes], bool] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        parameters: Iterable[Parameter],
        constraints: Iterable[Constraint] | Callable[[Mapping[str, Value]], bool] = (),
        limit: int = ENUMERATION_LIMIT,
    ) -> Space:
        """Builds the space of all combinations that satisfy the constraints.

        Args:
            parameters: At least one; names differ.
            constraints: Constraints, or one condition on all parameters at once.
            limit: The most configurations to list; a larger space is sampled.

        Raises:
            SpaceError: No combination is valid, a constraint names an unknown parameter or
                cannot be evaluated.
        """
        parameters = checked(parameters)
        if callable(constraints):
            names = tuple(parameter.name for parameter in parameters)
            constraints = (Constraint(names, constraints),)
        constraints = tuple(constraints)
        known = {parameter.name for parameter in parameters}
        for constraint in constraints:
            for name in constraint.names:
                if name not in known:
                    raise SpaceError(f"a constraint reads {name}, which is not a parameter")
        allowed = tuple(tuple(range(len(parameter.values))) for parameter in parameters)
        return _build(parameters, constraints, allowed, limit)

    @classmethod
    def of_valid(cls, parameters: Iterable[Parameter], valid: Iterable[Configuration]) -> Space:
        """Builds the space that consists of the listed configurations.

        Raises:
            SpaceError: The list is empty or holds a value that no parameter has.
        """
        parameters = checked(parameters)
        codes = sorted({encode(parameters, configuration) for configuration in valid})
        if not codes:
            raise SpaceError("no valid configuration is listed")
        allowed = tuple(tuple(range(len(parameter.values))) for parameter in parameters)
        return _listed(parameters, (), allowed, np.array(codes, dtype=np.int64))

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names in order."""
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def size(self) -> int | None:
        """The number of valid configurations; ``None`` if they are not listed."""
        return None if self.rows is None else len(self.rows)

    def configuration(self, named: Mapping[str, Value]) -> Configuration:
        """Orders named values; a parameter without a value gets its default.

        Raises:
            SpaceError: A name or value is unknown, or a value is missing.
        """
        for name in named:
            self.position(name)
        values: list[Value] = []
        for parameter in self.parameters:
            value = named.get(parameter.name, parameter.default)
            if value is None:
                raise SpaceError(f"parameter {parameter.name}: no value given and no default")
            values.append(parameter.values[parameter.code(value)])
        return tuple(values)

    def named(self, configuration: Configuration) -> dict[str, Value]:
        """Gives the values of a configuration by name."""
        return dict(zip(self.names, configuration, strict=True))

    def encode(self, configuration: Configuration) -> Codes:
        """Turns values into codes; the combination need not be valid.

        Raises:
            SpaceError: A value is not legal or the number of values is wrong.
        """
        return encode(self.parameters, configuration)

    def decode(self, codes: Sequence[int] | Rows) -> Configuration:
        """Turns codes into values."""
        return tuple(
            parameter.values[int(code)]
            for parameter, code in zip(self.parameters, codes, strict=True)
        )

    def position(self, name: str) -> int:
        """Gives the place of a parameter in a configuration.

        Raises:
            SpaceError: No parameter has this name.
        """
        for place, parameter in enumerate(self.parameters):
            if parameter.name == name:
                return place
        raise SpaceError(f"unknown parameter {name}; the parameters are {', '.join(self.names)}")

    def at(self, index: int) -> Configuration:
        """Gives the configuration with this number.

        Raises:
            SpaceError: The space is not listed or has fewer configurations.
        """
        if self.rows is None or not 0 <= index < len(self.rows):
            raise SpaceError(f"configuration {index} does not exist; the space has {self.size}")
        return self.decode(self.rows[index])

    def index(self, configuration: Configuration) -> int:
        """Gives the number of a configuration, the inverse of :meth:`at`.

        Raises:
            SpaceError: The configuration is not valid or the space is not listed.
        """
        found = self._find(np.array([self.encode(configuration)], dtype=np.int64))
        if found is None or found[0] < 0:
            raise SpaceError(f"{self.named(configuration)} is not in the space")
        return int(found[0])

    def contains(self, configuration: Configuration) -> bool:
        """Says whether a configuration is valid and not banned; its values must be legal."""
        return bool(self.valid(np.array([self.encode(configuration)], dtype=np.int64))[0])

    def valid(self, rows: Rows) -> NDArray[np.bool_]:
        """Says for each row of codes whether it belongs to the space."""
        found = self._find(rows)
        if found is not None:
            return found >= 0
        return np.array([self._violated(tuple(row)) is None for row in rows.tolist()], dtype=bool)

    def default(self) -> Configuration | None:
        """Gives the configuration of all defaults, or ``None`` if one has none."""
        values = tuple(parameter.default for parameter in self.parameters)
        return None if any(value is None for value in values) else values  # type: ignore[return-value]

    def restricted(self, bans: Collection[tuple[str, Value]], forces: Mapping[str, Value]) -> Space:
        """Gives the part of the space without the banned and with the forced values.

        Raises:
            SpaceError: A name or value is unknown, or nothing is left.
        """
        banned = {
            (place, self.parameters[place].code(value))
            for place, value in ((self.position(name), value) for name, value in bans)
        }
        forced = {
            self.position(name): self.parameters[self.position(name)].code(value)
            for name, value in forces.items()
        }
        allowed = tuple(
            tuple(
                code
                for code in codes
                if (place, code) not in banned and forced.get(place, code) == code
            )
            for place, codes in enumerate(self.allowed)
        )
        for parameter, codes in zip(self.parameters, allowed, strict=True):
            if not codes:
                raise SpaceError(f"{parameter.name}: every value is banned; allow or release one")
        if self.rows is None:
            return _build(self.parameters, self.constraints, allowed, ENUMERATION_LIMIT)
        keep = np.ones(len(self.rows), dtype=bool)
        for place, codes in enumerate(allowed):
            keep &= np.isin(self.rows[:, place], codes)
        if not keep.any():
            raise SpaceError("the bans and forces together leave no valid configuration")
        return _listed(self.parameters, self.constraints, allowed, self.rows[keep])

    def sample(self, rng: np.random.Generator, count: int, seen: Collection[Codes]) -> Rows:
        """Draws up to ``count`` different valid configurations that are not in ``seen``.

        A listed space yields fewer only when it is exhausted; a sampled one also when repair
        does not find more in a bounded number of draws.

        Returns:
            Codes, shape (at most ``count``, parameters).
        """
        if self.rows is not None:
            free = self._unseen(self.rows, seen)
            return self.rows[rng.choice(free, size=min(count, len(free)), replace=False)]
        taken = set(seen)
        drawn: list[Codes] = []
        for _ in range(_DRAWS_PER_SAMPLE * count):
            if len(drawn) == count:
                break
            codes = self._repaired(rng)
            if codes is not None and codes not in taken:
                taken.add(codes)
                drawn.append(codes)
        return np.array(drawn, dtype=np.int64).reshape(-1, len(self.parameters))

    def _unseen(self, rows: Rows, seen: Collection[Codes]) -> NDArray[np.int64]:
        """Gives the numbers of the listed rows that are not in ``seen``."""
        keep = np.ones(len(rows), dtype=bool)
        if seen:
            found = self._find(np.array(list(seen), dtype=np.int64))
            if found is not None:
                keep[found[found >= 0]] = False
        return np.flatnonzero(keep)

    def _find(self, rows: Rows) -> NDArray[np.int64] | None:
        """Gives the number of each row, -1 for invalid ones; ``None`` if not listed."""
        if self._keys is None:
            return None
        keys = keys_of(self.parameters, rows)
        places = np.searchsorted(self._keys, keys)
        places = np.minimum(places, len(self._keys) - 1)
        return np.where(self._keys[places] == keys, places, -1)

    def _violated(self, codes: Codes) -> tuple[int, ...] | None:
        """Gives the places that a broken ban or constraint reads; ``None`` if all is well."""
        for place, code in enumerate(codes):
            if code not in self.allowed[place]:
                return (place,)
        for number, constraint in enumerate(self.constraints):
            places = tuple(self.position(name) for name in constraint.names)
            part = tuple(codes[place] for place in places)
            known = self._known.get((number, part))
            if known is None:
                known = holds(self.parameters, constraint, places, part)
                self._known[number, part] = known
            if not known:
                return places or (0,)
        return None

    def _repaired(self, rng: np.random.Generator) -> Codes | None:
        """Draws a combination and changes what violates a constraint, for a bounded time."""
        codes = [int(rng.choice(allowed)) for allowed in self.allowed]
        for _ in range(_REPAIR_STEPS):
            places = self._violated(tuple(codes))
            if places is None:
                return tuple(codes)
            place = int(rng.choice(places))
            codes[place] = int(rng.choice(self.allowed[place]))
        return None


def _listed(
    parameters: tuple[Parameter, ...],
    constraints: tuple[Constraint, ...],
    allowed: tuple[Codes, ...],
    rows: Rows,
) -> Space:
    return Space(parameters, constraints, allowed, rows, keys_of(parameters, rows))


def _build(
    parameters: tuple[Parameter, ...],
    constraints: tuple[Constraint, ...],
    allowed: tuple[Codes, ...],
    limit: int,
) -> Space:
    rows = enumerate_valid(parameters, constraints, allowed, limit)
    if rows is not None:
        if not len(rows):
            raise SpaceError("the constraints leave no valid configuration")
        return _listed(parameters, constraints, allowed, rows)
    space = Space(parameters, constraints, allowed, None)
    if not len(space.sample(np.random.default_rng(0), 1, ())):
        raise SpaceError("no valid configuration found by sampling; loosen a constraint")
    return space
