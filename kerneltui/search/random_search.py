"""The strategy ``random``: valid configurations by chance, each at most once."""

from __future__ import annotations

from collections.abc import Sequence

from kerneltui.search.history import History
from kerneltui.search.parameter import Configuration, Value
from kerneltui.search.space import Space
from kerneltui.search.strategy import Move, Proposal

__all__ = ["RandomSearch"]


class RandomSearch:
    """Draws from the space without replacement: what every other strategy has to beat."""

    def __init__(
        self,
        space: Space,
        seed: int,
        start: Sequence[Configuration] = (),
        budget: int | None = None,
    ) -> None:
        """Starts a search.

        Args:
            space: Where to search.
            seed: Not negative; the same seed and story give the same proposals.
            start: Configurations to evaluate first, as far as they are valid.
            budget: The expected number of evaluations; of no use to this strategy.
        """
        del budget
        self.history = History(space)
        self._seed = seed
        self._start = tuple(start)

    def ask(self, count: int) -> list[Proposal]:
        """See :class:`~kerneltui.search.strategy.Strategy`."""
        history = self.history
        rng = history.generator(self._seed)
        proposals: list[Proposal] = []
        for configuration in self._start:
            codes = history.space.encode(configuration)
            if (
                len(proposals) < count
                and codes not in history.seen
                and history.active.contains(configuration)
            ):
                history.pending[codes] = None
                proposals.append(Proposal(configuration, None, None, Move.START, "a known start"))
        for row in history.active.sample(rng, count - len(proposals), history.seen):
            configuration = history.space.decode(row)
            history.pending[tuple(row.tolist())] = None
            proposals.append(Proposal(configuration, None, None, Move.RANDOM, "drawn at random"))
        return proposals

    def tell(
        self,
        configuration: Configuration,
        value: float | None,
        screened: bool = False,
        label: str = "",
    ) -> None:
        """See :class:`~kerneltui.search.strategy.Strategy`."""
        self.history.tell(configuration, value, screened, label)

    def pin(self, configuration: Configuration) -> None:
        """Checks the configuration; chance has no neighbours."""
        self.history.pin(configuration)

    def ban(self, name: str, value: Value) -> None:
        """See :class:`~kerneltui.search.strategy.Strategy`."""
        self.history.ban(name, value)

    def force(self, name: str, value: Value) -> None:
        """See :class:`~kerneltui.search.strategy.Strategy`."""
        self.history.force(name, value)

    def release(self, name: str) -> None:
        """See :class:`~kerneltui.search.strategy.Strategy`."""
        self.history.release(name)

    def reject(self, configuration: Configuration) -> None:
        """Notes the refusal; it only keeps the configuration from being called best."""
        self.history.reject(configuration)

    def best(self) -> Configuration | None:
        """See :class:`~kerneltui.search.strategy.Strategy`."""
        best = self.history.best()
        return None if best is None else self.history.space.decode(best.codes)
