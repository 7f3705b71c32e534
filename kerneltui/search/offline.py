"""The strategy ``offline``: neighbourhoods of the best configurations, ranked by a forest.

The known starts and some spread-out random configurations come first. Then rounds: everything
one step away from a handful of elites, steps of two parameters to adjacent values, crossovers of
elites and some random configurations form a pool; a forest that has learned good from bad orders
it; the first that differ enough from each other go out. The last rounds return parameters of the
best configuration to their defaults, so that the human gets the smallest change that is as fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kerneltui.search import moves
from kerneltui.search.forest import Floats
from kerneltui.search.history import History
from kerneltui.search.moves import Step
from kerneltui.search.parameter import Codes, Configuration, Rows, Value
from kerneltui.search.space import Space
from kerneltui.search.strategy import Move, Proposal
from kerneltui.search.surrogate import Surrogate

__all__ = ["OfflineStrategy", "Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The numbers of the strategy; they hold for every space.

    Attributes:
        noise: Values that differ by no more than this are ties.
        fill: Random configurations before the first round, beside the known starts.
        fill_share: The most of the budget that goes into them.
        spread: Random draws from which each of them is chosen as the one farthest from the rest.
        elites: Configurations whose surroundings are searched.
        apart: Parameters in which any two of them differ; at most half of those with a choice.
        crossovers: Attempts to mix two elites in a round.
        random_share: Random configurations in the pool, as a share of the others.
        good_share: The share of trials that the forest is taught to call good.
        trees: Trees in the forest.
        batch: Proposals that are chosen together, also when fewer are asked for.
        diversity: How much a score falls for each chosen configuration that is one step away.
        reject_near: What is left of a score one step away from a rejected configuration.
        finish_share: The most of the budget that goes into returning to defaults.
        pin_span: Results after which a pin is only one elite among the others.
    """

    noise: float = 0.01
    fill: int = 10
    fill_share: float = 0.2
    spread: int = 8
    elites: int = 5
    apart: int = 3
    crossovers: int = 40
    random_share: float = 0.15
    good_share: float = 0.2
    trees: int = 32
    batch: int = 5
    diversity: float = 0.3
    reject_near: float = 0.5
    finish_share: float = 0.15
    pin_span: int = 8


DEFAULTS = Settings()


