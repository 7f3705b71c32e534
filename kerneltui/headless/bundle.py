"""`kerneltui bundle`: a whole session in one file."""

from __future__ import annotations

from pathlib import Path

from kerneltui.engine.reader import opened_recording
from kerneltui.headless.output import Exit, say
from kerneltui.session.bundle import write_bundle

__all__ = ["bundle"]


def bundle(session: Path, file: Path) -> int:
    """Writes a session's bundle and reads it back once before it says that it is good."""
    write_bundle(session, file)
    with opened_recording(file) as recording:
        steps = len(recording.events)
    size = file.stat().st_size
    say(f"{file}: {steps} steps, {size / 1024:.0f} KiB; see it with: kerneltui replay {file}")
    return Exit.FINISHED
