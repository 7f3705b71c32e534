"""What the agents do: the one-line strip, and the panel with what was said, asked, and comes just now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from kerneltui.model.agent_event import CallRecord
from kerneltui.model.state import State
from kerneltui.model.steering import Message, SteerRecord
from kerneltui.tui.format import count, elapsed
from kerneltui.tui.stream import Stream
from kerneltui.tui.text import Line, Span, clean, cut, join, pad, wrap
from kerneltui.tui.view import Live

__all__ = [
    "agents_lines",
    "agents_summary",
    "has_models",
    "running_calls",
    "steer_status",
    "strip_line",
]

_OFF = "agents off: you propose with e, kerneltui judges and keeps the notebook"
_FAILED = "no proposal from "
_DETAIL_LINES = 24  # of a message, so that a long one does not bury what came before it
_STYLES = {"thinking": "dim", "text": "ink", "tool": "string"}


def has_models(state: State) -> bool:
    """Whether language models are asked in a session."""
    return bool(state.calls) or state.agents not in ("", "off", "offline")


def running_calls(state: State) -> Mapping[str, CallRecord]:
    """Returns the call that each agent waits for."""
    return {call.agent: call for call in state.calls.values() if not call.outcome}


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
    running = running_calls(state)
    for agent in ("slow", "fast"):
        call, activity = running.get(agent), live.activities.get(agent)
        if call is not None:
            parts.append(_call_summary(agent, call, live, now))
        elif activity is not None:
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
        silent = "agents idle" if state.calibrations else "agents wait for the calibration"
        text = f"{said.agent}: {clean(said.text)}" if said else silent
        parts.append(((text, "dim"),))
    if state.paused:
        parts.insert(0, (("PAUSED", "warn"),))
    if state.ended:
        parts.insert(0, ((f"search ended: {clean(state.ended)}", "good"),))
    return join(parts, (" | ", "faint"))


def _call_summary(agent: str, call: CallRecord, live: Live, now: int) -> Line:
    stream = live.streams.get(agent, Stream())
    return (
        (agent, f"agent-{agent}"),
        (" * ", "good"),
        (clean(call.purpose), "ink"),
        (f" ~{count(stream.tokens)} tok" if stream.heard else "", "dim"),
        (f" {elapsed(now - call.at)}", "dim"),
    )


def strip_line(state: State, live: Live, now: int, width: int) -> Line:
    """Returns the agent strip of a narrow screen, with what the human asked at its end."""
    queued = sum(1 for steer in state.steers if steer_status(steer) == "queued")
    right: Line = ()
    if queued:
        right = ((f"{queued} steer queued ", "warn"),)
    elif state.steers:
        right = ((f"steer {steer_status(state.steers[-1])} ", "dim"),)
    return pad(((" ", ""), *agents_summary(state, live, now)), width, right)


def agents_lines(
    state: State, live: Live, now: int, width: int, tail: int | None = None
) -> Sequence[Line]:
    """Returns what was said and asked, oldest first, and what comes now, so that the end is new.

    Args:
        state: The session.
        live: With the replies as they come.
        now: For how long a call has been running.
        width: Of a line.
        tail: How many lines of a reply are shown, its last; all if None. Where there is little room,
            code that is being written would push away everything that was said.
    """
    lines = list(_history(state.messages, state.steers, width))
    running = running_calls(state)
    for agent in sorted({*live.streams, *running}, key=lambda name: name in running):
        reply = _stream_lines(agent, live, running.get(agent), now, width)
        if tail is not None and len(reply) > tail + 2:
            hidden = f"… {len(reply) - 1 - tail} lines before, in the Agents tab"
            reply = [reply[0], ((f"       {hidden}", "faint"),), *reply[-tail:]]
        lines += reply
    if not lines:
        lines.append(((" nothing said yet; s writes to the agents", "dim"),))
    return lines


@lru_cache(maxsize=4)
def _history(
    messages: tuple[Message, ...], steers: tuple[SteerRecord, ...], width: int
) -> Sequence[Line]:
    """What was said and asked; it is drawn again with every piece of a stream, and seldom changes."""
    room = max(width - 8, 10)
    entries = [(message.at, _message_lines(message, room)) for message in messages]
    entries += [(steer.at, _steer_lines(steer, width)) for steer in steers]
    entries.sort(key=lambda entry: entry[0])
    return tuple(line for _, group in entries for line in group)


def _who(agent: str) -> str:
    return f"agent-{agent}" if agent in ("fast", "slow") else "dim"


def _paragraph(who: str, style: str, text: str, room: int, ink: str = "ink") -> list[Line]:
    label = f"{who} " if len(who) >= 6 else f"{who:<6}"
    return [
        ((f" {label if not index else '':<6}", style), (part, ink))
        for index, part in enumerate(wrap(text.strip("\n"), room))
    ]


def _message_lines(message: Message, room: int) -> list[Line]:
    ink = "bad" if message.text.startswith(_FAILED) else "ink"
    lines = _paragraph(message.agent, _who(message.agent), message.text, room, ink)
    if message.detail:
        lines += _detail_lines(message.detail, room - 2)
    return lines


def _detail_lines(detail: str, room: int) -> list[Line]:
    """What stands behind a message: code keeps its indentation, prose is wrapped by the cell."""
    parts = [
        shown[at : at + room]
        for shown in map(clean, detail.strip("\n").split("\n"))
        for at in range(0, max(len(shown), 1), room)
    ]
    more = len(parts) - _DETAIL_LINES
    lines: list[Line] = [
        cut((("       ", ""), ("│ ", "faint"), (part, "dim")), room + 9)
        for part in parts[:_DETAIL_LINES]
    ]
    if more > 0:
        lines.append((("       │ ", "faint"), (f"… {more} more lines", "faint")))
    return lines


def _stream_lines(
    agent: str, live: Live, call: CallRecord | None, now: int, width: int
) -> list[Line]:
    """The reply as it comes, under a line on the call; a reply that has ended is shown until the next."""
    stream = live.streams.get(agent, Stream())
    if call is None and not stream.heard:
        return []
    lines: list[Line] = []
    if call is not None:
        tokens = f"~{count(stream.tokens)} tokens   " if stream.heard else "no word yet   "
        right: Line = ((f"{tokens}{elapsed(now - call.at)} ", "dim"),)
        head: Line = (
            (f" {agent:<6}", _who(agent)),
            ("* ", "good"),
            (clean(call.purpose), "strong"),
            (f"   {clean(call.model)}", "dim"),
        )
        lines.append(pad(cut(head, max(width - len(right[0][0]) - 1, 10)), width, right))
    else:
        lines.append(((f" {agent:<6}", _who(agent)), ("the last reply", "faint")))
    if stream.cut:
        lines.append((("       …", "faint"),))
    room = max(width - 8, 10)
    for piece in stream.pieces:
        style = _STYLES[piece.kind]
        if piece.kind == "tool":
            lines += [
                (("       ", ""), ("│ ", "faint"), (part, style))
                for part in _code(piece.text, room - 2)
            ]
        else:
            parts = wrap(piece.text.strip("\n"), room)
            lines += [(("       ", ""), (part, style)) for part in parts]
    if stream.status:
        lines += _paragraph("", "dim", stream.status, room, "warn")
    return lines


def _code(text: str, room: int) -> list[str]:
    """Returns the input of a tool, JSON with code in it, as lines that keep their indentation."""
    lines: list[str] = []
    for line in text.replace("\\n", "\n").replace('\\"', '"').split("\n"):
        shown = clean(line)
        lines += [shown[at : at + room] for at in range(0, len(shown), room)] or [""]
    return lines


def _steer_lines(steer: SteerRecord, width: int) -> list[Line]:
    status = steer_status(steer)
    style = {"q": "warn", "d": "accent", "a": "good"}[status[0]]
    right: Line = ((f"{status} ", style),)
    what = "goal" if steer.is_goal else f"steer -> {steer.to}"
    text = steer.text.removeprefix("goal:").strip() if steer.is_goal else steer.text
    text = f"{what}: {clean(text.replace(chr(10), ' ↵ '))}"
    head: Line = ((" you   ", "agent-human"), (text, "ink"))
    lines = [pad(cut(head, max(width - len(status) - 3, 10)), width, right)]
    if steer.answer:
        names = steer.delivered_to.split()
        answers = steer.answer.split("\n", len(names) - 1)
        for name, answer in zip(names, answers, strict=False):
            lines += _paragraph(name, _who(name), answer, max(width - 8, 10))
    return lines
