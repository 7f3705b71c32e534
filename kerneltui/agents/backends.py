"""The ways to move data that a machine has, which of them a question is about, and what is told of them.

Every question has a line for each way; the digest of how one is used stands only in questions about it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kerneltui.agents.prompt_files import prompt, prompt_text
from kerneltui.model.directive import Backend
from kerneltui.model.steer_event import ConstraintKind
from kerneltui.model.steering import Constraint

__all__ = ["Ways", "ways_on"]

GIN = "gin"
WINDOWS = "nccl windows"
"""The words of a machine that say whether it has them: they begin with `yes`."""

_FIELD = "backend"
_YES = "yes"


@dataclass(frozen=True, slots=True)
class Ways:
    """How data can move on a machine.

    Attributes:
        briefs: By backend, what distinguishes it, in a line.
        digests: By backend, how it is used.
        allowed: Those that the human has not banned, or the one that the human forces.
        about: What holds for all of them.
        missing: Backends that a directive may name and this machine does not have.
    """

    briefs: Mapping[Backend, str]
    digests: Mapping[Backend, str]
    allowed: tuple[Backend, ...]
    about: str
    missing: tuple[Backend, ...]

    def chosen(self, *stated: Backend | None) -> Backend | None:
        """The backend that a question is about: the only one that is left, or the first stated one of them.

        Returns:
            None while the model is free to choose.
        """
        if len(self.allowed) == 1:
            return self.allowed[0]
        return next((one for one in stated if one in self.allowed), None)

    def overview(self) -> str:
        """A line for each way, and what holds for all; the same in all questions of a session."""
        if not self.briefs:
            return prompt("moving_nothing", about=self.about)
        return prompt(
            "moving_data",
            ways="\n".join(f"- `{backend}`: {text}" for backend, text in self.briefs.items()),
            about=self.about,
            missing=", ".join(map(str, self.missing)) or "none",
        )


def ways_on(
    target: str,
    ranks: int,
    environment: Mapping[str, str],
    constraints: Sequence[Constraint] = (),
) -> Ways:
    """The ways of a machine; one rank alone needs none.

    Args:
        target: The name of the target.
        ranks: How many there are.
        environment: The machine's words, as the session records them.
        constraints: What the human banned and forced.
    """
    table = tomllib.loads(prompt_text("backends.toml"))[target]
    gin = environment.get(GIN, "").startswith(_YES)
    windows = environment.get(WINDOWS, "").startswith(_YES)
    here = {
        backend: table[backend]
        for backend in Backend
        if ranks > 1 and backend in table and (backend is not Backend.GIN or gin)
    }
    return Ways(
        briefs={name: row["brief"] for name, row in here.items()},
        digests={name: _digest(row, windows=windows) for name, row in here.items()},
        allowed=_allowed(tuple(here), constraints),
        about=table.get("about", ""),
        missing=tuple(b for b in Backend if b is not Backend.HOST and b not in here),
    )


def _digest(row: Mapping[str, Sequence[str]], *, windows: bool) -> str:
    names = [*row["digest"], *(row.get("windows", ()) if windows else ())]
    return "\n\n".join(prompt(name) for name in names)


def _allowed(here: Sequence[Backend], constraints: Sequence[Constraint]) -> tuple[Backend, ...]:
    """What is left of the ways here; one that is forced although it is not here is nobody's choice."""
    mine = [c for c in constraints if c.field.lower() == _FIELD]
    values = {c.value.lower().removeprefix(f"{_FIELD}_"): c.kind for c in mine}
    forced = [name for name in here if values.get(str(name)) is ConstraintKind.FORCE]
    if forced:
        return tuple(forced[-1:])
    return tuple(name for name in here if values.get(str(name)) is not ConstraintKind.BAN)
