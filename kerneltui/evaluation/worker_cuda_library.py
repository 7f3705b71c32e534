"""cuBLAS as a rank has it: the functions that the harness calls."""

from __future__ import annotations

import ctypes
import os

import torch

from kerneltui.evaluation.worker_cuda_abi import CudaVendorSelf
from kerneltui.evaluation.worker_kernel import KernelError, address_of

__all__ = ["cublas_functions"]


def cublas_functions() -> CudaVendorSelf:
    """Loads cuBLAS of the CUDA that torch was built for.

    Raises:
        KernelError: It is not there.
    """
    major = str(torch.version.cuda).partition(".")[0]
    try:
        library = ctypes.CDLL(f"libcublas.so.{major}", mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise KernelError(f"no cuBLAS: {error}") from error
    return CudaVendorSelf(
        create=address_of(library.cublasCreate_v2),
        set_stream=address_of(library.cublasSetStream_v2),
        set_workspace=address_of(library.cublasSetWorkspace_v2),
        set_math_mode=address_of(library.cublasSetMathMode),
        gemm=address_of(library.cublasGemmEx),
    )
