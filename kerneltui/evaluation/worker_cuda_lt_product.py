"""A product as cuBLASLt is asked for it: what its heuristic offers, variants of that, and a rough trial.

The library is spoken to through the bindings of nvmath-python; calls go to the same library straight
from the harness.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import metadata
from math import ceil
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kerneltui.evaluation.worker_baseline import PreparedBaseline
from kerneltui.evaluation.worker_cuda_blas import TRANSPOSED_NOTE
from kerneltui.evaluation.worker_cuda_held import HeldStream
from kerneltui.evaluation.worker_cuda_product import Product
from kerneltui.evaluation.worker_kernel import address_of

if TYPE_CHECKING:
    from kerneltui.evaluation.worker_cuda_baselines import CudaProblem

__all__ = ["MOST_ALGORITHMS", "WORKSPACES", "Algorithm", "LtProduct", "load_bindings"]

MOST_ALGORITHMS = 100
WORKSPACES = (0, 4 << 20, 32 << 20, 256 << 20)
"""Sizes of the workspace that are tried, in bytes."""

_COMPUTE_32F, _R_32F = 68, 0  # cublasComputeType_t, cudaDataType_t
_TYPES = {torch.float16: 2, torch.bfloat16: 14}  # cudaDataType_t
_IN_COMPUTE_TYPE = 2  # of the schemes by which parts of a sum are added
_SCHEMES = (0, _IN_COMPUTE_TYPE)  # none, or in float32 outside of the output
_TRANSPOSE = 1
_VARIED = 6
_PARTS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
_TRIAL_S = 0.4e-3
_MOST_TRIAL_SETS = 8
_MOST_TRIAL_CALLS = 20


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One that cuBLASLt offers for the product.

    Attributes:
        words: cublasLtMatmulAlgo_t.
        workspace_bytes: What it needs.
        limit_bytes: The least workspace with which it was offered.
        place: At which place the heuristic offered it there; -1 if it is a variant of an offer.
        settings: What it is made of.
        trial_ns: Its time in the trial, 0 before; infinite if the host did not get ahead of it, so that
            nothing is known.
    """

    words: tuple[int, ...]
    workspace_bytes: int
    limit_bytes: int
    place: int
    settings: dict[str, int]
    trial_ns: float = 0.0

    def note(self) -> dict[str, Any]:
        """For the record."""
        return {
            **self.settings,
            "workspace_bytes": self.workspace_bytes,
            "workspace_limit_bytes": self.limit_bytes,
            "place": self.place,
            "trial_us": round(self.trial_ns / 1e3, 3) if math.isfinite(self.trial_ns) else None,
        }


@dataclass(frozen=True, slots=True)
class _Library:
    """The library of this process, with the largest workspace that anybody asks for."""

    handle: int
    matmul: int
    workspace: torch.Tensor
    version: int


