"""What is kept of a candidate's evaluation beside the events: its note, with its parts, and its log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from kerneltui.model.errors import RecordError
from kerneltui.model.record import parse_json

if TYPE_CHECKING:
    from kerneltui.engine.recorder import Recorder

__all__ = ["failure_log", "note_part", "read_note"]


def read_note(recorder: Recorder, candidate: str) -> Mapping[str, Any]:
    """The evaluation of a candidate as it was noted; empty if it never was, or cannot be read."""
    data = recorder.session.read_note(recorder.state.candidates[candidate].sha)
    try:
        plain = parse_json(data) if data else None
    except RecordError:  # somebody wrote a note of their own with git
        return {}
    return cast("Mapping[str, Any]", plain) if isinstance(plain, dict) else {}


def note_part(recorder: Recorder, candidate: str, name: str) -> Mapping[str, Any]:
    """An object in the note of a candidate; empty if there is none."""
    part = read_note(recorder, candidate).get(name)
    return cast("Mapping[str, Any]", part) if isinstance(part, dict) else {}


def failure_log(recorder: Recorder, candidate: str) -> str:
    """The log of a candidate that failed; empty if it left none, or not on this machine."""
    failure = recorder.state.candidates[candidate].failure
    if failure is None or "@" not in failure.log:
        return ""
    name, _, digest = failure.log.partition("@")
    data = recorder.session.read_log(name, digest)
    return (data or b"").decode("utf-8", "replace")
