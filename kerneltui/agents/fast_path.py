"""The offline fast path: from the host-driven seed to the library's device-initiated kernel.

It proposes the library kernels of the workload one after the other, each as a transform of the kernel on
`main`, and stops at the first that is verified and measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kerneltui.agents.port import Proposal, SearchView
from kerneltui.model.candidate import AgentName, Candidate, Origin, Phase
from kerneltui.model.directive import Backend
from kerneltui.model.kernel import Kernel

__all__ = [
    "MOST_TRIES",
    "ONE_RANK",
    "OfflineFastPath",
    "from_library",
    "landing_point",
    "passed",
    "under_way",
]

ONE_RANK = "one rank moves nothing: left to the slow path"
"""What the fast path says where there is no other rank."""
MOST_TRIES = 3
"""Evaluations of a kernel that end by a fault of the harness, before it is left to the human."""


def landing_point(view: SearchView) -> Candidate | None:
    """Returns the first candidate that is device-initiated, verified and measured, if any.

    One rank has nothing to bring to another, so the search begins at the seed.
    """
    if view.state.ranks == 1:
        return view.state.candidates.get(view.state.base)
    for candidate in view.state.candidates.values():
        device = candidate.directive is not None and candidate.directive.backend is not Backend.HOST
        if device and passed(candidate):
            return candidate
    return None


def passed(candidate: Candidate) -> bool:
    """Whether a candidate is verified and measured; it stays so while it is measured again."""
    failed = candidate.phase is Phase.FAILED and not candidate.harness_fault
    return candidate.measurement is not None and not failed


def under_way(candidate: Candidate, view: SearchView) -> bool:
    """Whether a verdict on a candidate is awaited.

    Not on one that the human has cut, or that faults of the harness have met again and again, unless queued.
    """
    if passed(candidate):
        return False
    if candidate.harness_fault:
        return candidate.attempt < MOST_TRIES or candidate.id in view.queued
    if candidate.phase is Phase.INTERRUPTED:
        return candidate.id in view.queued
    return candidate.phase is not Phase.FAILED


def from_library(kernel: Kernel, view: SearchView, agent: AgentName, parent: str) -> Proposal:
    """Returns a library kernel as a transform of a candidate."""
    shape = view.shapes[0]
    directive = kernel.directive(shape)
    way = f", {directive.backend} by the rank itself" if shape["RANKS"] > 1 else ""
    return Proposal(
        source=kernel.source,
        reason=f"{kernel.file}: {directive.placement}{way}",
        agent=agent,
        origin=Origin.TRANSFORM,
        parents=(parent,),
        directive=directive,
        seed_file=kernel.file,
        generation=1 + view.state.candidates[parent].generation,
        configuration={name: str(value) for name, value in kernel.configuration.items()},
    )


@dataclass(slots=True)
class OfflineFastPath:
    """Takes the transform from the library, in the order in which the workload lists it."""

    library: Sequence[Kernel]
    name: AgentName = AgentName.FAST

    def propose(self, view: SearchView) -> Proposal | None:
        """Returns the next library kernel that was not tried, until one has landed."""
        if landing_point(view) is not None or self._running(view):
            return None
        tried = {
            candidate.seed_file
            for candidate in view.state.candidates.values()
            if candidate.agent is AgentName.FAST
        }
        for kernel in self.library:
            if kernel.file in tried:
                continue
            return from_library(kernel, view, self.name, view.state.incumbent)
        return None

    @property
    def busy(self) -> bool:
        """Never: a proposal is made at once."""
        return False

    @property
    def heard(self) -> frozenset[int]:
        """None: it does not think."""
        return frozenset()

    def think(self, view: SearchView) -> None:
        """Needs no time ahead."""

    def interrupt(self) -> None:
        """Has nothing under way."""

    def close(self) -> None:
        """Holds nothing."""

    @property
    def waiting(self) -> Sequence[Proposal]:
        """None: a proposal is made when it is asked for."""
        return ()

    def leftovers(self) -> Sequence[Proposal]:
        """Returns nothing: a proposal is made when it is asked for."""
        return ()

    def done(self, view: SearchView) -> str:
        """Says where it landed, or that the library has nothing more."""
        if self._running(view) or self.propose(view) is not None:
            return ""
        return self.status(view)

    def rests_until(self, view: SearchView) -> float | None:
        """Never: it asks no server."""
        del view

    def status(self, view: SearchView) -> str:
        """Returns what the fast path does."""
        landed = landing_point(view)
        if view.state.ranks == 1:
            return ONE_RANK
        if landed is not None:
            return f"landed at {landed.id}"
        if self._running(view):
            return "waits for the evaluation of its kernel"
        return "no library kernel is left to try" if self.propose(view) is None else "proposing"

    def answer(self, text: str) -> str:
        """Says that the offline fast path cannot read prose."""
        return "the offline fast path takes kernels from the library and cannot read notes"

    def refusals(self) -> tuple[str, ...]:
        """Returns nothing: the library is not bound by constraints."""
        return ()

    @staticmethod
    def _running(view: SearchView) -> bool:
        return any(under_way(candidate, view) for candidate in _mine(view))


def _mine(view: SearchView) -> list[Candidate]:
    return [c for c in view.state.candidates.values() if c.agent is AgentName.FAST]
