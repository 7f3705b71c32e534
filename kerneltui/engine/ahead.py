"""Which kernels are going to be evaluated: they can be built while another one is evaluated."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable

from kerneltui.agents.port import Proposal
from kerneltui.model.kernel import Kernel

__all__ = ["WaitingKernels"]


class WaitingKernels:
    """Names every kernel that waits, once.

    Args:
        kernel: The kernel of a candidate.
        worth: The kernel of a proposal, or None if it is not worth an evaluation.
    """

    def __init__(
        self,
        kernel: Callable[[str], Kernel],
        worth: Callable[[Proposal], Kernel | None],
    ) -> None:
        self._kernel = kernel
        self._worth = worth
        self._asked: set[str] = set()

    def wanted(self, queued: Collection[str], proposals: Iterable[Proposal]) -> list[Kernel]:
        """Returns what was not there before and is worth an evaluation.

        Args:
            queued: Candidates that wait for their evaluation.
            proposals: Those that agents have ready.
        """
        found = [self._kernel(name) for name in queued if self._new(name)]
        for proposal in proposals:
            if self._new(hashlib.sha256(proposal.source.encode()).hexdigest()):
                kernel = self._worth(proposal)
                if kernel is not None:
                    found.append(kernel)
        return found

    def _new(self, mark: str) -> bool:
        new = mark not in self._asked
        self._asked.add(mark)
        return new
