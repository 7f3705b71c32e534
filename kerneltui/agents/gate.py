"""What a stage of the fast path may answer: first the host still moves the data, then it does no longer.

A text cannot tell whether a call that stands in a kernel is ever reached. What it can tell goes back to the
model before anything is spent; the evaluation decides the rest.
"""

from __future__ import annotations

from enum import StrEnum

from kerneltui.agents.prompt_files import phrase
from kerneltui.evaluation.host_collectives import host_collectives, names_in_code
from kerneltui.model.directive import Backend
from kerneltui.model.kernel import Kernel

__all__ = ["Gate"]


class Gate(StrEnum):
    """What a stage asks of the host."""

    KEEPS_HOST = "keeps_host"
    """Stage A: the collectives that move the data are still there."""
    LEAVES_HOST = "leaves_host"
    """Stage B: no host collective is left."""

    def wrong_backend(self, stated: Backend) -> str:
        """What is wrong with a stated backend; empty if nothing is."""
        if self is Gate.KEEPS_HOST and stated is not Backend.HOST:
            return phrase("stage_a_backend", backend=stated)
        if self is Gate.LEAVES_HOST and stated is Backend.HOST:
            return phrase("stage_b_backend")
        return ""

    def wrong_calls(self, kernel: Kernel, before: Kernel | None) -> str:
        """What is wrong with the collectives of a kernel; empty if nothing is.

        Args:
            kernel: The new one.
            before: The one that the stage began with.
        """
        if self is Gate.LEAVES_HOST:
            left = host_collectives(kernel)
            return phrase("stage_b_calls", calls=_listed(left)) if left else ""
        names = names_in_code(kernel)
        calls = host_collectives(before) if before is not None else ()
        gone = [call for call in calls if call.replace(">", ".").split(".")[-1] not in names]
        return phrase("stage_a_calls", calls=_listed(gone)) if gone else ""


def _listed(calls: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{call}`" for call in calls)
