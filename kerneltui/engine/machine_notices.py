"""What the machine has to tell the user: who else is on it, a GPU that is given up, a wait for a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerneltui.engine.recorder import now_ns
from kerneltui.model.event import AgentMessage
from kerneltui.targets.notices import Notice

if TYPE_CHECKING:
    from kerneltui.engine.tuner import Tuner

__all__ = ["last_notices", "machine_says"]


def machine_says(tuner: Tuner, notice: Notice) -> None:
    """Tells it: into the session, or as progress where it is over soon."""
    if not notice.passing:
        tuner.recorder.record(AgentMessage(at=now_ns(), agent="engine", text=notice.text))
        return
    running = tuner.executor.running if tuner.executor is not None else None
    kind = "calibration" if tuner.calibrating else "job"
    tuner.say(kind, running.candidate if running is not None else "", notice.text)


def last_notices(tuner: Tuner) -> None:
    """Tells what was said while everything was ended, such as that a GPU is not free again."""
    while not tuner.inbox.empty():
        item = tuner.inbox.get()
        if isinstance(item, Notice):
            machine_says(tuner, item)
