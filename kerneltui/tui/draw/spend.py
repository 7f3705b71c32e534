"""What language models cost: in a few words for the status line, and by role, arm and candidate."""

from __future__ import annotations

from collections.abc import Sequence

from kerneltui.model.agent_event import CallRecord
from kerneltui.model.candidate import Candidate
from kerneltui.model.spend import Spent, spent
from kerneltui.model.state import State
from kerneltui.search.arms import pulls_of, slot_micro_usd
from kerneltui.search.bandit import arm_records
from kerneltui.tui.format import count
from kerneltui.tui.text import Line, Span, clean, cut, fit

__all__ = ["call_lines", "cost_text", "money", "spend_line", "spend_lines"]

_WARN_AT, _ALARM_AT = 50, 80  # percent of the budget


def money(found: Spent) -> str:
    """Returns a sum: `$0.42`, `$0.42 (+$0.08 running)`, with `price unknown` where that is so."""
    known = found.micro_usd - found.reserved
    if found.unpriced and not found.micro_usd:
        return "price unknown"
    text = f"${known / 1e6:.2f}"
    if found.reserved:
        text += f" (+${found.reserved / 1e6:.2f} running)"
    return f"{text} + price unknown" if found.unpriced else text


def spend_line(state: State) -> Line:
    """Returns what was spent of the budget, for the status line; nothing where no model is asked."""
    if not state.calls:
        return ()
    found, budget = state.spent(), state.budget_micro_usd
    text = money(found)
    if budget is None:
        return ((text, "warn"),) if found.unpriced else ((f"{text}, no limit", "dim"),)
    of = f" of ${budget / 1e6:.2f}"
    head, bracket, tail = text.partition(" (")
    text = f"{head}{of}{bracket}{tail}" if bracket else f"{text}{of}"
    share = found.micro_usd * 100 / budget if budget else 100.0
    style = "bad" if share >= _ALARM_AT else "warn" if share >= _WARN_AT else "ink"
    return ((text, style),)


def _calls(state: State, candidate: Candidate) -> list[CallRecord]:
    return [state.calls[str(number)] for number in candidate.calls if str(number) in state.calls]


def cost_text(state: State, candidate: Candidate) -> str:
    """Returns what a candidate took: `$0.12  11.2k tok  claude-opus-5-5`; empty without a model."""
    calls = _calls(state, candidate)
    if not calls:
        return ""
    found = spent(calls)
    models = " + ".join(dict.fromkeys(call.model for call in calls))
    return f"{money(found)}  {count(found.tokens)} tok  {models}"


def call_lines(state: State, candidate: Candidate, width: int) -> Sequence[Line]:
    """Returns the calls behind a candidate, one a line, with their sum; nothing without a model."""
    calls = _calls(state, candidate)
    if not calls:
        return ()
    lines: list[Line] = [(), ((" Model calls", "title"),)]
    for call in calls:
        tail = "" if call.outcome in ("ok", "") else f"  {call.outcome}"
        row: Line = (
            (f"   {fit(clean(call.purpose), 24)} ", "ink"),
            (f"{count(call.tokens):>7} tok  ", "dim"),
            (f"{money(spent([call])):<9}", "ink"),
            (f" {clean(call.model)}", "dim"),
            (f"{tail}{': ' if tail and call.reason else ''}{clean(call.reason)}", "bad"),
        )
        lines.append(cut(row, width))
    lines.append(cut((("   together ", "dim"), (cost_text(state, candidate), "strong")), width))
    return lines


def spend_lines(state: State, width: int) -> Sequence[Line]:
    """Returns the whole account: the budget, by role and model, arm, candidate, what came to nothing."""
    found, budget = state.spent(), state.budget_micro_usd
    lines: list[Line] = [
        cut((((" Spent    ", "title")), *(spend_line(state) or (("nothing", "dim"),))), width)
    ]
    if budget is None:
        lines.append(((" no limit in money; /budget $5 sets one", "dim"),))
    elif found.unpriced:
        text = f" {found.unpriced} calls have no known price and are not in the sum (prices: agents.toml)"
        lines.append(cut(((text, "warn"),), width))
    for role, model in state.models.items():
        lines.append(((f" {role} asks {clean(model)} (your choice)", "dim"),))
    if not state.calls:
        return lines
    roles: dict[tuple[str, str], list[CallRecord]] = {}
    for call in state.calls.values():
        roles.setdefault((call.role, call.model), []).append(call)
    by_role = [(role, calls, model) for (role, model), calls in sorted(roles.items())]
    by_candidate = _by_candidate(state)
    costs = max(len(money(spent(calls))) for _, calls, _ in (*by_role, *by_candidate))

    def table(what: str, rows: Sequence[_Row]) -> Sequence[Line]:
        return [(), _head(what, width), *(_row(*row, width, costs) for row in rows)]

    return [
        *lines,
        *table("role", by_role),
        *_arm_lines(state, width),
        *table("candidate", by_candidate),
    ]


def _arm_lines(state: State, width: int) -> Sequence[Line]:
    """Returns how often each arm of the slow path was pulled, and what that gave and cost on average."""
    pulls = pulls_of(state)
    if not pulls:
        return ()
    records = arm_records((), pulls, slot_micro_usd(state)).values()
    names = min(max(len(record.arm) for record in records), 24)
    head = f" {'arm':<{names}}{'pulls':>7}{'gained':>8}{'reward':>8}  cost of a pull"
    lines: list[Line] = [(), cut(((head, "dim"),), width)]
    for record in sorted(records, key=lambda one: (-one.pulls, one.arm)):
        paid = record.micro_usd
        cost = "price unknown" if paid is None else f"${paid / 1e6:.2f}" if paid else "no money"
        numbers = f"{record.pulls:>7}{record.gains:>8}{record.reward:>8.2f}  "
        row: Line = (
            (f" {fit(clean(record.arm), names)}", "strong"),
            (numbers, "ink"),
            (cost, "warn" if paid is None else "dim"),
        )
        lines.append(cut(row, width))
    return lines


_Row = tuple[str, Sequence[CallRecord], str]


def _by_candidate(state: State) -> Sequence[_Row]:
    """The calls of each candidate, newest first, and those that led to none."""
    rows: list[_Row] = []
    taken: set[int] = set()
    for candidate in reversed(state.candidates.values()):
        if candidate.calls:
            taken.update(candidate.calls)
            rows.append((candidate.id, _calls(state, candidate), candidate.reason))
    rest = [call for key, call in state.calls.items() if int(key) not in taken]
    if rest:
        rows.append(("none", rest, "came to nothing, or not yet to a candidate"))
    return rows


def _head(what: str, width: int) -> Line:
    return cut(((f" {what:<10}{'calls':>6}{'tokens':>9}{'cached':>9}  {'cost'}", "dim"),), width)


def _row(name: str, calls: Sequence[CallRecord], text: str, width: int, costs: int) -> Line:
    found = spent(calls)
    cached = sum(call.cache_read_tokens for call in calls)
    share = f"{cached * 100 / found.tokens:.0f} %" if found.tokens else "-"
    spans: list[Span] = [
        (f" {name:<10}", "strong"),
        (f"{found.calls:>6}{count(found.tokens):>9}{share:>9}  ", "dim"),
        (f"{money(found):<{costs}}", "warn" if found.unpriced else "ink"),
        (f" {clean(text)}", "dim"),
    ]
    return cut(tuple(spans), width)
