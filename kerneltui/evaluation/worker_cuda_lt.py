"""Baselines of a product on one GPU: cuBLASLt by its heuristic, and tuned over what it can do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kerneltui.evaluation.worker_baseline import PreparedBaseline
from kerneltui.evaluation.worker_cuda_lt_product import (
    MOST_ALGORITHMS,
    WORKSPACES,
    Algorithm,
    LtProduct,
    load_bindings,
)
from kerneltui.evaluation.worker_cuda_product import proved_sums

if TYPE_CHECKING:
    from kerneltui.evaluation.worker_cuda_baselines import CudaProblem

__all__ = [
    "cublaslt_autotuned",
    "cublaslt_autotuned_tn",
    "cublaslt_heuristic",
    "cublaslt_heuristic_tn",
]

_KEPT_CHOICES = 10
_RECOMMENDED_WORKSPACE = 32 << 20
_MORE_S = 1.0
"""For the trial of algorithms that the heuristic does not offer."""


def cublaslt_heuristic(problem: CudaProblem) -> PreparedBaseline:
    """The first that cuBLASLt's heuristic offers with the recommended workspace."""
    return _heuristic(problem, transposed=False)


def cublaslt_heuristic_tn(problem: CudaProblem) -> PreparedBaseline:
    """The same with B K-major."""
    return _heuristic(problem, transposed=True)


def cublaslt_autotuned(problem: CudaProblem) -> PreparedBaseline:
    """The fastest of all that the heuristic offers with several workspaces.

    A trial orders them; the first ten are the choices that the engine times as it times kernels.
    """
    return _autotuned(problem, transposed=False)


def cublaslt_autotuned_tn(problem: CudaProblem) -> PreparedBaseline:
    """The same with B K-major."""
    return _autotuned(problem, transposed=True)


@contextmanager
def _refusing() -> Iterator[None]:
    """Turns an error of the library into a refusal."""
    errors = load_bindings().cuBLASLtError
    try:
        yield
    except errors as error:
        raise ValueError(f"cuBLASLt: {error}") from error


def _heuristic(problem: CudaProblem, *, transposed: bool) -> PreparedBaseline:
    with _refusing():
        return _first_offer(LtProduct(problem, transposed))


def _first_offer(asked: LtProduct) -> PreparedBaseline:
    chosen = next(iter(asked.offers(_RECOMMENDED_WORKSPACE)), None)
    if chosen is None:
        asked.close()
        raise ValueError("cuBLASLt offers nothing that keeps sums in float32")
    asked.use(chosen)
    sums = proved_sums(asked.product, asked.call)
    return asked.prepared([chosen], {"sums": sums})


def _autotuned(problem: CudaProblem, *, transposed: bool) -> PreparedBaseline:
    with _refusing():
        return _tuned(LtProduct(problem, transposed))


def _tuned(asked: LtProduct) -> PreparedBaseline:
    found: dict[tuple[int, ...], Algorithm] = {}
    for limit in WORKSPACES:
        for offer in asked.offers(limit):
            if len(found) < MOST_ALGORITHMS:
                found.setdefault(offer.words, offer)
    tried = asked.trial(list(found.values()))
    offered = len(found)
    for variant in asked.variants(tried, MOST_ALGORITHMS - offered):
        found.setdefault(variant.words, variant)
    tried += asked.trial(list(found.values())[offered:], _MORE_S)
    proved: list[Algorithm] = []
    sums: list[str] = []
    refused: list[str] = []
    for algorithm in sorted(tried, key=lambda one: one.trial_ns):
        if len(proved) == _KEPT_CHOICES:
            break
        asked.use(algorithm)
        try:
            sums.append(proved_sums(asked.product, asked.call))
        except ValueError as error:
            refused.append(f"algorithm {algorithm.settings['id']}: {error}")
            continue
        proved.append(algorithm)
    if not proved:
        asked.close()
        raise ValueError("; ".join(refused) or "cuBLASLt offers nothing that keeps sums in float32")
    asked.use(proved[0])
    note: dict[str, Any] = {
        "offered": offered,
        "varied": len(found) - offered,
        "tried": len(tried),
        "workspace_limits_bytes": list(WORKSPACES),
        "sums": sums[0],
    }
    if refused:
        note["refused"] = refused
    return asked.prepared(proved, note, choose=True)
