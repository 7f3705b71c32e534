"""Counters of a candidate, when the human asks for them and nothing else runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kerneltui.engine.errors import Refused
from kerneltui.engine.executor import ProfileDone, ProfileJob

if TYPE_CHECKING:
    from kerneltui.engine.tuner import Tuner

__all__ = ["ask_profile", "profile_done"]


def ask_profile(tuner: Tuner, candidate: str, reply: Callable[[bool, Any], None]) -> None:
    """Has the profiler count a candidate, and answers when it is done.

    Raises:
        Refused: Something is running, or the candidate was not verified.
    """
    state, executor = tuner.recorder.state, tuner.executor
    known = state.candidates.get(candidate)
    if known is None:
        raise Refused(f"there is no candidate {candidate}")
    if not known.verify_note and candidate != state.base:
        raise Refused(f"{candidate} was not verified: it would run without the sandbox")
    if executor is None:
        raise Refused("nothing can be profiled here")
    if tuner.busy:
        raise Refused("an evaluation is running; pause (p), and ask again when it is done")
    tuner.say("job", candidate, "profiler: counting, this takes a minute or two")
    executor.profile(ProfileJob(candidate, tuner.kernel(candidate), reply))


def profile_done(tuner: Tuner, item: ProfileDone) -> None:
    """Puts what was counted into the note of the candidate, and answers."""
    candidate, reply = item.job.candidate, item.job.reply
    if item.counters is None:
        reply(False, item.reason)
        return
    tuner.recorder.add_counters(candidate, item.counters)
    reply(True, {"candidate": candidate, "text": f"counters of {candidate} are in its note"})
