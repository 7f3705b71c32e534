"""`kerneltui replay --json` and its text form: the state of a recorded session after a step."""

from __future__ import annotations

import sys
from pathlib import Path

from kerneltui.engine.reader import opened_recording
from kerneltui.headless.output import Exit, table
from kerneltui.model.event_subject import event_subject

__all__ = ["replay"]


def replay(source: Path, *, step: int | None, as_json: bool) -> int:
    """Prints the canonical state after a step as JSON, or the story up to it as text."""
    with opened_recording(source) as recording:
        state = recording.state_at(step)
        if as_json:
            sys.stdout.buffer.write(state.canonical() + b"\n")
            return Exit.FINISHED
        rows = [["step", "event"]]
        for number, event in enumerate(recording.events[: state.position], start=1):
            rows.append([str(number), event_subject(event)])
        print(table(rows, right=frozenset({0})))
    return Exit.FINISHED
