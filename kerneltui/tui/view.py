"""What a screen draws from: one frozen snapshot per message.

The feed folds events into the state and progress into `Live`, and hands copies on. Widgets keep no
facts of their own, only where the user looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kerneltui.model.command import Progress
from kerneltui.model.reading import GpuReading, decode_readings
from kerneltui.model.state import State
from kerneltui.tui.stream import Stream

__all__ = ["Activity", "Link", "Live", "Round", "Snapshot"]

_RESTS = ("wait", "idle", "landed", "gave up", "rests", "ready")
"""How the status of an agent begins that does nothing now."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What an agent or an evaluation does now, and since when (nanoseconds since the epoch)."""

    text: str
    since: int

    @property
    def waits(self) -> bool:
        """Whether it waits for something rather than working."""
        return self.text.startswith(_RESTS)


@dataclass(frozen=True, slots=True)
class Round:
    """How far a benchmark is."""

    done: int
    total: int
    text: str


def _activities() -> Mapping[str, Activity]:
    return {}


def _rounds() -> Mapping[str, Round]:
    return {}


def _streams() -> Mapping[str, Stream]:
    return {}


@dataclass(frozen=True, slots=True)
class Live:
    """What goes on now, as told by progress; lost when the engine or the terminal goes."""

    activities: Mapping[str, Activity] = field(default_factory=_activities)
    rounds: Mapping[str, Round] = field(default_factory=_rounds)
    streams: Mapping[str, Stream] = field(default_factory=_streams)
    calibration: str = ""
    readings: tuple[GpuReading, ...] = ()
    earlier_readings: tuple[GpuReading, ...] = ()

    def began(self, agent: str) -> Live:
        """Returns what goes on once an agent asks a model anew: its last reply is history."""
        return replace(self, streams={**self.streams, agent: Stream()})

    def fold(self, progress: Progress) -> Live:
        """Returns what goes on after one more progress report; lines for the job log change nothing."""
        match progress.kind:
            case "phase":
                old = self.activities.get(progress.about)
                since = old.since if old and old.text == progress.text else progress.at
                activities = {**self.activities, progress.about: Activity(progress.text, since)}
                return replace(self, activities=activities)
            case "round":
                entry = Round(progress.done, progress.total, progress.text)
                return replace(self, rounds={**self.rounds, progress.about: entry})
            case "calibration":
                return replace(self, calibration=progress.text)
            case "gpu":
                found = decode_readings(progress.extra.get("readings", ""))
                if not found or found == self.readings:  # none, or those of the second before
                    return self
                return replace(self, readings=found, earlier_readings=self.readings)
            case "stream":
                agent, _, part = progress.about.partition(":")
                stream = self.streams.get(agent, Stream()).fold(part, progress.text)
                return replace(self, streams={**self.streams, agent: stream})
            case _:
                return self


@dataclass(frozen=True, slots=True)
class Link:
    """How this terminal stands with the engine.

    Attributes:
        status: `starting`, `live`, `replay` or `gone`.
        text: One line on it: what the engine is starting, or why it went.
        writer: Whether this terminal may decide.
    """

    status: str = "starting"
    text: str = "starting the engine…"
    writer: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a screen draws from. The state is a copy that nobody folds into any more."""

    state: State
    live: Live
    link: Link

    @property
    def may_decide(self) -> bool:
        """Whether commands that change the session can be sent."""
        return self.link.status == "live" and self.link.writer
