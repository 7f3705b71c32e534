"""From a model's answer to a proposal: edits applied, directive held against the file, nothing twice.

What cannot be applied goes back to the model with the reason and the nearest lines, a few times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kerneltui.agents.edits.applying import apply_reply
from kerneltui.agents.edits.failure import EditFailure
from kerneltui.agents.edits.marking import check_marks, prove_marked
from kerneltui.agents.edits.repairing import repair_note
from kerneltui.agents.edits.reply import read_reply
from kerneltui.agents.edits.tool_input import read_tool_input
from kerneltui.agents.gate import Gate
from kerneltui.agents.model_port import Block, ModelCall, Role, Turn
from kerneltui.agents.prompt_files import phrase
from kerneltui.agents.thinking import NothingProposed, Talk
from kerneltui.agents.tools import PATHS, PROPOSE, directive_of
from kerneltui.model.directive import Backend, Directive
from kerneltui.model.errors import DefinitionError, RecordError
from kerneltui.model.kernel import Kernel, parse_kernel
from kerneltui.model.steering import Constraint
from kerneltui.search.constraints import violation

__all__ = ["Request", "Written", "question", "write"]

_EDIT_FIELDS = ("file", "region", "edits", "rewrite")
_REASON_CHARACTERS = 100


def _no_marks() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for.

    Attributes:
        role: Which model.
        system: The standing instructions.
        prompt: The question.
        purpose: For the meter, in a few words.
        parent: The kernel that edits are held against.
        free: Whether the whole file may be replaced; then its evolve marks are proven (`edits/marking`).
        marked: The file that a stage of the fast path began with; one with the backend `host` claims to be
            it with other marks.
        gate: What the stage asks of the host; None outside of the fast path.
        dimensions: Of the first tune shape, for the directive.
        known: Token hashes of all candidates, by which their ids are found.
        repairs: How often the model may mend what it wrote.
        constraints: What the human banned and forced.
        model: Which of the role's models is asked; empty is its first.
    """

    role: Role
    system: Sequence[Block]
    prompt: str
    purpose: str
    parent: Kernel
    free: bool
    dimensions: Mapping[str, int]
    known: Mapping[str, str] = field(default_factory=_no_marks)
    repairs: int = 3
    constraints: Sequence[Constraint] = ()
    marked: Kernel | None = None
    gate: Gate | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """A kernel text that can be proposed."""

    source: str
    reason: str
    directive: Directive
    answer: str
    notes: tuple[str, ...]


def question(request: Request, turns: Sequence[Turn] = (), purpose: str = "") -> ModelCall:
    """The question that a request is; `turns` and `purpose` are those of a repair."""
    return ModelCall(
        request.role,
        request.system,
        turns or [Turn("user", request.prompt)],
        [PROPOSE],
        True,
        purpose or request.purpose,
        request.model,
        PATHS,
    )


def write(talk: Talk, request: Request) -> Written:
    """Asks a model for a kernel until one can be proposed.

    Raises:
        NothingProposed: None could be, after all repairs.
        ModelFailure: The model gave nothing.
    """
    turns = [Turn("user", request.prompt)]
    problem: Written | str = "nothing was asked"
    detail = ""
    for attempt in range(request.repairs + 1):
        purpose = request.purpose if not attempt else f"{request.purpose}, repair {attempt}"
        reply = talk.ask(question(request, turns, purpose))
        answers = [dict(used.input) for used in reply.tools]
        if len(answers) > 1:
            problem, detail = phrase("several", count=len(answers)), ""
        else:
            problem, detail = _Reading(request).read(answers[0] if answers else {}, reply.text)
        if isinstance(problem, Written):
            return problem
        turns = [
            *turns,
            Turn("assistant", f"{phrase('called')}\n{_shown(answers)}"),
            Turn("user", detail or f"{problem}\n\n{phrase('again')}"),
        ]
    raise NothingProposed(str(problem), detail)


def _shown(answers: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(json.dumps(answer) for answer in answers or [{}])[:20_000]


@dataclass(slots=True)
class _Reading:
    request: Request

    def read(self, answer: Mapping[str, Any], text: str) -> tuple[Written | str, str]:
        """The proposal, or what is wrong with it in one line, and all that is said to the model of it.

        Edits stand in the call, or else as blocks in the text beside it.
        """
        edits = {key: answer[key] for key in _EDIT_FIELDS if key in answer}
        try:
            stated = directive_of(answer.get("directive", {}))
            gate = self.request.gate
            wrong = gate.wrong_backend(stated.backend) if gate else ""
            if wrong:
                return wrong, ""
            free = self.request.free
            given = read_tool_input(edits) if edits else read_reply(text, whole_file=free)
            applied = apply_reply(self.request.parent, given, whole_file=free)
            kernel = parse_kernel(applied.source, self.request.parent.file)
            wrong = gate.wrong_calls(kernel, self.request.marked) if gate else ""
            if wrong:
                return wrong, ""
            self._prove(kernel, stated)
        except EditFailure as failure:
            return failure.reason, repair_note(failure)
        except (DefinitionError, RecordError) as error:
            return str(error), ""
        same = self.request.known.get(kernel.token_hash())
        if same:
            return phrase("same_program", same=same), ""
        try:
            declared = self._declared(kernel, stated)
        except DefinitionError as error:
            return phrase("wrong_directive", error=error), ""
        clash = _clash(stated, declared)
        if clash:
            return clash, ""
        broken = self._broken(kernel, declared)
        if broken:
            return phrase("against_the_human", broken=broken), ""
        reason = " ".join(str(answer.get("reason", "")).split())[:_REASON_CHARACTERS]
        return Written(
            source=applied.source,
            reason=reason or "no reason given",
            directive=declared,
            answer=str(answer.get("answer", "")).strip(),
            notes=tuple(applied.notes),
        ), ""

    def _prove(self, kernel: Kernel, stated: Directive) -> None:
        """Holds the marks of a new file against what it claims to be.

        Raises:
            EditFailure: They are not proven.
        """
        if not self.request.free:
            return
        check_marks(kernel)
        if self.request.marked is not None and stated.backend is Backend.HOST:
            prove_marked(self.request.marked, kernel)

    def _broken(self, kernel: Kernel, declared: Directive) -> str:
        """What the human asks and the kernel does not do; a step that the host still drives is free."""
        if self.request.free and declared.backend is Backend.HOST:
            return ""
        return violation(self.request.constraints, declared, kernel.configuration)

    def _declared(self, kernel: Kernel, stated: Directive) -> Directive:
        """What the file says; what was stated if it says nothing and its frozen text cannot."""
        if "kerneltui: directive" not in kernel.source and not self.request.free:
            return stated
        return kernel.directive(self.request.dimensions)


def _clash(stated: Directive, declared: Directive) -> str:
    """What the answer and the file's comments say differently."""
    names = ("backend", "issuer", "placement", "sync")
    wrong = [
        f"{name} {getattr(stated, name)} (stated) and {getattr(declared, name)} (in the file)"
        for name in names
        if getattr(stated, name) != getattr(declared, name)
    ]
    if not wrong:
        return ""
    return phrase("clash", wrong="; ".join(wrong))