class LtProduct:
    """A product as cuBLASLt is asked for it.

    Raises:
        ValueError: If nvmath-python is missing, or the product does not fit.
    """

    def __init__(self, problem: CudaProblem, transposed: bool) -> None:
        self._lt = load_bindings()
        self.product = Product(problem, transposed=transposed)
        self.call = self.product.caller("ht_run_lt_product")
        self._library = _library()
        m, n, k = self.product.m, self.product.n, self.product.k
        kind = _TYPES[self.product.dtype]
        # Column-major: the transposed output is the product of the operands in the other order.
        self._description = self._lt.matmul_desc_create(_COMPUTE_32F, _R_32F)
        if transposed:
            self._set(
                self._lt.matmul_desc_set_attribute, self._description,
                self._lt.MatmulDescAttribute.TRANSA, np.int32(_TRANSPOSE),
            )  # fmt: skip
        first = (k, n, k) if transposed else (n, k, n)
        self._layouts = [
            self._lt.matrix_layout_create(kind, *size) for size in (first, (k, m, k), (n, m, n))
        ]
        state = self.product.state
        state.matmul, state.handle = self._library.matmul, self._library.handle
        state.description = self._description
        state.b_layout, state.a_layout, state.c_layout = self._layouts
        state.workspace = self._library.workspace.data_ptr()

    def offers(self, limit_bytes: int) -> Iterator[Algorithm]:
        """What the heuristic offers with a workspace, best first; only sums in float32."""
        lt, attributes = self._lt, self._lt.MatmulPreferenceAttribute
        wish = lt.matmul_preference_create()
        put = lt.matmul_preference_set_attribute
        self._set(put, wish, attributes.MAX_WORKSPACE_BYTES, np.uint64(limit_bytes))
        self._set(put, wish, attributes.REDUCTION_SCHEME_MASK, np.uint32(_IN_COMPUTE_TYPE))
        for name in "ABCD":
            which = getattr(attributes, f"MIN_ALIGNMENT_{name}_BYTES")
            self._set(put, wish, which, np.uint32(self.product.alignment))
        results = np.zeros(MOST_ALGORITHMS, dtype=lt.matmul_heuristic_result_dtype)
        count = np.zeros(1, dtype=np.int32)
        first, second, output = self._layouts
        try:
            lt.matmul_algo_get_heuristic(
                self._library.handle, self._description, first, second, output, output, wish,
                MOST_ALGORITHMS, results.ctypes.data, count.ctypes.data,
            )  # fmt: skip
        except lt.cuBLASLtError:
            return  # nothing fits, as without any workspace
        finally:
            lt.matmul_preference_destroy(wish)
        for place in range(int(count[0])):
            result = results[place]
            words = np.array(result["algo"]["data_"], dtype=np.uint64)
            settings = self._settings(words)
            needed = int(result["workspace_size"])
            if int(result["state"]) or needed > limit_bytes:
                continue
            if settings["reduction_scheme"] not in _SCHEMES:
                continue
            yield Algorithm(
                tuple(int(word) for word in words), needed, limit_bytes, place, settings
            )

    def use(self, algorithm: Algorithm) -> None:
        """Makes the next calls use an algorithm."""
        self.product.state.algorithm[:] = algorithm.words
        self.product.state.workspace_bytes = algorithm.workspace_bytes

    def variants(self, tried: Sequence[Algorithm], most: int) -> list[Algorithm]:
        """Algorithms that the heuristic does not offer: the fastest of its own with one setting changed.

        Settings are those of the other offers, and other numbers of parts of the sum. Only what the
        library says that it can do is returned.

        Args:
            tried: With their times.
            most: How many at most.
        """
        known = {algorithm.words for algorithm in tried}
        found: list[Algorithm] = []
        for base in sorted(tried, key=lambda one: one.trial_ns)[:_VARIED]:
            for changes in _changes(base, tried):
                if len(found) >= most:
                    return found
                variant = self._changed(base, changes)
                if variant is not None and variant.words not in known:
                    known.add(variant.words)
                    found.append(variant)
        return found

    def _changed(self, base: Algorithm, changes: Mapping[str, int]) -> Algorithm | None:
        """An algorithm with some settings changed, or None if the library cannot do it."""
        lt, attributes = self._lt, self._lt.MatmulAlgoConfigAttribute
        words = np.array(base.words, dtype=np.uint64)
        result = np.zeros(1, dtype=lt.matmul_heuristic_result_dtype)
        first, second, output = self._layouts
        try:
            for name, value in changes.items():
                which = getattr(attributes, name.upper())
                held = np.array([value], dtype=lt.get_matmul_algo_config_attribute_dtype(which))
                lt.matmul_algo_config_set_attribute(
                    words.ctypes.data, which, held.ctypes.data, held.nbytes
                )
            lt.matmul_algo_check(
                self._library.handle, self._description, first, second, output, output,
                words.ctypes.data, result.ctypes.data,
            )  # fmt: skip
        except lt.cuBLASLtError:
            return None
        needed = int(result[0]["workspace_size"])
        settings = self._settings(words)
        if int(result[0]["state"]) or needed > max(WORKSPACES):
            return None
        if settings["reduction_scheme"] not in _SCHEMES:
            return None
        limit = next(size for size in WORKSPACES if size >= needed)
        return Algorithm(tuple(int(word) for word in words), needed, limit, -1, settings)

    def trial(self, algorithms: Sequence[Algorithm], seconds: float = math.inf) -> list[Algorithm]:
        """Times them roughly, on several buffer sets; those that fail are left out.

        Args:
            algorithms: In this order.
            seconds: No further one is begun after so long.
        """
        until = time.monotonic() + seconds
        sets = list(range(min(len(self.product.sets), _MOST_TRIAL_SETS)))
        self.product.draw(sets)
        held = HeldStream(self.product.problem.stream)
        tried: list[Algorithm] = []
        for algorithm in algorithms:
            if time.monotonic() > until:
                break
            self.use(algorithm)
            try:
                time_ns = _rough_ns(partial(held.time_ns, self.call, sets))
            except RuntimeError:
                continue
            tried.append(replace(algorithm, trial_ns=time_ns))
        return tried

    def prepared(
        self, choices: Sequence[Algorithm], note: dict[str, Any], *, choose: bool = False
    ) -> PreparedBaseline:
        """The baseline with its choices."""
        transposed = self.product.transposed
        told = {
            "what": f"cuBLASLt {self._library.version}, CUBLAS_COMPUTE_32F, "
            f"by nvmath-python {metadata.version('nvmath-python')}",
            **note,
            "choices": [algorithm.note() for algorithm in choices],
        }
        if transposed:
            told["favoured"] = TRANSPOSED_NOTE
        return PreparedBaseline(
            native=self.product.native("ht_run_lt_product"),
            filled=self.product.filled if transposed else None,
            choose=(lambda index: self.use(choices[index])) if choose else None,
            choices=len(choices) if choose else 0,
            note=told,
            end=self.close,
            kept=self,
        )

    def close(self) -> None:
        """Gives the descriptions back."""
        for layout in self._layouts:
            self._lt.matrix_layout_destroy(layout)
        self._lt.matmul_desc_destroy(self._description)
        self._layouts = []

    def _settings(self, words: Any) -> dict[str, int]:
        attributes = self._lt.MatmulAlgoConfigAttribute
        found: dict[str, int] = {}
        for name in ("ID", "TILE_ID", "STAGES_ID", "SPLITK_NUM", "REDUCTION_SCHEME",
                     "CTA_SWIZZLING", "CUSTOM_OPTION", "INNER_SHAPE_ID", "CLUSTER_SHAPE_ID"):  # fmt: skip
            which = getattr(attributes, name)
            value = np.zeros(1, dtype=self._lt.get_matmul_algo_config_attribute_dtype(which))
            written = np.zeros(1, dtype=np.uint64)
            self._lt.matmul_algo_config_get_attribute(
                words.ctypes.data, which, value.ctypes.data, value.nbytes, written.ctypes.data
            )
            found[name.lower()] = int(value[0])
        return found

    def _set(self, put: Any, what: int, attribute: int, value: Any) -> None:
        held = np.array([value])
        put(what, int(attribute), held.ctypes.data, held.nbytes)


