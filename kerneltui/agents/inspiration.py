"""Other good kernels beside the parent, as text for a prompt: what is known of them and how they differ."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import unified_diff

from kerneltui.agents.evidence import candidate_evidence
from kerneltui.agents.fenced import fenced
from kerneltui.agents.port import SearchView

__all__ = ["inspirations_text"]

_MOST_LINES = 80
"""Of one difference: enough for an idea, little beside the parent's text."""


def inspirations_text(
    view: SearchView, names: Sequence[str], parent: str, language: str = "cpp"
) -> str:
    """Returns evidence of each kernel and its difference to the parent, cut where that is long."""
    own = view.source(parent).splitlines()
    parts: list[str] = []
    for name in names:
        evidence = candidate_evidence(view.state.candidates[name], view.state)
        changes = list(
            unified_diff(own, view.source(name).splitlines(), parent, name, n=1, lineterm="")
        )
        cut = len(changes) - _MOST_LINES
        text = "\n".join(changes[:_MOST_LINES] + ([f"… {cut} more lines"] if cut > 0 else []))
        parts.append(f"### {evidence}\n\nHow it differs from {parent}:\n\n{fenced(text, 'diff')}")
    return "\n\n".join(parts)
