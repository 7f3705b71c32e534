"""What the agents do: the one-line strip, and the panel with what was said and asked."""

from __future__ import annotations

from collections.abc import Sequence

from kerneltui.model.state import State, SteerRecord
from kerneltui.tui.format import elapsed
from kerneltui.tui.text import Line, Span, clean, cut, join, pad, wrap
from kerneltui.tui.view import Live

__all__ = ["agents_lines", "agents_summary", "steer_status", "strip_line"]

_OFF = "agents off: you propose with e, kerneltui judges and keeps the notebook"


def steer_status(record: SteerRecord) -> str:
    """Returns what became of a steer: queued, delivered, or answered."""
    at = f"@{record.candidate}" if record.candidate else ""
    if record.answer:
        return f"answered{at}"
    if record.delivered_to:
        return f"delivered{at}"
    return "queued"


def agents_summary(state: State, live: Live, now: int) -> Line:
    """Returns the agents in one line: `slow * proposing c0125 00:14 | fast . waits: bench c0123`."""
    if state.agents == "off":
        return ((_OFF, "dim"),)
    parts: list[Line] = []
    for agent in ("slow", "fast"):
        activity = live.activities.get(agent)
        if activity is None:
            continue
        sign = "." if activity.waits else "*"
        spans: list[Span] = [
            (agent, f"agent-{agent}"),
            (f" {sign} ", "dim" if activity.waits else "good"),
            (clean(activity.text), "dim" if activity.waits else "ink"),
        ]
        if not activity.waits:
            spans.append((f" {elapsed(now - activity.since)}", "dim"))
        parts.append(tuple(spans))
    if not parts and not state.ended:
        said = state.messages[-1] if state.messages else None
        text = f"{said.agent}: {clean(said.text)}" if said else "agents idle"
        parts.append(((text, "dim"),))
    if state.paused:
        parts.insert(0, (("PAUSED", "warn"),))
    if state.ended:
        parts.insert(0, ((f"search ended: {clean(state.ended)}", "good"),))
    return join(parts, (" | ", "faint"))


def strip_line(state: State, live: Live, now: int, width: int) -> Line:
    """Returns the agent strip of a narrow screen, with what the human asked at its end."""
    queued = sum(1 for steer in state.steers if steer_status(steer) == "queued")
    right: Line = ()
    if queued:
        right = ((f"{queued} steer queued ", "warn"),)
    elif state.steers:
        right = ((f"steer {steer_status(state.steers[-1])} ", "dim"),)
    return pad(((" ", ""), *agents_summary(state, live, now)), width, right)


def agents_lines(state: State, live: Live, width: int) -> Sequence[Line]:
    """Returns what was said and asked, oldest first, so that the end is what is new."""
    room = max(width - 8, 10)
    entries: list[tuple[int, list[Line]]] = []
    for message in state.messages:
        style = f"agent-{message.agent}" if message.agent in ("fast", "slow") else "dim"
        entries.append((message.at, _paragraph(message.agent, style, message.text, room)))
    for steer in state.steers:
        entries.append((steer.at, _steer_lines(steer, width)))
    entries.sort(key=lambda entry: entry[0])
    lines = [line for _, group in entries for line in group]
    for agent, text in live.streams.items():
        style = f"agent-{agent}" if agent in ("fast", "slow") else "dim"
        lines += _paragraph(agent, style, text, room)
    if not lines:
        lines.append(((" nothing said yet; s writes to the agents", "dim"),))
    return lines


def _paragraph(who: str, style: str, text: str, room: int) -> list[Line]:
    return [
        ((f" {who if not index else '':<6}", style), (part, "ink"))
        for index, part in enumerate(wrap(text.strip("\n"), room))
    ]


def _steer_lines(steer: SteerRecord, width: int) -> list[Line]:
    status = steer_status(steer)
    style = {"q": "warn", "d": "accent", "a": "good"}[status[0]]
    right: Line = ((f"{status} ", style),)
    text = f"steer -> {steer.to}: {clean(steer.text.replace(chr(10), ' ↵ '))}"
    head: Line = ((" you   ", "agent-human"), (text, "ink"))
    lines = [pad(cut(head, max(width - len(status) - 3, 10)), width, right)]
    if steer.answer:
        lines += _paragraph(
            steer.delivered_to,
            f"agent-{steer.delivered_to}" if steer.delivered_to in ("fast", "slow") else "dim",
            steer.answer,
            max(width - 8, 10),
        )
    return lines