def _rough_ns(time_ns: Callable[[int], float | None]) -> float:
    """The time of a call, from a few trials of as many calls as are worth a clock; infinite if none is.

    Args:
        time_ns: Of a call when so many are enqueued, or None.
    """
    once = time_ns(1)
    if once is None:
        return math.inf
    calls = max(1, min(_MOST_TRIAL_CALLS, ceil(_TRIAL_S * 1e9 / once)))
    times = [time_ns(calls) for _ in range(3 if once < 2e6 else 1)]
    known = [value for value in times if value is not None]
    return median(known) if known else math.inf


def _changes(base: Algorithm, others: Sequence[Algorithm]) -> Iterator[dict[str, int]]:
    """Settings to change in an algorithm: one at a time, but parts of a sum need a way to add them."""
    for parts in _PARTS:
        if parts != base.settings["splitk_num"]:
            yield {"splitk_num": parts, "reduction_scheme": _IN_COMPUTE_TYPE if parts > 1 else 0}
    for name in ("cta_swizzling", "cluster_shape_id", "tile_id", "stages_id"):
        seen = {other.settings[name] for other in others} | (
            {0, 1} if name[0:3] == "cta" else set()
        )
        for value in sorted(seen - {base.settings[name]}):
            yield {name: value}


@cache
def load_bindings() -> Any:
    """The bindings of nvmath-python. Loading them takes a second, and makes no context.

    Raises:
        ValueError: If they are not there, or cannot be loaded.
    """
    try:
        from nvmath.bindings import cublasLt  # pyright: ignore[reportMissingImports]
    except (ImportError, OSError, RuntimeError) as error:
        raise ValueError(
            f"not available ({error}); pip install 'nvmath-python[cu13]', or [cu12]"
        ) from error
    return cublasLt


@cache
def _library() -> _Library:
    lt = load_bindings()
    major = str(torch.version.cuda).partition(".")[0]
    name = f"libcublasLt.so.{major}"
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise ValueError(f"not available: {error}") from error
    version = int(library.cublasLtGetVersion())
    if int(lt.get_version()) != version:
        raise ValueError(
            f"nvmath-python has loaded cuBLASLt {lt.get_version()}, torch {version}; "
            "they must share one"
        )
    workspace = torch.empty(max(WORKSPACES), dtype=torch.uint8, device="cuda")
    return _Library(int(lt.create()), address_of(library.cublasLtMatmul), workspace, version)
