"""GEMM + all-gather: the oracle, fresh inputs with a known answer, and answers that must be refused.

Runs in the judge alone. The interface is described in `kerneltui.evaluation.inputs`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kerneltui.evaluation.gemm_reference import (
    HONEST_PRODUCTS,
    WRONG_PRODUCTS,
    Answers,
    Ranks,
    edited,
    everywhere,
    scale,
    variant,
)
from kerneltui.evaluation.inputs import MutantCall, Tensors
from kerneltui.model.workload import Shape

__all__ = ["HONEST", "MUTANTS", "edited", "library", "oracle", "scale", "variant"]


def oracle(inputs: Tensors, shape: Shape) -> dict[str, Tensor]:
    """C = A B in float64."""
    return {"C": inputs["A"].double() @ inputs["B"].double()}


def library(inputs: Tensors, shape: Shape) -> dict[str, Tensor]:
    """C = A B by the vendor GEMM."""
    return {"C": inputs["A"] @ inputs["B"]}


# --- Answers that must be refused: those of any product, and those of ranks that do not communicate --


def _no_communication(call: MutantCall) -> Ranks:
    found: Ranks = []
    for owned in call.owned:
        c = torch.zeros_like(call.outputs["C"])
        c[owned] = call.outputs["C"][owned]
        found.append({"C": c})
    return found


def _stale_rank(call: MutantCall) -> Ranks:
    c = call.outputs["C"].clone()
    c[call.owned[-1]] = call.previous["C"][call.owned[-1]]
    return [*everywhere(call, c)[:-1], {"C": call.outputs["C"]}]


def _peer_order(call: MutantCall) -> Ranks:
    c = torch.cat([call.outputs["C"][owned] for owned in reversed(call.owned)])
    return everywhere(call, c)


def _one_rank_right(call: MutantCall) -> Ranks:
    zeros = torch.zeros_like(call.outputs["C"])
    return [{"C": call.outputs["C"]}, *({"C": zeros} for _ in call.owned[1:])]


MUTANTS: Answers = {
    **WRONG_PRODUCTS,
    "no communication": _no_communication,
    "one rank stale by a call": _stale_rank,
    "peers in the wrong order": _peer_order,
    "only the first rank right": _one_rank_right,
}

HONEST: Answers = HONEST_PRODUCTS
