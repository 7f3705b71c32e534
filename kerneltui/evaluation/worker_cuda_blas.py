"""Baselines of a product on one GPU: torch.matmul, and cuBLAS with B as it is and K-major."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING

import torch

from kerneltui.evaluation.worker_baseline import PreparedBaseline
from kerneltui.evaluation.worker_cuda_product import Product, proved_sums

if TYPE_CHECKING:
    from kerneltui.evaluation.worker_cuda_baselines import CudaProblem

__all__ = ["TRANSPOSED_NOTE", "cublas_nn", "cublas_tn", "torch_matmul"]

TRANSPOSED_NOTE = "B is K-major: a copy made outside of the timing"


def torch_matmul(problem: CudaProblem) -> PreparedBaseline:
    """torch.matmul(A, B, out=C), called through Python as its users do."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.cuda.set_stream(problem.stream)
    product = Product(problem)
    operands = product.sets

    def call(set_index: int) -> None:
        a, b, c = operands[set_index]
        torch.matmul(a, b, out=c)

    note = {"what": f"torch {torch.__version__}", "sums": proved_sums(product, call)}
    return PreparedBaseline(call=call, note=note)


def cublas_nn(problem: CudaProblem) -> PreparedBaseline:
    """cublasGemmEx, both operands as the workload has them."""
    return _cublas(problem, transposed=False)


def cublas_tn(problem: CudaProblem) -> PreparedBaseline:
    """CublasGemmEx with B K-major."""
    return _cublas(problem, transposed=True)


def _cublas(problem: CudaProblem, *, transposed: bool) -> PreparedBaseline:
    product = Product(problem, transposed=transposed)
    note = {
        "what": f"cublasGemmEx of {_version()}, CUBLAS_COMPUTE_32F, no reduction in a short type",
        "workspace_bytes": 32 << 20,
        "sums": proved_sums(product, product.caller("ht_run_product")),
    }
    if transposed:
        note["favoured"] = TRANSPOSED_NOTE
    return PreparedBaseline(
        native=product.native("ht_run_product"),
        filled=product.filled if transposed else None,
        note=note,
        kept=product,
    )


@cache
def _version() -> str:
    """The version of cuBLAS, in parts."""
    library = ctypes.CDLL(f"libcublas.so.{str(torch.version.cuda).partition('.')[0]}")
    parts: list[str] = []
    for which in range(3):  # major, minor, patch
        value = ctypes.c_int()
        library.cublasGetProperty(which, ctypes.byref(value))
        parts.append(str(value.value))
    return f"cuBLAS {'.'.join(parts)}"
