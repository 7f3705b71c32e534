"""Baselines of a product on one GPU: cuBLASLt by its heuristic, and tuned over what it can do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    own: Algorithm | None = None
    for limit in WORKSPACES:
        for place, offer in enumerate(asked.offers(limit)):
            if place == 0 and limit == _RECOMMENDED_WORKSPACE:
                own = found.setdefault(offer.words, offer)
            elif len(found) < MOST_ALGORITHMS:
                found.setdefault(offer.words, offer)
    tried = asked.trial(list(found.values()))
    offered = len(found)
    for variant in asked.variants(tried, MOST_ALGORITHMS - offered):
        found.setdefault(variant.words, variant)
    tried += asked.trial(list(found.values())[offered:], _MORE_S)
    proved, refused = _proved(asked, tried, own)
    if not proved:
        asked.close()
        raise ValueError("; ".join(refused) or "cuBLASLt offers nothing that keeps sums in float32")
    choices = [algorithm for algorithm, _ in proved]
    asked.use(choices[0])
    note: dict[str, Any] = {
        "offered": offered,
        "varied": len(found) - offered,
        "tried": len(tried),
        "untimed": sum(math.isinf(algorithm.trial_ns) for algorithm in tried),
        "workspace_limits_bytes": list(WORKSPACES),
        "sums": proved[0][1],
    }
    if refused:
        note["refused"] = refused
    return asked.prepared(choices, note, choose=True)


def _proved(
    asked: LtProduct, tried: Sequence[Algorithm], own: Algorithm | None
) -> tuple[list[tuple[Algorithm, str]], list[str]]:
    """The fastest of the trial whose sums are proved, and why others are not taken.

    The heuristic's own choice is always among them: a trial is rough, and a tuned baseline that is slower
    than the one that is not tuned would flatter a kernel.
    """
    words = own.words if own is not None else ()
    ranked = sorted(tried, key=lambda one: one.trial_ns)
    kept = ranked[:_KEPT_CHOICES]
    if not any(algorithm.words == words for algorithm in kept):
        chosen = [algorithm for algorithm in ranked if algorithm.words == words]
        ranked = [*chosen, *(algorithm for algorithm in ranked if algorithm.words != words)]
    proved: list[tuple[Algorithm, str]] = []
    refused: list[str] = []
    for algorithm in ranked:
        if len(proved) == _KEPT_CHOICES:
            break
        asked.use(algorithm)
        try:
            proved.append((algorithm, proved_sums(asked.product, asked.call)))
        except ValueError as error:
            refused.append(f"algorithm {algorithm.settings['id']}: {error}")
    return sorted(proved, key=lambda one: one[0].trial_ns), refused
