"""What an agent is told: the standing part, which is cached, and what belongs to one question.

The standing part depends on workload, target and machine alone, but for the digest of the one backend that a
question is about. That stands behind what all questions share, so that the server's cache serves them all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from kerneltui.agents.backends import Ways, ways_on
from kerneltui.agents.directive_rows import features_of, rows_text, unknown_of
from kerneltui.agents.evidence import (
    candidate_evidence,
    limits_text,
    rejections,
    siblings_text,
    steering_text,
    winners_text,
)
from kerneltui.agents.fenced import fenced
from kerneltui.agents.hand_over import handed_over_text
from kerneltui.agents.measured import failed_children_text, record_text
from kerneltui.agents.model_port import Block
from kerneltui.agents.port import SearchView
from kerneltui.agents.prompt_files import phrase, prompt
from kerneltui.model.candidate import AgentName
from kerneltui.model.directive import Backend

__all__ = ["PYTHON", "Material", "Standing", "body", "human_text", "standing", "visible"]

_HIDDEN = re.compile(r"\s*tags\s*=.*[\"']hidden[\"']")
_WRONG_ANSWERS = re.compile(r"^(?=# --- Answers|MUTANTS\b)", re.MULTILINE)


PYTHON = "python"
"""The language of the fence around kernels in Python; all others are CUDA or C++."""
_IN_CPP = {"comment": "//", "value": "#define NAME value", "read": "ctx->tunables"}
_IN_PYTHON = {"comment": "#", "value": "NAME = value", "read": "context.tunables"}


@dataclass(frozen=True, slots=True)
class Material:
    """What does not change in a session.

    Attributes:
        target: Where kernels run.
        ranks: How many.
        workload: The text of workload.toml.
        reference: The text of reference.py up to its wrong answers: what is computed.
        language: Of the fence around kernel text.
    """

    target: str
    ranks: int
    workload: str
    reference: str
    language: str = "cpp"

    @classmethod
    def of(cls, folder: Path, target: str, ranks: int, file: str) -> Material:
        """Reads a workload's folder."""
        reference = (folder / "reference.py").read_text(encoding="utf-8")
        return cls(
            target=target,
            ranks=ranks,
            workload=visible(folder.joinpath("workload.toml").read_text(encoding="utf-8")),
            reference=_WRONG_ANSWERS.split(reference, maxsplit=1)[0],
            language=PYTHON if file.endswith(".py") else "cpp",
        )


def visible(workload: str) -> str:
    """The text of workload.toml without the shapes that no agent is told of."""
    blocks: list[list[str]] = [[]]
    for line in workload.splitlines():
        if line.startswith("["):
            blocks.append([])
        blocks[-1].append(line)
    return "\n".join(
        line for block in blocks if not any(_HIDDEN.match(line) for line in block) for line in block
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """The standing instructions, longest-lived first, before it is clear which backend a question is about.

    Attributes:
        shared: What all questions have.
        ways: How data can move.
        late: What changes in a session.
    """

    shared: tuple[Block, ...]
    ways: Ways
    late: tuple[Block, ...]

    def blocks(self, *stated: Backend | None) -> tuple[Block, ...]:
        """With the digest of the chosen backend, and of no other; each of the first parts ends a cached one.

        Args:
            stated: What directives say, the nearest to the question first; host and None choose nothing.
        """
        chosen = self.ways.chosen(*stated)
        if chosen is None:
            return self.shared + self.late
        digest = f"## The backend {chosen}\n\n{self.ways.digests[chosen]}"
        return (*self.shared, Block(digest, cached=True), *self.late)


def standing(material: Material, view: SearchView, notes: str = "") -> Standing:
    """The standing instructions."""
    contract = files("kerneltui").joinpath("include", "kerneltui", "kernel.h").read_text("utf-8")
    environment = view.state.environment
    ways = ways_on(material.target, material.ranks, environment, view.state.constraints)
    python = material.language == PYTHON
    general = "\n\n".join(
        [
            prompt("system", target=material.target, ranks=material.ranks),
            f"## kernel.h\n\n{fenced(contract, 'c')}",
            *([f"## Kernels in Python\n\n{prompt('python')}"] if python else []),
            f"## Moving data\n\n{ways.overview()}",
            f"## The directive\n\n{prompt('directive')}",
            f"## Declarations\n\n{prompt('declarations', **(_IN_PYTHON if python else _IN_CPP))}",
        ]
    )
    machine = "\n".join(f"- {key}: {value}" for key, value in environment.items())
    words = " ".join(environment.values()).split()
    features = features_of(material.target, material.ranks, words)
    quick = rows_text(features, unknown_of(material.target, words))
    session = "\n\n".join(
        [
            f"## The workload\n\n{fenced(material.workload, 'toml')}\n\n"
            f"{fenced(material.reference, 'python')}",
            f"## This machine\n\n{machine}",
            f"## What is possible\n\n{limits_text(view.state)}",
            *([f"## What is known to be quick here\n\n{quick}"] if quick else []),
        ]
    )
    told = handed_over_text(view, notes)
    late: list[Block] = []
    if notes.strip():
        late.append(Block(f"## Lab notes\n\n{notes}"))
    if told:
        late.append(Block(f"## Handed over by the fast path\n\n{told}"))
    return Standing((Block(general, cached=True), Block(session, cached=True)), ways, tuple(late))


def body(
    material: Material, view: SearchView, candidate: str, agent: AgentName, others: str = ""
) -> tuple[str, tuple[int, ...]]:
    """What one question says of a kernel: evidence, what was tried from it, the human, its text.

    `others` is what is said of other kernels.

    Returns:
        The text, and the numbers of the human's messages in it.
    """
    state = view.state
    human, numbers = human_text(view, agent)
    parts = [f"## Evidence\n\n{candidate_evidence(state.candidates[candidate], state)}"]
    measured = record_text(state.candidates[candidate], view)
    if measured:
        parts.append(f"## Its record\n\n{measured}")
    winners = winners_text(candidate, state)
    if winners:
        parts.append(f"## Faster on a shape\n\n{winners}")
    tried = siblings_text(candidate, state)
    if tried:
        parts.append(f"## Tried from {candidate} already\n\n{tried}")
    failed = failed_children_text(candidate, view)
    if failed:
        parts.append(f"## The last failure from {candidate}\n\n{failed}")
    if others:
        parts.append(f"## Other good kernels, for ideas\n\n{others}")
    if human:
        parts.append(human)
    source = fenced(view.source(candidate), material.language)
    parts.append(f"## {candidate}, {view.kernel_file}\n\n{source}")
    return "\n\n".join(parts), numbers


def human_text(view: SearchView, agent: AgentName) -> tuple[str, tuple[int, ...]]:
    """What the human turned down, aims for, asks and rules out: a part of every question for a kernel.

    Returns:
        The text, empty if there is nothing, and the numbers of the messages in it.
    """
    steering, numbers = steering_text(view.state, str(agent), view.answered)
    parts: list[str] = []
    refused = rejections(list(view.state.candidates.values()))
    if refused:
        parts.append(f"## Turned down by the human\n\n{refused}")
    if steering:
        parts.append(f"## The human says\n\n{phrase('human_says')}\n\n{steering}")
    return "\n\n".join(parts), numbers
