"""What an agent is told: the standing part, which is cached, and what belongs to one question.

The standing part depends on workload, target and machine alone. It has the digest of those ways to move
data that this machine has, and of no others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from kerneltui.agents.directive_rows import features_of, rows_text
from kerneltui.agents.evidence import (
    candidate_evidence,
    limits_text,
    rejections,
    siblings_text,
    steering_text,
)
from kerneltui.agents.fenced import fenced
from kerneltui.agents.hand_over import handed_over_text
from kerneltui.agents.measured import failed_children_text, record_text
from kerneltui.agents.model_port import Block
from kerneltui.agents.port import SearchView
from kerneltui.agents.prompt_files import prompt
from kerneltui.model.candidate import AgentName
from kerneltui.model.directive import Backend

__all__ = ["Material", "body", "standing", "visible"]

_HIDDEN = re.compile(r"\s*tags\s*=.*[\"']hidden[\"']")
_WRONG_ANSWERS = re.compile(r"^(?=# --- Answers|MUTANTS\b)", re.MULTILINE)
_DIGESTS = {
    "cpu": {Backend.LSA: "digest_cpu"},
    "cuda": {
        Backend.LSA: "digest_lsa",
        Backend.COPY_ENGINE: "digest_copy_engine",
        Backend.GIN: "digest_gin",
    },
}


@dataclass(frozen=True, slots=True)
class Material:
    """What does not change in a session.

    Attributes:
        target: Where kernels run.
        ranks: How many.
        workload: The text of workload.toml.
        reference: The text of reference.py up to its wrong answers: what is computed.
        backends: The ways to move data that this machine has.
        language: Of the fence around kernel text.
    """

    target: str
    ranks: int
    workload: str
    reference: str
    backends: tuple[Backend, ...]
    language: str = "cpp"

    @classmethod
    def of(
        cls, folder: Path, target: str, ranks: int, backends: Sequence[Backend], file: str
    ) -> Material:
        """Reads a workload's folder."""
        reference = (folder / "reference.py").read_text(encoding="utf-8")
        return cls(
            target=target,
            ranks=ranks,
            workload=visible(folder.joinpath("workload.toml").read_text(encoding="utf-8")),
            reference=_WRONG_ANSWERS.split(reference, maxsplit=1)[0],
            backends=tuple(backends),
            language="python" if file.endswith(".py") else "cpp",
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


def standing(material: Material, view: SearchView, notes: str = "") -> tuple[Block, ...]:
    """The standing instructions, longest-lived first; the ends of two parts are cached."""
    contract = files("kerneltui").joinpath("include", "kerneltui", "kernel.h").read_text("utf-8")
    digests = [
        prompt(name)
        for backend, name in _DIGESTS.get(material.target, {}).items()
        if backend in material.backends
    ]
    general = "\n\n".join(
        [
            prompt("system", target=material.target, ranks=material.ranks),
            f"## kernel.h\n\n{fenced(contract, 'c')}",
            "## Moving data\n\n" + "\n\n".join(digests),
            "## The directive\n\n" + prompt("directive", rules=_rules(material)),
        ]
    )
    machine = "\n".join(f"- {key}: {value}" for key, value in view.state.environment.items())
    words = " ".join(view.state.environment.values()).split()
    quick = rows_text(features_of(material.target, material.ranks, words))
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
    blocks = [Block(general, cached=True), Block(session, cached=True)]
    if notes.strip():
        blocks.append(Block(f"## Lab notes\n\n{notes}"))
    if told:
        blocks.append(Block(f"## Handed over by the fast path\n\n{told}"))
    return tuple(blocks)


def body(
    material: Material, view: SearchView, candidate: str, agent: AgentName, others: str = ""
) -> tuple[str, tuple[int, ...]]:
    """What one question says of a kernel: evidence, what was tried from it, the human, its text.

    `others` is what is said of other kernels.

    Returns:
        The text, and the numbers of the human's messages in it.
    """
    state = view.state
    steering, numbers = steering_text(state, str(agent), view.answered)
    parts = [f"## Evidence\n\n{candidate_evidence(state.candidates[candidate], state)}"]
    measured = record_text(state.candidates[candidate], view)
    if measured:
        parts.append(f"## Its record\n\n{measured}")
    tried = siblings_text(candidate, state)
    if tried:
        parts.append(f"## Tried from {candidate} already\n\n{tried}")
    failed = failed_children_text(candidate, view)
    if failed:
        parts.append(f"## The last failure from {candidate}\n\n{failed}")
    if others:
        parts.append(f"## Other good kernels, for ideas\n\n{others}")
    refused = rejections(list(state.candidates.values()))
    if refused:
        parts.append(f"## Turned down by the human\n\n{refused}")
    if steering:
        parts.append(
            "## The human says\n\nFollow this; answer the messages in `answer`, in a sentence or two."
            f"\n\n{steering}"
        )
    source = fenced(view.source(candidate), material.language)
    parts.append(f"## {candidate}, {view.kernel_file}\n\n{source}")
    return "\n\n".join(parts), numbers


def _rules(material: Material) -> str:
    """Which choices this machine does not have."""
    missing = [
        str(backend)
        for backend in (Backend.LSA, Backend.COPY_ENGINE, Backend.GIN)
        if backend not in material.backends
    ]
    if not missing:
        return "All backends are there."
    return f"Not there on this machine: {', '.join(missing)}."
