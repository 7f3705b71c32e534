"""What is held against a proposal before anything is spent on it (DESIGN 7, 9: the patch stage)."""

from __future__ import annotations

from dataclasses import dataclass, field

from kerneltui.agents.port import Proposal
from kerneltui.engine.recorder import Recorder
from kerneltui.model.candidate import Failure, Origin
from kerneltui.model.errors import DefinitionError
from kerneltui.model.kernel import Kernel, parse_kernel
from kerneltui.model.measurement import FailureKind, Stage

__all__ = ["ProposalCheck"]

# A transform may replace the whole file; so may a human.
_FREE = (Origin.TRANSFORM, Origin.EDIT, Origin.HUNKS)


def _marks() -> dict[str, str]:
    return {}


@dataclass(slots=True)
class ProposalCheck:
    """Checks declarations, frozen text and novelty against the candidates of a session."""

    recorder: Recorder
    kernel_file: str
    _marks: dict[str, str] = field(default_factory=_marks)

    def kernel(self, candidate: str) -> Kernel:
        """Parses the kernel of a candidate."""
        return parse_kernel(self.recorder.source(candidate), self.kernel_file)

    def problem(self, proposal: Proposal) -> Failure | None:
        """Returns why a proposal is not worth an evaluation, or None."""
        try:
            kernel = parse_kernel(proposal.source, self.kernel_file)
        except DefinitionError as error:
            return Failure(Stage.PATCH, FailureKind.REFUSED, str(error))
        if proposal.origin not in _FREE:
            parent = self.kernel(proposal.parents[0])
            if kernel.frozen_text() != parent.frozen_text():
                reason = f"it changes text outside the evolve regions of {proposal.parents[0]}"
                return Failure(Stage.PATCH, FailureKind.REFUSED, reason)
        same = self._same_program(kernel.token_hash())
        if same:
            return Failure(Stage.PATCH, FailureKind.DUPLICATE, f"the same program as {same}")
        return None

    def _same_program(self, mark: str) -> str:
        for candidate in self.recorder.state.candidates:
            if candidate not in self._marks:
                self._marks[candidate] = self.kernel(candidate).token_hash()
            if self._marks[candidate] == mark:
                return candidate
        return ""
