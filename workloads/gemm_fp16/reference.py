"""GEMM in fp16: the oracle, fresh inputs with a known answer, and answers that must be refused.

Runs in the judge alone. The interface is described in `kerneltui.evaluation.inputs`.
"""

from __future__ import annotations

from torch import Tensor

from kerneltui.evaluation.gemm_reference import (
    HONEST_PRODUCTS,
    WRONG_PRODUCTS,
    Answers,
    edited,
    scale,
    variant,
)
from kerneltui.evaluation.inputs import Tensors
from kerneltui.model.workload import Shape

__all__ = ["HONEST", "MUTANTS", "edited", "library", "oracle", "scale", "variant"]


def oracle(inputs: Tensors, shape: Shape) -> dict[str, Tensor]:
    """C = A B in float64."""
    return {"C": inputs["A"].double() @ inputs["B"].double()}


def library(inputs: Tensors, shape: Shape) -> dict[str, Tensor]:
    """C = A B by the vendor GEMM."""
    return {"C": inputs["A"] @ inputs["B"]}


MUTANTS: Answers = WRONG_PRODUCTS

HONEST: Answers = HONEST_PRODUCTS
