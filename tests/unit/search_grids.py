"""Small spaces that are searched to their end, and what their configurations cost."""

from __future__ import annotations

from kerneltui.search.parameter import Configuration, Constraint, Parameter
from kerneltui.search.space import Space


def grid(sizes: list[int], modulus: int = 0):
    parameters = [
        Parameter(f"p{i}", tuple("abcdef"[:size]) if i % 3 == 2 else tuple(range(size)), None)
        for i, size in enumerate(sizes)
    ]
    if not modulus:
        return Space.of(parameters)
    numbers = [p.name for p in parameters if not isinstance(p.values[0], str)]
    constraint = Constraint(tuple(numbers), lambda v: sum(v.values()) % modulus != 1)
    return Space.of(parameters, (constraint,))


def cost(configuration: Configuration):
    """A rough surface with failures, the same for every run."""
    total = sum(17 * (place + 1) * len(str(v)) % 7 for place, v in enumerate(configuration))
    if len(configuration) > 1 and configuration[0] == configuration[1] == 2:
        return None
    return 0.1 * total + 0.05 * sum(v for v in configuration if isinstance(v, int))
