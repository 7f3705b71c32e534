"""Where a side-by-side run is measured, and whether shapes from two such places may stand in one file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from kerneltui.evaluation.pipeline import Evaluator
from kerneltui.targets.cuda.packages import math_libraries

__all__ = ["compare_machines", "machine_of"]

_PACKAGES = ("nvmath-python", "triton")
_VERSIONS = ("driver", "compiler", "torch", "cuBLAS", *_PACKAGES)
_ACROSS = ("nccl windows",)  # with the version of NCCL
_HOST = ("machine", "cores")
_TOLD = ("kernel", "python", "clocks", "gin", "sandbox")


def machine_of(evaluator: Evaluator) -> dict[str, str]:
    """Describes the machine as results need it: with ids of GPUs, limits of power, versions of libraries.

    For a judge that is ready.
    """
    found = dict(evaluator.environment())
    gpus: Any = getattr(evaluator.stand.target, "gpus", None)
    if gpus is None:
        return found
    found["cuBLAS"] = math_libraries()["cuBLAS"]
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    for index in range(gpus.count):
        for name, value in gpus.identity(index).items():
            found[f"gpu {index} {name}"] = value
    return found


def compare_machines(
    before: Mapping[str, str], now: Mapping[str, str], ranks: int
) -> tuple[list[str], list[str]]:
    """Returns what forbids that results of two places stand side by side, and what is to be told.

    The model of each GPU, the driver, the compiler and the libraries must be the same. Lanes of a shape are
    interleaved on one machine, so another GPU of the model, another limit of its power or another host
    is told. Without GPUs the host is what is measured, and must be the same.

    Args:
        before: Of an earlier part; a file may be from before something was recorded.
        now: Of this one.
        ranks: How many GPUs take part; others do not matter.
    """
    gpus = [f"gpu {index}" for index in range(ranks)]
    on_gpus = "gpu 0" in now
    required = [*_VERSIONS, *(gpus if on_gpus else _HOST)]
    told = [*_TOLD, *(f"{gpu} {name}" for gpu in gpus for name in ("uuid", "power limit"))]
    if on_gpus:
        told += _HOST
    if ranks > 1:
        required += _ACROSS
    refused = [_change(name, before, now) for name in required if _other(name, before, now)]
    untold = [f"{name} was not recorded" for name in required if name in now and name not in before]
    return refused, [*(_change(n, before, now) for n in told if _other(n, before, now)), *untold]


def _other(name: str, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    return name in before and before[name] != now.get(name)


def _change(name: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    return f"{name} was {before[name]} and is {now.get(name, 'not there')}"
