"""Trusted implementations on GPUs that kernels are measured against, by name. They run in a rank."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kerneltui.evaluation.cuda_tensors import device_bytes
from kerneltui.evaluation.inputs import torch_dtype
from kerneltui.evaluation.worker_baseline import BaselineCall, PreparedBaseline
from kerneltui.evaluation.worker_cuda_blas import cublas_nn, cublas_tn, torch_matmul
from kerneltui.evaluation.worker_cuda_lt import (
    cublaslt_autotuned,
    cublaslt_autotuned_tn,
    cublaslt_heuristic,
    cublaslt_heuristic_tn,
)
from kerneltui.evaluation.worker_kernel import CHarness
from kerneltui.evaluation.worker_memory import RankMemory
from kerneltui.targets.windows import TensorLayout

__all__ = ["CUDA_BASELINES", "CudaBaseline", "CudaProblem", "torch_nccl"]


@dataclass(frozen=True, slots=True)
class CudaProblem:
    """What a baseline is set up with.

    Attributes:
        memory: The buffers of this rank.
        rank: Of this process.
        ranks: How many there are.
        stream: Where everything is enqueued.
        all_gather: The host collective of kernels.
        collectives: Its first argument.
        harness: The built harness.
        vendor: cuBLAS as kernels have it: ht_vendor of the harness.
    """

    memory: RankMemory
    rank: int
    ranks: int
    stream: torch.cuda.Stream
    all_gather: Callable[..., int]
    collectives: int
    harness: CHarness
    vendor: ctypes.Structure

    @property
    def sets(self) -> int:
        """Number of buffer sets."""
        return self.memory.layout.sets

    def tensor(self, set_index: int, name: str) -> torch.Tensor:
        """A tensor of this rank, on the shared memory itself.

        Raises:
            KeyError: If the workload has none of that name.
        """
        place = self.place(self.rank, name, set_index)
        flat = device_bytes(self.memory.address(place), place.nbytes, self.stream.device)
        return flat.view(torch_dtype(place.dtype)).view(place.local_shape)

    def place(self, rank: int, name: str, set_index: int = 0) -> TensorLayout:
        """Where a tensor of any rank lies."""
        return self.memory.layout.ranks[rank].tensor(set_index, name)


def torch_nccl(problem: CudaProblem) -> BaselineCall:
    """GEMM+AllGather as the vendors have it: torch.matmul into the own rows, then NCCL, in place."""
    # As for kernels: parts of a sum are not added in the short type of the output.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    rank, ranks = problem.rank, problem.ranks
    places = [problem.place(peer, "A") for peer in range(ranks)]
    output = problem.place(rank, "C")
    row = output.nbytes // output.local_shape[0]
    counts = (ctypes.c_uint64 * ranks)(*(place.local_shape[0] * row for place in places))
    first, rows = places[rank].origin[0], places[rank].local_shape[0]
    operands: list[tuple[Any, ...]] = []
    for index in range(problem.sets):
        whole = problem.tensor(index, "C")
        own = whole[first : first + rows]
        operands.append(
            (problem.tensor(index, "A"), problem.tensor(index, "B"), own, own.data_ptr(),
             whole.data_ptr())
        )  # fmt: skip
    stream = int(problem.stream.cuda_stream)
    # An empty shard has no address of its own.
    start = [base + first * row for *_, base in operands]

    def call(set_index: int) -> None:
        a, b, own, _, whole = operands[set_index]
        with torch.cuda.stream(problem.stream):
            if rows:
                torch.matmul(a, b, out=own)
        code = problem.all_gather(problem.collectives, start[set_index], whole, counts, stream)
        if code:
            raise RuntimeError(f"NCCL failed with {code}")

    return call


@dataclass(frozen=True, slots=True)
class CudaBaseline:
    """A baseline: what sets it up, and whether it needs host collectives."""

    setup: Callable[[CudaProblem], BaselineCall | PreparedBaseline]
    collectives: bool = False


CUDA_BASELINES: Mapping[str, CudaBaseline] = {
    "torch_nccl": CudaBaseline(torch_nccl, collectives=True),
    "torch_matmul": CudaBaseline(torch_matmul),
    "cublas_nn": CudaBaseline(cublas_nn),
    "cublas_tn": CudaBaseline(cublas_tn),
    "cublaslt_heuristic": CudaBaseline(cublaslt_heuristic),
    "cublaslt_heuristic_tn": CudaBaseline(cublaslt_heuristic_tn),
    "cublaslt_autotuned": CudaBaseline(cublaslt_autotuned),
    "cublaslt_autotuned_tn": CudaBaseline(cublaslt_autotuned_tn),
}
"""Baselines of GPUs, by name. Those of a product on one GPU need tensors A, B and C."""
