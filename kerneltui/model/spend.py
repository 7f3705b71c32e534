"""What language models have cost, from the records of their calls. Whole millionths of a dollar."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kerneltui.model.agent_event import (
    CallRecord,
    ModelCallEnded,
    ModelCallGrew,
    ModelCallStarted,
)
from kerneltui.model.errors import RecordError

__all__ = ["Spent", "record_call", "spent"]


@dataclass(frozen=True, slots=True)
class Spent:
    """A sum over calls.

    Attributes:
        calls: How many.
        tokens: Of all kinds.
        micro_usd: Of the calls with a known price.
        unpriced: Calls of models without one: the sum is too low by what they cost.
        reserved: Of it, what running calls may cost at most.
    """

    calls: int = 0
    tokens: int = 0
    micro_usd: int = 0
    unpriced: int = 0
    reserved: int = 0

    @property
    def text(self) -> str:
        """For the screen: `$0.42`, `$0.42 + price unknown`, or `price unknown`."""
        known = f"${self.micro_usd / 1e6:.2f}"
        if not self.unpriced:
            return known
        return f"{known} + price unknown" if self.micro_usd else "price unknown"


def record_call(
    calls: dict[str, CallRecord], event: ModelCallStarted | ModelCallGrew | ModelCallEnded
) -> None:
    """Folds the begin of a call, a further attempt or its end into the records, by number.

    Raises:
        RecordError: It tells of a call that never began, so the journal is broken.
    """
    key = str(event.number)
    if isinstance(event, ModelCallStarted):
        calls[key] = CallRecord(
            agent=event.agent,
            role=event.role,
            model=event.model,
            purpose=event.purpose,
            reserved_micro_usd=event.reserved_micro_usd,
            at=event.at,
        )
        return
    if key not in calls:
        what = "grew" if isinstance(event, ModelCallGrew) else "ended"
        raise RecordError(f"call {key} {what} and never began")
    if isinstance(event, ModelCallGrew):
        calls[key] = replace(calls[key], reserved_micro_usd=event.reserved_micro_usd)
        return
    calls[key] = replace(
        calls[key],
        model=event.model or calls[key].model,
        outcome=event.outcome,
        input_tokens=event.input_tokens,
        output_tokens=event.output_tokens,
        cache_read_tokens=event.cache_read_tokens,
        cache_write_tokens=event.cache_write_tokens,
        micro_usd=event.micro_usd,
        attempts=event.attempts,
        reason=event.reason,
    )


def spent(calls: Iterable[CallRecord]) -> Spent:
    """Adds calls up; a running one counts with what was reserved for it."""
    count = tokens = money = unpriced = reserved = 0
    for call in calls:
        count += 1
        tokens += call.tokens
        price = call.micro_usd if call.outcome else call.reserved_micro_usd
        if price is None:
            unpriced += 1
            continue
        money += price
        reserved += 0 if call.outcome else price
    return Spent(count, tokens, money, unpriced, reserved)
