"""A model that the server does not know: asking it again cannot help, so its role rests at once."""

from __future__ import annotations

from kerneltui.agents.model_port import FailureKind
from kerneltui.model.attempts import speaker
from kerneltui.model.state import State

__all__ = ["unknown_model"]


def unknown_model(state: State, agent: str, arm: str = "") -> str:
    """The model for which an agent rests since the server does not know it; empty if it does not.

    Another model, or the human's wish to go on, ends that, as it ends any rest.

    Args:
        state: The state now.
        agent: Which.
        arm: The slow path's model that it is about.
    """
    if not state.fruitless.get(speaker(agent, arm), 0):
        return ""
    for call in reversed(state.calls.values()):
        if call.agent == agent == call.role and (not arm or call.model == arm):
            return call.model if call.outcome == FailureKind.UNKNOWN_MODEL else ""
    return ""
