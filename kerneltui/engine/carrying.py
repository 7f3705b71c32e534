"""Carries a candidate whose parent was overtaken over to the incumbent: a new candidate like any other."""

from __future__ import annotations

from kerneltui.agents.edits.carrying import Conflict, carry_over
from kerneltui.agents.edits.failure import EditFailure
from kerneltui.agents.port import Proposal
from kerneltui.engine.errors import Refused
from kerneltui.engine.recorder import Recorder
from kerneltui.model.candidate import AgentName, Origin
from kerneltui.model.errors import DefinitionError
from kerneltui.model.kernel import parse_kernel

__all__ = ["carried"]

_MOST_LINES = 6
_FREE = (Origin.TRANSFORM, Origin.EDIT, Origin.HUNKS)


def carried(recorder: Recorder, identifier: str) -> Proposal:
    """Returns a candidate's change of its parent as a change of the incumbent.

    Raises:
        Refused: There is no such candidate, nothing to carry, or both changed the same lines.
    """
    state = recorder.state
    candidate = state.candidates.get(identifier)
    if candidate is None:
        raise Refused(f"there is no candidate {identifier}")
    if not candidate.parents:
        raise Refused(f"{identifier} is the seed")
    incumbent = state.incumbent
    if incumbent in (identifier, candidate.parents[0]):
        raise Refused(f"{identifier} stands on {incumbent} already, or is on main")
    file = candidate.seed_file
    kernels = [
        parse_kernel(recorder.source(name), file)
        for name in (candidate.parents[0], identifier, incumbent)
    ]
    try:
        found = carry_over(*kernels, whole_file=candidate.origin in _FREE)
        if found.kernel is None:
            raise Refused(_told(identifier, incumbent, found.conflicts))
        kernel = parse_kernel(found.kernel.source, file)
        directive = kernel.directive(state.shapes[0].dimensions) if candidate.directive else None
    except (EditFailure, DefinitionError) as error:
        raise Refused(f"{identifier} cannot be carried over to {incumbent}: {error}") from error
    return Proposal(
        source=kernel.source,
        reason=f"{identifier} carried over to {incumbent}: {candidate.reason}",
        agent=AgentName.HUMAN,
        origin=Origin.EDIT,
        parents=(incumbent, identifier),
        directive=directive,
        seed_file=file,
        generation=1 + state.candidates[incumbent].generation,
        configuration={name: str(value) for name, value in kernel.configuration.items()},
    )


def _told(identifier: str, incumbent: str, conflicts: tuple[Conflict, ...]) -> str:
    """One line on how many conflicts there are, then the first of them, both sides."""
    first = conflicts[0]
    where = f"line {first.line}" + (f", region {first.region}" if first.region else "")
    more = f", and {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
    lines = [
        f"{identifier} and {incumbent} changed the same lines ({where}{more}); edit it by hand (e)"
    ]
    for name, text in ((incumbent, first.new_parent), (identifier, first.proposal)):
        lines += [f"{name}: {line}" for line in text[:_MOST_LINES]]
    return "\n".join(lines)