class OfflineStrategy:
    """Searches without a language model; see the module's text."""

    def __init__(
        self,
        space: Space,
        seed: int,
        start: Sequence[Configuration] = (),
        budget: int | None = None,
        settings: Settings = DEFAULTS,
    ) -> None:
        """Starts a search.

        Args:
            space: Where to search; parameters with defaults are returned to them in the end.
            seed: Not negative; the same seed and story give the same proposals.
            start: Evaluated first, as far as they are valid: the parent's configuration and
                the best known ones of the same kernel elsewhere.
            budget: The expected number of evaluations; a hint, not a limit.
            settings: The numbers of the strategy.
        """
        self.history = History(space, settings.noise)
        self._seed = seed
        self._start = {space.encode(configuration): None for configuration in start}
        self._budget = budget
        self._settings = settings

    def ask(self, count: int) -> list[Proposal]:
        """See :class:`~kerneltui.search.strategy.Strategy`."""
        history = self.history
        rng = history.generator(self._seed)
        proposals = self._hand_out((step, "a known start") for step in self._starts(count))
        fill = self._fill(min(count - len(proposals), self._fill_left()), rng)
        proposals += self._hand_out((step, "random, to learn what matters") for step in fill)
        if len(proposals) < count:
            proposals += self._informed(count - len(proposals), rng)
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
        """See :class:`~kerneltui.search.strategy.Strategy`."""
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
        """See :class:`~kerneltui.search.strategy.Strategy`."""
        self.history.reject(configuration)

    def best(self) -> Configuration | None:
        """See :class:`~kerneltui.search.strategy.Strategy`."""
        best = self.history.best()
        return None if best is None else self.history.space.decode(best.codes)

    def importance(self) -> dict[str, float]:
        """Gives the share of each parameter in telling good from bad; empty while unknown."""
        surrogate = self._learn(self.history.generator(self._seed))
        return {} if surrogate is None else surrogate.importance()

    def _learn(self, rng: np.random.Generator) -> Surrogate | None:
        settings = self._settings
        return Surrogate.fit(self.history, rng, settings.good_share, settings.trees)

    def _hand_out(self, steps: Iterable[tuple[Step, str]]) -> list[Proposal]:
        """Makes proposals of steps and remembers them as pending."""
        history = self.history
        decode = history.space.decode
        proposals: list[Proposal] = []
        for step, reason in steps:
            history.pending[step.codes] = None
            parent = None if step.parent is None else decode(step.parent)
            second = None if step.second is None else decode(step.second)
            proposals.append(Proposal(decode(step.codes), parent, second, step.move, reason))
        return proposals

    def _starts(self, count: int) -> list[Step]:
        history = self.history
        fresh = [codes for codes in self._start if codes not in history.seen]
        if not fresh or count <= 0:
            return []
        valid = history.active.valid(np.array(fresh, dtype=np.int64))
        return [
            Step(codes, Move.START)
            for codes, good in zip(fresh, valid.tolist(), strict=True)
            if good
        ][:count]

    def _fill_left(self) -> int:
        settings, history = self._settings, self.history
        wanted = settings.fill
        if self._budget is not None:
            wanted = min(wanted, max(2, int(settings.fill_share * self._budget)))
        return wanted - len(history.seen.difference(self._start))

    def _fill(self, count: int, rng: np.random.Generator) -> list[Step]:
        """Draws random configurations far from each other and from everything seen."""
        history = self.history
        if count <= 0:
            return []
        draws = history.active.sample(rng, count * self._settings.spread, history.seen)
        widths = np.array([len(p.values) for p in history.space.parameters])
        steps: list[Step] = []
        known = [np.array(codes) for codes in history.seen]
        while len(steps) < count and len(draws):
            pick = 0
            if known and self._settings.spread > 1:
                # Adjacent values of a long list differ little, those of a short one much.
                gaps = np.abs(draws[:, None, :] - np.array(known)[None, :, :]) / widths
                pick = int(gaps.sum(axis=2).min(axis=1).argmax())
            known.append(draws[pick])
            steps.append(Step(tuple(draws[pick].tolist()), Move.FILL))
            draws = np.delete(draws, pick, axis=0)
        return steps

    def _informed(self, count: int, rng: np.random.Generator) -> list[Proposal]:
        """Proposes from what is known: resets, a pin's neighbours, then the ranked pool."""
        surrogate = self._learn(rng)
        proposals = self._hand_out(self._resets(count, surrogate))
        for pool in (self._pinned(), self._pool(count, rng)):
            left = count - len(proposals)
            # The pool was made before a pin's neighbours were handed out, and may have them, too.
            fresh = [step for step in pool if step.codes not in self.history.seen]
            if left > 0:
                proposals += self._hand_out(self._choose(fresh, left, surrogate, rng))
        if len(proposals) < count:
            history = self.history
            rows = history.active.sample(rng, count - len(proposals), history.seen)
            proposals += self._hand_out(
                (Step(tuple(row), Move.RANDOM), "random: nothing near the best is left")
                for row in rows.tolist()
            )
        return proposals

    def _resets(self, count: int, surrogate: Surrogate | None) -> list[tuple[Step, str]]:
        """Returns parameters of the best to their defaults when the budget nears its end.

        A reset that ties becomes the best itself, since ties go to the one nearer to the defaults;
        so the resets add up.
        """
        history = self.history
        default, best = history.space.default(), history.best()
        if self._budget is None or default is None or best is None:
            return []
        left = self._budget - len(history.trials) - len(history.pending)
        reserve = math.ceil(self._settings.finish_share * self._budget)
        wanted = min(reserve, history.changes(best.codes))
        # As many of this batch as fall into the last ``wanted`` evaluations of the budget.
        wanted = min(wanted, left, count - max(0, left - wanted))
        if wanted <= 0:
            return []
        steps = [
            step
            for step in moves.resets(history.active, best.codes, history.space.encode(default))
            if step.codes not in history.seen
        ]
        if surrogate is not None and steps:
            scores = surrogate.score(np.array([step.codes for step in steps], dtype=np.int64))
            steps = [steps[place] for place in np.argsort(-scores, kind="stable").tolist()]
        return [
            (step, f"{self._describe(step)}; its default, to see whether the change is needed")
            for step in steps[:wanted]
        ]

    def _pinned(self) -> list[Step]:
        history = self.history
        if history.pinned is None:
            return []
        codes, since = history.pinned
        if len(history.trials) - since >= self._settings.pin_span:
            return []
        return self._around(codes)

    def _around(self, codes: Codes) -> list[Step]:
        """Lists the neighbours that were not seen."""
        history = self.history
        seen = history.seen
        steps = moves.neighbours(history.active, codes)
        return [step for step in steps if step.codes not in seen]

    def _elites(self) -> list[Codes]:
        """Lists the best configurations, a pinned one first, rejected ones only for want."""
        history = self.history
        ranked = history.successes()
        codes = [trial.codes for trial in ranked if trial.codes not in history.rejected]
        codes = codes or [trial.codes for trial in ranked]
        if history.pinned is not None:
            codes = [history.pinned[0], *(c for c in codes if c != history.pinned[0])]
        # Elites that lie close together search the same ground and get stuck in it together.
        choices = sum(len(allowed) > 1 for allowed in history.active.allowed)
        apart = min(self._settings.apart, choices // 2)
        elites: list[Codes] = []
        for candidate in codes:
            if len(elites) == self._settings.elites:
                break
            if all(_distance(candidate, elite) >= apart for elite in elites):
                elites.append(candidate)
        return elites

    def _pool(self, count: int, rng: np.random.Generator) -> list[Step]:
        history, settings = self.history, self._settings
        elites = self._elites()
        near = [step for codes in elites for step in self._around(codes)]
        near += [step for codes in elites for step in moves.pairs(history.active, codes)]
        near += moves.crossovers(history.active, elites, settings.crossovers, rng)
        seen = history.seen
        pool: dict[Codes, Step] = {}
        for step in near:
            if step.codes not in seen:
                pool.setdefault(step.codes, step)
        extra = max(count, round(settings.random_share * len(pool)))
        for row in history.active.sample(rng, extra, seen.union(pool)).tolist():
            pool[tuple(row)] = Step(tuple(row), Move.RANDOM)
        return list(pool.values())

    def _choose(
        self, pool: list[Step], count: int, surrogate: Surrogate | None, rng: np.random.Generator
    ) -> list[tuple[Step, str]]:
        """Takes the steps with the best scores that are not too near to each other."""
        if not pool:
            return []
        rows = np.array([step.codes for step in pool], dtype=np.int64)
        score = np.ones(len(pool)) if surrogate is None else surrogate.score(rows)
        # Trees vote in few steps, so many scores are equal; chance decides among them.
        score = self._discounted(rows, score) + 1e-6 * rng.random(len(pool))
        rank = np.empty(len(pool), dtype=np.int64)
        rank[np.argsort(-score)] = np.arange(1, len(pool) + 1)
        chosen: list[tuple[Step, str]] = []
        for _ in range(min(max(count, self._settings.batch), len(pool))):
            place = int(score.argmax())
            step = pool[place]
            word = "" if surrogate is None else f"; forest ranks it {rank[place]} of {len(pool)}"
            chosen.append((step, self._describe(step) + word))
            near = (rows != rows[place]).sum(axis=1) <= 1
            score = np.where(near, score * (1 - self._settings.diversity), score)
            score[place] = -np.inf
        if len(chosen) <= count:
            return chosen
        # Asked for less than a batch: chance takes from it, for always the first would be greedy.
        taken = sorted(rng.choice(len(chosen), size=count, replace=False).tolist())
        return [chosen[number] for number in taken]

    def _discounted(self, rows: Rows, score: Floats) -> Floats:
        """Lowers the scores near rejected configurations and near those still under way."""
        settings, history = self._settings, self.history
        for others, left in (
            (history.rejected, settings.reject_near),
            (history.pending, 1 - settings.diversity),
        ):
            for codes in others:
                score = np.where((rows != codes).sum(axis=1) <= 1, score * left, score)
        return score

    def _describe(self, step: Step) -> str:
        """Says in words what a step changes."""
        history = self.history
        if step.parent is None:
            return "random, to look elsewhere"
        labels = [
            history.trials[codes].label if codes in history.trials else "the pinned configuration"
            for codes in (step.parent, step.second)
            if codes is not None
        ]
        if step.second is not None:
            return f"cross of {labels[0]} and {labels[1]}"
        changes = " and ".join(
            f"{parameter.name} {parameter.values[old]} → {parameter.values[new]}"
            for parameter, old, new in zip(
                history.space.parameters, step.parent, step.codes, strict=True
            )
            if old != new
        )
        word = "neighbour of" if step.move is Move.NEIGHBOUR else "from"
        return f"{word} {labels[0]}: {changes}"


def _distance(one: Codes, other: Codes) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))
