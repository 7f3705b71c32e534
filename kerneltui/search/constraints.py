"""What the human banned or forced, held against a kernel: its tunables and its directive.

A constraint names a tunable as the kernel spells it, or a field of the directive. One that names a tunable
such as PLACEMENT holds for the field of that name in kernels without the tunable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kerneltui.model.directive import FIELDS, Backend, Directive, Issuer, Placement, Sync
from kerneltui.model.steer_event import ConstraintKind
from kerneltui.model.steering import Constraint

__all__ = ["directive_problem", "violation"]

_WORDS: Mapping[str, tuple[str, ...]] = {
    "backend": tuple(map(str, Backend)),
    "placement": tuple(map(str, Placement)),
    "sync": tuple(map(str, Sync)),
    "issuer": tuple(map(str, Issuer)),
}


def directive_problem(field: str, value: str) -> str:
    """Why a field of the directive cannot have a value; empty if it can.

    Raises:
        KeyError: There is no such field.
    """
    if field == "chunk_bytes":
        legal = value.isascii() and value.isdigit() and value == str(int(value))
        return (
            ""
            if legal
            else f"chunk_bytes is a number of bytes (0 is the whole shard), not '{value}'"
        )
    words = _WORDS[field]
    return "" if value in words else f"{field} has no value '{value}'; it has {' '.join(words)}"


def violation(
    constraints: Iterable[Constraint], directive: Directive | None, tunables: Mapping[str, object]
) -> str:
    """Says which constraints a kernel does not keep to; empty if it keeps to all.

    Args:
        constraints: Those in force.
        directive: Of the kernel.
        tunables: Its values.
    """
    broken: list[str] = []
    for constraint in constraints:
        if constraint.kind is ConstraintKind.PIN:
            continue
        name, wanted = constraint.field, constraint.value
        field = name.lower()
        if name in tunables:
            found = str(tunables[name])
        elif directive is not None and field in FIELDS:
            name, wanted = field, wanted.lower().removeprefix(f"{field}_")
            found = str(getattr(directive, field))
        else:
            continue
        if constraint.kind is ConstraintKind.BAN and found == wanted:
            broken.append(f"{name}={wanted} is banned")
        if constraint.kind is ConstraintKind.FORCE and found != wanted:
            broken.append(f"{name}={wanted} is forced, and this has {found}")
    return "; ".join(broken)
