"""What a strategy was told: results, proposals under way, steering."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field

import numpy as np

from kerneltui.search.parameter import Codes, Configuration, SpaceError, Value
from kerneltui.search.space import Space

__all__ = ["History", "Trial"]


@dataclass(slots=True)
class Trial:
    """All results of one configuration.

    Attributes:
        codes: The configuration.
        number: Its place in the order of first results, from 0.
        label: What the human calls it.
        value: Log time ratio, the mean over full measurements; infinite for a failure.
        screened: Only rough values are known.
        count: The number of measurements behind ``value``.
    """

    codes: Codes
    number: int
    label: str
    value: float
    screened: bool
    count: int = 1

    @property
    def failed(self) -> bool:
        """Whether it failed to build, run or verify."""
        return math.isinf(self.value)


@dataclass(slots=True)
class History:
    """The story so far, and the part of the space that steering leaves.

    Attributes:
        space: The whole space.
        noise: Values that differ by no more than this are ties.
        active: The space without bans and with forces.
        trials: By codes, in the order of first results.
        pending: Handed out and not yet told.
        rejected: Refused by the human.
        pinned: The pinned configuration, and the number of trials at that moment.
    """

    space: Space
    noise: float = 0.01
    active: Space = field(init=False)
    trials: dict[Codes, Trial] = field(default_factory=dict[Codes, Trial])
    pending: dict[Codes, None] = field(default_factory=dict[Codes, None])
    rejected: dict[Codes, None] = field(default_factory=dict[Codes, None])
    pinned: tuple[Codes, int] | None = None
    _bans: dict[tuple[str, Value], None] = field(default_factory=dict[tuple[str, Value], None])
    _forces: dict[str, Value] = field(default_factory=dict[str, Value])

    def __post_init__(self) -> None:
        self.active = self.space

    def tell(
        self, configuration: Configuration, value: float | None, screened: bool, label: str
    ) -> None:
        """Records a result; a full measurement replaces rough ones, later ones are averaged.

        Raises:
            SpaceError: A value of the configuration is not legal, or the result is not a number.
        """
        codes = self.space.encode(configuration)
        if value is not None and not math.isfinite(value):
            raise SpaceError(f"result {value} is not a number; tell None for a failure")
        self.pending.pop(codes, None)
        result = math.inf if value is None else value
        known = self.trials.get(codes)
        if known is None:
            number = len(self.trials)
            name = label or f"#{number + 1}"
            self.trials[codes] = Trial(codes, number, name, result, screened)
            return
        known.label = label or known.label
        # A failure counts for good: a kernel that is wrong once is wrong.
        if known.failed or value is None:
            known.value = math.inf
        elif known.screened == screened:
            known.count += 1
            known.value += (value - known.value) / known.count
        elif known.screened:
            known.value, known.screened, known.count = value, False, 1

    def pin(self, configuration: Configuration) -> None:
        """Remembers the configuration whose neighbours come next."""
        self.pinned = (self.space.encode(configuration), len(self.trials))

    def reject(self, configuration: Configuration) -> None:
        """Remembers a refusal."""
        self.rejected[self.space.encode(configuration)] = None

    def ban(self, name: str, value: Value) -> None:
        """Narrows the active space; on an error nothing changes."""
        self._steer({**self._bans, (name, value): None}, self._forces)

    def force(self, name: str, value: Value) -> None:
        """Narrows the active space to one value; on an error nothing changes."""
        self._steer(self._bans, {**self._forces, name: value})

    def release(self, name: str) -> None:
        """Lifts all bans and the force on a parameter; of one that is not here there is nothing to lift."""
        bans = {ban: None for ban in self._bans if ban[0] != name}
        self._steer(bans, {key: value for key, value in self._forces.items() if key != name})

    @property
    def forces(self) -> dict[str, Value]:
        """The forced values by name."""
        return dict(self._forces)

    @property
    def seen(self) -> set[Codes]:
        """Everything that must not be proposed again."""
        return {*self.trials, *self.pending}

    def successes(self) -> list[Trial]:
        """Lists the trials that ran, best first; rough values after full ones."""
        ran = [trial for trial in self.trials.values() if not trial.failed]
        return sorted(ran, key=lambda trial: (trial.screened, trial.value, trial.codes))

    def best(self) -> Trial | None:
        """Gives the best trial not rejected; among ties the one nearest to the defaults."""
        ranked = [trial for trial in self.successes() if trial.codes not in self.rejected]
        if not ranked:
            return None
        ties = [
            trial
            for trial in ranked
            if trial.screened == ranked[0].screened and trial.value <= ranked[0].value + self.noise
        ]
        return min(ties, key=lambda trial: (self.changes(trial.codes), trial.value, trial.codes))

    def changes(self, codes: Codes) -> int:
        """Counts the parameters that are away from their defaults."""
        return sum(
            parameter.default is not None and parameter.values[code] != parameter.default
            for parameter, code in zip(self.space.parameters, codes, strict=True)
        )

    def generator(self, seed: int) -> np.random.Generator:
        """Makes the random numbers of the next proposals from the seed and the story so far.

        Neither the order of results nor steering that was lifted again has an influence: several
        evaluations run at a time, and a resumed session tells them in another order.
        """
        pinned = None if self.pinned is None else self.pinned[0]
        steering = (sorted(map(repr, self._bans)), sorted(self._forces.items()))
        text = repr((*steering, sorted(self.rejected), pinned))
        return np.random.default_rng(
            [seed, len(self.trials), len(self.pending), zlib.crc32(text.encode())]
        )

    def _steer(self, bans: dict[tuple[str, Value], None], forces: dict[str, Value]) -> None:
        self.active = self.space.restricted(tuple(bans), forces)
        self._bans, self._forces = bans, forces
