"""What is held against a proposal before anything is spent on it: the patch stage."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from kerneltui.agents.edits.failure import EditFailure, EditKind
from kerneltui.agents.edits.marking import check_marks, prove_marked
from kerneltui.agents.edits.verifying import check_closed, frozen_kept
from kerneltui.agents.port import Proposal
from kerneltui.engine.recorder import Recorder
from kerneltui.evaluation.device_lint import LintContext, lint_device_code
from kerneltui.evaluation.directive_lint import lint_directive
from kerneltui.model.candidate import Failure, Origin, Phase
from kerneltui.model.directive import Backend
from kerneltui.model.errors import DefinitionError
from kerneltui.model.kernel import Kernel, Language, parse_kernel
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.search.constraints import violation
from kerneltui.targets.cuda.finding import Finding, one_line

__all__ = ["ProposalCheck"]

_MOST_FINDINGS = 12
# A transform may replace the whole file; so may a human.
_FREE = (Origin.TRANSFORM, Origin.EDIT, Origin.HUNKS)


def _marks() -> dict[str, str]:
    return {}


def _no_findings() -> dict[str, tuple[Finding, ...]]:
    return {}


@dataclass(slots=True)
class ProposalCheck:
    """Checks declarations, frozen text and novelty against the candidates of a session."""

    recorder: Recorder
    kernel_file: str
    _marks: dict[str, str] = field(default_factory=_marks)
    _linted: dict[str, tuple[Finding, ...]] = field(default_factory=_no_findings)

    def kernel(self, candidate: str) -> Kernel:
        """Parses the kernel of a candidate."""
        return parse_kernel(self.recorder.source(candidate), self.kernel_file)

    def problem(self, proposal: Proposal) -> Failure | None:
        """Returns why a proposal is not worth an evaluation, or None."""
        try:
            kernel = parse_kernel(proposal.source, self.kernel_file)
            self._hold(proposal, kernel)
        except (DefinitionError, EditFailure) as error:
            return Failure(Stage.PATCH, FailureKind.REFUSED, str(error))
        same = self._same_program(kernel.token_hash())
        if same:
            return Failure(Stage.PATCH, FailureKind.DUPLICATE, f"the same program as {same}")
        return None

    def findings(self, proposal: Proposal) -> tuple[str, ...]:
        """Returns what the lint says of a proposal: its directive against its code, and device code."""
        state = self.recorder.state
        try:
            kernel = parse_kernel(proposal.source, self.kernel_file)
        except DefinitionError:
            return ()  # it is refused for that
        if kernel.language is Language.PYTHON:
            return ()
        found: list[Finding] = []
        if proposal.directive is not None and state.shapes:
            dimensions = state.shapes[0].dimensions
            found += lint_directive(kernel, proposal.directive, dimensions, state.ranks)
        if state.target == "cuda":
            found += self._device_findings(kernel)
        found.sort(key=lambda finding: finding.line)
        return tuple(one_line(finding, self.kernel_file) for finding in found[:_MOST_FINDINGS])

    def _device_findings(self, kernel: Kernel) -> tuple[Finding, ...]:
        """What the lint says of device code; it reads no values, so kernels that differ in them share it."""
        text = kernel.render({tunable.name: tunable.values[0] for tunable in kernel.tunables})
        key = hashlib.sha256(text.encode()).hexdigest()
        if key not in self._linted:
            self._linted[key] = lint_device_code(text, LintContext(gin=True))
        return self._linted[key]

    def _hold(self, proposal: Proposal, kernel: Kernel) -> None:
        """Holds text and marks against the parent, and what a model made against the constraints.

        Raises:
            EditFailure: Frozen text is changed, would be by what a region leaves open, marks are not
                proven, or a constraint is broken.
        """
        self._keeps(proposal, kernel)
        if proposal.origin is Origin.TRANSFORM:
            if not proposal.calls:
                return  # of the workload's library, whose author is the user
            check_marks(kernel)
            if proposal.directive is not None and proposal.directive.backend is Backend.HOST:
                prove_marked(self.kernel(self._sound(proposal.parents[0])), kernel)
        elif proposal.origin not in _FREE:
            parent = self.kernel(proposal.parents[0])
            if not frozen_kept(parent, kernel):
                reason = f"it changes text outside the evolve regions of {proposal.parents[0]}"
                raise EditFailure(EditKind.FROZEN, reason)
            check_closed(kernel, parent)

    def _keeps(self, proposal: Proposal, kernel: Kernel) -> None:
        """Refuses what the human banned meanwhile; a step that the host still drives is free.

        Raises:
            EditFailure: A model's kernel breaks a constraint.
        """
        directive = proposal.directive
        by_host = directive is not None and directive.backend is Backend.HOST
        if not proposal.calls or (by_host and proposal.origin is Origin.TRANSFORM):
            return
        broken = violation(self.recorder.state.constraints, directive, kernel.configuration)
        if broken:
            raise EditFailure(
                EditKind.DECLARATION, f"it does not keep to what the human asks: {broken}"
            )

    def _sound(self, candidate: str) -> str:
        """The nearest ancestor that passed its evaluation: a repair stands on that, not on what failed."""
        known = self.recorder.state.candidates
        while known[candidate].phase is Phase.FAILED and known[candidate].parents:
            candidate = known[candidate].parents[0]
        return candidate

    def _same_program(self, mark: str) -> str:
        for candidate in self.recorder.state.candidates:
            if candidate not in self._marks:
                self._marks[candidate] = self.kernel(candidate).token_hash()
            if self._marks[candidate] == mark:
                return candidate
        return ""
