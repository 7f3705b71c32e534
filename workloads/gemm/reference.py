"""GEMM: the oracle, fresh inputs with a known answer, and answers that must be refused.

Runs in the judge alone. The interface is described in `kerneltui.evaluation.inputs`.
"""

from __future__ import annotations

from kerneltui.evaluation.gemm_reference import (
    HONEST_PRODUCTS,
    WRONG_PRODUCTS,
    Answers,
    edited,
    library,
    oracle,
    scale,
    variant,
)

__all__ = ["HONEST", "MUTANTS", "edited", "library", "oracle", "scale", "variant"]


MUTANTS: Answers = WRONG_PRODUCTS

HONEST: Answers = HONEST_PRODUCTS
