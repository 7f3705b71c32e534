"""The meter: what model calls have cost and may still cost, against a budget. Whole millionths of a dollar.

A call is counted before it is sent, with what it may cost at most; its hold is replaced by what it did cost.
So calls that run at the same time cannot go over the budget together. A model without a known price counts
its tokens and is shown as "price unknown"; only a limit of tokens can stop it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from kerneltui.agents.model_port import Role, Usage
from kerneltui.agents.pricing import usd
from kerneltui.model.agent_event import CallRecord

__all__ = [
    "WARNING_LEVELS",
    "Account",
    "Hold",
    "OverBudget",
    "Spend",
    "SpendFact",
    "SpendView",
    "candidate_of",
    "facts_of",
]

WARNING_LEVELS = (50, 80)
"""Per cent of the budget at which the user is told, once each."""


_CANDIDATE = re.compile(r"\bc\d{4,}\b")


def candidate_of(purpose: str) -> str:
    """The candidate that a call is for, by its purpose: "repair c0012"; empty if it is for none."""
    found = _CANDIDATE.search(purpose)
    return found[0] if found else ""


@dataclass(frozen=True, slots=True)
class SpendFact:
    """What a call or an attempt has cost; enough to build the meter again.

    Attributes:
        role: Whose model was asked.
        candidate: The candidate that it was for; empty if for none.
        usage: Tokens.
        micro_usd: Price; None if the model has no known price.
        model: Its name, to say which price is unknown.
        estimated: Of the tokens, those that no server has told: a cut stream, estimated by its length.
    """

    role: Role
    candidate: str
    usage: Usage
    micro_usd: int | None
    model: str = ""
    estimated: int = 0


def facts_of(calls: Iterable[CallRecord]) -> list[SpendFact]:
    """What the journal tells of calls when a session is opened.

    One without an end was lost with an earlier engine, and counts with all that it may have cost.
    """
    return [
        SpendFact(
            Role(call.role),
            candidate_of(call.purpose),
            Usage(
                call.input_tokens,
                call.output_tokens,
                call.cache_read_tokens,
                call.cache_write_tokens,
            ),
            call.micro_usd if call.outcome else call.reserved_micro_usd,
            call.model,
        )
        for call in calls
    ]


@dataclass(frozen=True, slots=True)
class Account:
    """A sum of facts; `unpriced` are the tokens in it that no price is known for."""

    usage: Usage = field(default_factory=Usage)
    micro_usd: int = 0
    unpriced: int = 0
    estimated: int = 0

    def plus(self, fact: SpendFact) -> Account:
        """The sum with one more fact."""
        unknown = fact.micro_usd is None
        return Account(
            self.usage + fact.usage,
            self.micro_usd + (fact.micro_usd or 0),
            self.unpriced + (fact.usage.total if unknown else 0),
            self.estimated + fact.estimated,
        )

    @property
    def text(self) -> str:
        """For people: `$1.20`, `$1.20 + price unknown` or `price unknown`."""
        if not self.unpriced:
            return usd(self.micro_usd)
        return f"{usd(self.micro_usd)} + price unknown" if self.micro_usd else "price unknown"


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """What a running call may cost at most; known by identity."""

    role: Role
    candidate: str
    model: str
    tokens: int
    micro_usd: int | None


@dataclass(frozen=True, slots=True)
class SpendView:
    """The meter at one moment.

    Attributes:
        total: Of everything that has ended.
        roles: The same by role.
        candidates: The same by candidate, "" for calls that were for none.
        held_micro_usd: What running calls may cost at most.
        held_tokens: The same in tokens.
        running: Calls that run.
        unknown_models: Models that were asked and have no known price.
        level: The highest of `WARNING_LEVELS` or 100 that has been reached, else 0.
    """

    total: Account
    roles: dict[Role, Account]
    candidates: dict[str, Account]
    held_micro_usd: int
    held_tokens: int
    running: int
    unknown_models: tuple[str, ...]
    level: int


class OverBudget(Exception):
    """The call may not be made; the text is one readable line."""


@dataclass(slots=True)
class Spend:
    """Counts; may be used from any thread.

    Args:
        budget_micro_usd: What may be spent in all; None is no limit.
        token_limit: Tokens of all kinds that may be used in all; None is no limit.
    """

    budget_micro_usd: int | None = None
    token_limit: int | None = None
    _total: Account = field(default_factory=Account)
    _roles: dict[Role, Account] = field(default_factory=lambda: dict[Role, Account]())
    _candidates: dict[str, Account] = field(default_factory=lambda: dict[str, Account]())
    _holds: list[Hold] = field(default_factory=lambda: list[Hold]())
    _unknown: set[str] = field(default_factory=lambda: set[str]())
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(
        cls,
        facts: Iterable[SpendFact],
        budget_micro_usd: int | None = None,
        token_limit: int | None = None,
    ) -> Spend:
        """Builds the meter again from what the events tell; order does not matter."""
        spend = cls(budget_micro_usd, token_limit)
        for fact in facts:
            spend.record(fact)
        return spend

    def hold(
        self, role: Role, candidate: str, model: str, tokens: int, micro_usd: int | None
    ) -> Hold:
        """Counts a call before it is sent.

        Args:
            role: Whose model is asked.
            candidate: The candidate that it is for, or empty.
            model: Its name.
            tokens: That it may use at most.
            micro_usd: What it may cost at most; None if the model has no known price.

        Raises:
            OverBudget: With this call the budget could be passed.
        """
        hold = Hold(role, candidate, model, tokens, micro_usd)
        with self._lock:
            self._check(hold)
            self._holds.append(hold)
        return hold

    def settle(self, hold: Hold, fact: SpendFact) -> int:
        """Replaces a hold by what the call has cost.

        Returns:
            The warning level that was reached by it, or 0 if none was.
        """
        with self._lock:
            self._holds.remove(hold)
            return self._record(fact)

    def record(self, fact: SpendFact) -> int:
        """Counts what was spent elsewhere or earlier; returns as `settle` does."""
        with self._lock:
            return self._record(fact)

    def set_budget(self, micro_usd: int | None) -> None:
        """Changes the budget; running calls are not ended by it."""
        with self._lock:
            self.budget_micro_usd = micro_usd

    @property
    def view(self) -> SpendView:
        """Everything at this moment."""
        with self._lock:
            return SpendView(
                self._total,
                dict(self._roles),
                dict(self._candidates),
                sum(hold.micro_usd or 0 for hold in self._holds),
                sum(hold.tokens for hold in self._holds),
                len(self._holds),
                tuple(sorted(self._unknown)),
                self._level(),
            )

    def _record(self, fact: SpendFact) -> int:
        before = self._level()
        self._total = self._total.plus(fact)
        self._roles[fact.role] = self._roles.get(fact.role, Account()).plus(fact)
        self._candidates[fact.candidate] = self._candidates.get(fact.candidate, Account()).plus(
            fact
        )
        if fact.micro_usd is None and fact.usage.total:
            self._unknown.add(fact.model or "unnamed")
        after = self._level()
        return after if after > before else 0

    def _level(self) -> int:
        """In per cent of whichever limit is nearer."""
        shares = [
            (self._total.micro_usd, self.budget_micro_usd),
            (self._total.usage.total, self.token_limit),
        ]
        reached = 0
        for used, limit in shares:
            if limit is None:
                continue
            for level in (*WARNING_LEVELS, 100):
                if used * 100 >= limit * level and (used or not limit):
                    reached = max(reached, level)
        return reached

    def _check(self, hold: Hold) -> None:
        if self.budget_micro_usd is not None and hold.micro_usd is not None:
            held = sum(other.micro_usd or 0 for other in self._holds)
            if self._total.micro_usd + held + hold.micro_usd > self.budget_micro_usd:
                running = f", {usd(held)} held by running calls" if held else ""
                raise OverBudget(
                    f"the call may cost {usd(hold.micro_usd)}, which could pass the budget of "
                    f"{usd(self.budget_micro_usd)}: {usd(self._total.micro_usd)} spent{running}; "
                    "raise the budget to go on"
                )
        if self.token_limit is not None:
            held = sum(other.tokens for other in self._holds)
            if self._total.usage.total + held + hold.tokens > self.token_limit:
                raise OverBudget(
                    f"the call may use {hold.tokens:,} tokens, which could pass the limit of "
                    f"{self.token_limit:,}: {self._total.usage.total:,} used, {held:,} held by "
                    "running calls; raise the limit to go on"
                )
