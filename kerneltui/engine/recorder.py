"""The one way in which something becomes part of a session.

Order of writing: objects, candidate ref, note, journal last. The state is folded from the
bytes that the journal keeps, never from the object in memory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from kerneltui.agents.port import Proposal
from kerneltui.engine.notes import note_part, read_note
from kerneltui.model.candidate import AgentName
from kerneltui.model.event import (
    CandidateProposed,
    Decided,
    Event,
    SessionOpened,
    decode_event,
    encode_event,
)
from kerneltui.model.event_subject import event_subject
from kerneltui.model.record import canonical_json
from kerneltui.model.state import State
from kerneltui.session.repository import Session

__all__ = ["NOTES_FILE", "Recorder", "candidate_number", "now_ns", "unheard"]

AGENT_MAIL = "agents@kerneltui.invalid"
_QUOTED = 120  # characters of a message
NOTES_FILE = "notes.md"
"""The lab notes, in the tree of every candidate."""


def now_ns() -> int:
    """Returns the time in nanoseconds since the epoch."""
    return time.time_ns()


def unheard(position: int, event: Event, body: bytes) -> None:
    """Listens to events when nobody does."""


def candidate_number(identifier: str) -> int:
    """Returns the number of a candidate id such as `c0012`."""
    return int(identifier.removeprefix("c"))


@dataclass(slots=True)
class Recorder:
    """Writes events and candidates, folds them, and tells who listens.

    Attributes:
        session: The repository; this process is its only writer.
        state: The fold so far.
        kernel_path: Where the kernel stands in a candidate's tree.
        listen: Called with position, event and its bytes after each event is durable and folded.
        guard: Held while an event is folded and told, so that nobody sees the one without the other.
    """

    session: Session
    state: State
    kernel_path: str
    listen: Callable[[int, Event, bytes], None]
    guard: Callable[[], AbstractContextManager[None]] = nullcontext

    def record(self, event: Event, blobs: Mapping[str, str] | None = None) -> None:
        """Makes an event durable, then folds it.

        A decision is brought to the disk before it is acknowledged; anything else survives the
        death of this process, and can be measured again after a loss of power.

        Args:
            event: What happened.
            blobs: Stored blobs that belong to it, name to sha.

        Raises:
            SessionError: It could not be written; nothing has changed.
        """
        body = encode_event(event)
        self.session.journal.append(
            event_subject(event),
            body,
            at_ns=event.at,
            blobs=blobs,
            durable=isinstance(event, Decided | SessionOpened),
        )
        decoded = decode_event(body)
        with self.guard():
            self.state.apply(decoded)
            self.listen(self.state.position, decoded, body)

    def propose(
        self,
        proposal: Proposal,
        steers: tuple[int, ...] = (),
        findings: tuple[str, ...] = (),
    ) -> str:
        """Commits a proposal as a candidate and returns its id."""
        state = self.state
        number = 1 + max((candidate_number(name) for name in state.candidates), default=0)
        identifier = f"c{number:04d}"
        at = now_ns()
        parents = [state.candidates[parent].sha for parent in proposal.parents]
        base = self.session.read_tree(parents[0])
        if state.notes is not None:
            base = {**base, NOTES_FILE: state.notes.encode()}
        sha = self.session.write_candidate(
            identifier,
            files={**base, self.kernel_path: proposal.source.encode()},
            parents=parents,
            subject=f"{identifier}: {proposal.reason}",
            body="",
            trailers=_trailers(identifier, proposal)
            | self._steer_trailers(steers)
            | self._cost_trailers(proposal.calls),
            author=self._author(proposal.agent),
            at_ns=at,
        )
        self.record(
            CandidateProposed(
                at=at,
                id=identifier,
                sha=sha,
                parents=proposal.parents,
                agent=proposal.agent,
                origin=proposal.origin,
                reason=proposal.reason,
                directive=proposal.directive,
                generation=proposal.generation,
                seed_file=proposal.seed_file,
                configuration=proposal.configuration,
                steers=steers,
                calls=proposal.calls,
                findings=findings,
                island=proposal.island,
                arm=proposal.arm,
                inspirations=proposal.inspirations,
            )
        )
        return identifier

    def _steer_trailers(self, steers: tuple[int, ...]) -> dict[str, Sequence[str]]:
        """The messages that a proposal follows, a trailer for each: its number and what it says."""
        told = {steer.number: " ".join(steer.text.split()) for steer in self.state.steers}
        return {"Kerneltui-Steer": [f'{number} "{_cut(told[number])}"' for number in steers]}

    def _cost_trailers(self, calls: tuple[int, ...]) -> dict[str, str]:
        """Which models a proposal took, and what that cost."""
        if not calls:
            return {}
        records = [self.state.calls[str(number)] for number in calls]
        spent = self.state.spent(calls)
        return {
            "Kerneltui-Model": " ".join(dict.fromkeys(record.model for record in records)),
            "Kerneltui-Tokens": str(spent.tokens),
            "Kerneltui-Cost": spent.text,
        }

    def note(
        self, candidate: str, evaluation: Mapping[str, Any], raw: bytes | None
    ) -> dict[str, str]:
        """Attaches an evaluation to a candidate's commit as a git note.

        Raw samples become a blob, whose name and sha are returned for the event that follows.
        """
        body = dict(evaluation) | {"schema": 1, "candidate": candidate}
        counters = note_part(self, candidate, "counters")
        if counters:  # of the same commit, so they hold for whatever is measured later
            body["counters"] = counters
        blobs: dict[str, str] = {}
        if raw is not None:
            body["raw"] = blobs["raw.json.gz"] = self.session.write_blob(raw)
        sha = self.state.candidates[candidate].sha
        self.session.add_note(sha, _note_text(body), at_ns=now_ns())
        return blobs

    def add_counters(self, candidate: str, counters: Mapping[str, Any]) -> None:
        """Adds what a profiler counted to the note of a candidate."""
        body = {"schema": 1, "candidate": candidate, **read_note(self, candidate)}
        sha = self.state.candidates[candidate].sha
        self.session.add_note(sha, _note_text({**body, "counters": counters}), at_ns=now_ns())

    def source(self, candidate: str) -> str:
        """Returns the kernel text of a candidate."""
        sha = self.state.candidates[candidate].sha
        return self.session.read_file(sha, self.kernel_path).decode("utf-8", "replace")

    def _author(self, agent: AgentName) -> tuple[str, str]:
        if agent is AgentName.HUMAN:
            return self.session.person.name, self.session.person.email
        return f"kerneltui {agent} path", AGENT_MAIL


def _note_text(body: Mapping[str, Any]) -> bytes:
    """Returns JSON that reads well in `git notes show`: a line for each key."""
    lines = [
        f"{json.dumps(key)}: {canonical_json(value).decode()}"
        for key, value in sorted(body.items())
    ]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _cut(text: str) -> str:
    return text if len(text) <= _QUOTED else f"{text[: _QUOTED - 1]}…"


def _trailers(identifier: str, proposal: Proposal) -> dict[str, str | Sequence[str]]:
    trailers: dict[str, str | Sequence[str]] = {
        "Kerneltui-Candidate": identifier,
        "Kerneltui-Parent": " ".join(proposal.parents),
        "Kerneltui-Agent": str(proposal.agent),
        "Kerneltui-Origin": str(proposal.origin),
        "Kerneltui-Generation": str(proposal.generation),
        "Kerneltui-Derived-From": proposal.seed_file,
    }
    if proposal.directive is not None:
        for name, value in proposal.directive.items().items():
            trailers[f"Kerneltui-Directive-{name.replace('_', '-')}"] = value
    if proposal.configuration:
        trailers["Kerneltui-Tunables"] = " ".join(
            f"{name}={value}" for name, value in proposal.configuration.items()
        )
    if proposal.island:
        trailers["Kerneltui-Island"] = str(proposal.island)
    if proposal.arm:
        trailers["Kerneltui-Arm"] = proposal.arm
    if proposal.inspirations:
        trailers["Kerneltui-Inspiration"] = " ".join(proposal.inspirations)
    return trailers
