"""What an evaluation noted beside its verdict: the compiler's report, and counters of a profiler.

Read from the note of a candidate and of its nearest ancestor that has one, when a tab asks for it; live
and in a replay alike.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from kerneltui.model.candidate import Candidate
from kerneltui.model.command import Command, ReadMachineCode, ReadNotes
from kerneltui.model.state import State
from kerneltui.tui.feed import Reply

__all__ = ["MachineCode", "Report", "Reports"]

_KEPT = 64
_Key = tuple[str, str, int, str]


def _empty() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class MachineCode:
    """The difference of the machine code, or one line on why there is none (yet)."""

    lines: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a candidate beside its verdict.

    Attributes:
        candidate: Its id.
        parent: The ancestor that it is compared with; empty if none has a note.
        code: The compiler's report; empty without.
        parent_code: That of the ancestor.
        counters: What the profiler counted; empty without.
        parent_counters: The same of the ancestor.
        error: Why nothing could be read; empty if it could.
        machine: The difference of the machine code, once somebody asked for it.
    """

    candidate: str
    parent: str = ""
    code: Mapping[str, Any] = field(default_factory=_empty)
    parent_code: Mapping[str, Any] = field(default_factory=_empty)
    counters: Mapping[str, Any] = field(default_factory=_empty)
    parent_counters: Mapping[str, Any] = field(default_factory=_empty)
    error: str = ""
    machine: MachineCode | None = None


class Reports:
    """Loads reports once for each evaluation and keeps the last ones."""

    def __init__(self, ask: Callable[[Command], Awaitable[Reply]]) -> None:
        self._ask = ask
        self._kept: OrderedDict[_Key, Report] = OrderedDict()

    @staticmethod
    def _key(candidate: Candidate) -> _Key:
        return candidate.id, candidate.sha, candidate.attempt, str(candidate.phase)

    def ready(self, candidate: Candidate) -> Report | None:
        """Returns what is there already."""
        return self._kept.get(self._key(candidate))

    def forget(self, candidate: Candidate) -> None:
        """Has the notes of a candidate read again: something was added to them."""
        self._kept.pop(self._key(candidate), None)

    async def load(self, state: State, candidate: Candidate) -> Report:
        """Asks the engine for the notes of a candidate and its ancestors."""
        note, error = await self._note(candidate.id)
        ancestor = candidate
        parent = ""
        above: Mapping[str, Any] = {}
        while ancestor.parents and not error:
            ancestor = state.candidates[ancestor.parents[0]]
            above, error = await self._note(ancestor.id)
            if _part(above, "codegen") or _part(above, "counters"):
                parent = ancestor.id
                break
        report = Report(
            candidate.id,
            parent,
            _part(note, "codegen"),
            _part(above, "codegen"),
            _part(note, "counters"),
            _part(above, "counters"),
            error,
        )
        if not error:
            self._keep(candidate, report)
        return report

    async def load_machine_code(self, candidate: Candidate, report: Report) -> Report:
        """Asks the engine how the machine code differs from the parent's; may take a while."""
        reply = await self._ask(ReadMachineCode(candidate.id))
        if reply.error:
            found = MachineCode(text=reply.error)
        else:
            found = MachineCode(
                tuple(str(line) for line in reply.data.get("lines") or ()),
                tuple(str(name) for name in reply.data.get("same") or ()),
            )
        report = replace(report, machine=found)
        self._keep(candidate, report)
        return report

    def await_machine_code(self, candidate: Candidate, report: Report) -> Report:
        """Marks a report as one whose machine code is being compared."""
        report = replace(report, machine=MachineCode(text="comparing the machine code…"))
        self._keep(candidate, report)
        return report

    def _keep(self, candidate: Candidate, report: Report) -> None:
        key = self._key(candidate)
        self._kept[key] = report
        self._kept.move_to_end(key)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    async def _note(self, candidate: str) -> tuple[Mapping[str, Any], str]:
        reply = await self._ask(ReadNotes(candidate))
        if reply.error:
            return {}, reply.error
        try:
            plain: Any = json.loads(str(reply.data.get("text") or "{}"))
        except ValueError:
            return {}, ""  # somebody wrote a note of their own with git
        return (cast("Mapping[str, Any]", plain) if isinstance(plain, dict) else {}), ""


def _part(note: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = note.get(name)
    return cast("Mapping[str, Any]", part) if isinstance(part, dict) else {}
