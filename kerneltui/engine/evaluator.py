"""Makes the evaluator of a workload on a target."""

from __future__ import annotations

from kerneltui.engine.executor import EvaluatorPort
from kerneltui.model.workload import TargetSpec, Workload

__all__ = ["make_evaluator"]


def make_evaluator(workload: Workload, spec: TargetSpec) -> EvaluatorPort:
    """Returns the evaluator for a target."""
    raise NotImplementedError
