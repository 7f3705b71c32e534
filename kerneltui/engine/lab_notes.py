"""The lab notes of a session: `notes.md`, which the human may edit and agents read.

`main` only ever holds the tree of a candidate, so an edit is an event of its own: a commit of the
journal. It is folded into the state, and the text stands in the tree of every candidate from then on.
"""

from __future__ import annotations

from kerneltui.engine.errors import Refused
from kerneltui.engine.recorder import NOTES_FILE, Recorder, now_ns
from kerneltui.model.event import NotesWritten
from kerneltui.session.errors import SessionError

__all__ = ["lab_notes", "write_notes"]

_MOST_BYTES = 64 * 1024  # they are part of every question to a model


def lab_notes(recorder: Recorder) -> str:
    """The notes as they are now: what the human wrote last, else what is on `main`."""
    if recorder.state.notes is not None:
        return recorder.state.notes
    try:
        data = recorder.session.read_file(recorder.state.main, NOTES_FILE)
    except (SessionError, KeyError):
        return ""
    return data.decode("utf-8", "replace")


def write_notes(
    recorder: Recorder, text: str, *, by: str = "human", results: tuple[str, ...] = ()
) -> None:
    """Replaces the notes.

    Args:
        recorder: Writes the event.
        text: The notes as they are from now on.
        by: Who wrote them.
        results: The candidates whose results a model was told of for them. It may find that those change
            nothing, and is not told again.

    Raises:
        Refused: Nothing was changed, or they are too long.
    """
    if "\x00" in text:
        raise Refused("notes are text; there is a zero byte in them")
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > _MOST_BYTES:
        raise Refused(f"the notes have {size} bytes; at most {_MOST_BYTES} go into a question")
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if text == lab_notes(recorder) and not results:
        raise Refused("nothing was changed in the notes")
    recorder.record(NotesWritten(at=now_ns(), text=text, by=by, results=results))
