"""Makes the evaluator of a workload on a target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kerneltui.config import cache_folder, config_folder
from kerneltui.engine.errors import WorkloadUnfit
from kerneltui.evaluation.pipeline import Evaluator
from kerneltui.evaluation.stand import MachineTarget
from kerneltui.evaluation.timing import GPU_PROTOCOL, TimingProtocol
from kerneltui.model.limit import Ceilings
from kerneltui.model.workload import TargetSpec, Workload
from kerneltui.targets.errors import TargetError

__all__ = ["make_evaluator"]

_Made = tuple[MachineTarget, Callable[[int], Ceilings]]


def make_evaluator(workload: Workload, spec: TargetSpec) -> Evaluator:
    """Returns the evaluator for a target; nothing is started yet.

    Raises:
        WorkloadUnfit: This kerneltui has no such target, or this machine cannot run it.
    """
    make = {"cpu": _cpu, "cuda": _cuda}.get(spec.name)
    if make is None:
        raise WorkloadUnfit(
            f"{workload.name}: target '{spec.name}' is not built in; use --target cpu or cuda"
        )
    cache = cache_folder()
    try:
        target, ceilings = make(cache, spec)
    except TargetError as error:
        raise WorkloadUnfit(
            f"{workload.name}: target '{spec.name}' cannot run here: {error}; see kerneltui doctor"
        ) from error
    protocol = GPU_PROTOCOL if spec.name == "cuda" else TimingProtocol()
    return Evaluator(workload, target, ceilings=ceilings, cache=cache, protocol=protocol)


def _cpu(cache: Path, spec: TargetSpec) -> _Made:
    from kerneltui.targets.cpu.ceilings import measure_ceilings
    from kerneltui.targets.cpu.runtime import CpuTarget

    # Ranks keep to cores of their own: else two share one now and then, and take twice the time.
    target = CpuTarget(cache, pin=True)
    return target, lambda ranks: measure_ceilings(target, ranks).model


def _cuda(cache: Path, spec: TargetSpec) -> _Made:
    from kerneltui.targets.cuda.policy import load_policy
    from kerneltui.targets.cuda.runtime import CudaTarget

    vendors = any(name.startswith("cublaslt") for name in spec.baselines)
    target = CudaTarget(cache, policy=load_policy(config_folder()), vendors=vendors)
    return target, lambda ranks: target.measure_ceilings(ranks, spec.dtype)
