"""Makes the evaluator of a workload on a target."""

from __future__ import annotations

from kerneltui.config import cache_folder
from kerneltui.engine.errors import WorkloadUnfit
from kerneltui.evaluation.pipeline import Evaluator
from kerneltui.model.limit import Ceilings
from kerneltui.model.workload import TargetSpec, Workload
from kerneltui.targets.cpu.ceilings import measure_ceilings
from kerneltui.targets.cpu.runtime import CpuTarget

__all__ = ["make_evaluator"]


def make_evaluator(workload: Workload, spec: TargetSpec) -> Evaluator:
    """Returns the evaluator for a target; nothing is started yet.

    Raises:
        WorkloadUnfit: This kerneltui has no such target.
    """
    if spec.name != "cpu":
        raise WorkloadUnfit(
            f"{workload.name}: target '{spec.name}' is not built in; use --target cpu"
        )
    cache = cache_folder()
    # Ranks keep to cores of their own: else two share one now and then, and take twice the time.
    target = CpuTarget(cache, pin=True)

    def ceilings(ranks: int) -> Ceilings:
        return measure_ceilings(target, ranks).model

    return Evaluator(workload, target, ceilings=ceilings, cache=cache)
