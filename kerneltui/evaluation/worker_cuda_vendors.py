"""The main of a rank process on a GPU whose fork server has the bindings of vendor libraries loaded.

For workloads with baselines that need them: loading takes a second, once instead of in every rank, and
happens before a rank is confined. Nothing here makes a CUDA context or starts a thread.
"""

from __future__ import annotations

from contextlib import suppress

from kerneltui.evaluation.worker_cuda import main
from kerneltui.evaluation.worker_cuda_lt_product import load_bindings

__all__ = ["main"]

with suppress(ValueError):  # the baseline says it again, to whom it concerns
    load_bindings()
