"""Trusted implementations that kernels are measured against, by name. They run in a rank process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kerneltui.evaluation.worker_baseline import BaselineCall
from kerneltui.evaluation.worker_host import HostCollectives, bytes_at
from kerneltui.evaluation.worker_memory import RankMemory
from kerneltui.targets.windows import DType, TensorLayout

__all__ = ["BASELINES", "BaselineProblem", "torch_gloo"]

_TORCH_DTYPES = {
    DType.FLOAT32: torch.float32,
    DType.FLOAT64: torch.float64,
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
    DType.INT32: torch.int32,
    DType.INT64: torch.int64,
}


@dataclass(frozen=True, slots=True)
class BaselineProblem:
    """What a baseline is set up with.

    Attributes:
        memory: The buffers of this rank.
        host: Collectives.
    """

    memory: RankMemory
    host: HostCollectives

    @property
    def sets(self) -> int:
        """Number of buffer sets."""
        return self.memory.layout.sets

    def tensor(self, set_index: int, name: str) -> torch.Tensor:
        """A tensor of this rank, on the shared memory itself.

        Raises:
            KeyError: If the workload has none of that name.
        """
        place = self.place(self.host.rank, name, set_index)
        flat = bytes_at(self.memory.address(place), place.nbytes)
        return flat.view(_TORCH_DTYPES[place.dtype]).view(place.local_shape)

    def place(self, rank: int, name: str, set_index: int = 0) -> TensorLayout:
        """Where a tensor of any rank lies."""
        return self.memory.layout.ranks[rank].tensor(set_index, name)


def torch_gloo(problem: BaselineProblem) -> BaselineCall:
    """GEMM+AllGather as the vendor has it: torch.matmul into the shard, then gloo's all-gather.

    A is sharded by rows, B whole, C whole on every rank. All views are made here, so that a call
    spends its time in torch and gloo.
    """
    rank, ranks = problem.host.rank, problem.host.ranks
    rows = [problem.place(peer, "A").local_shape[0] for peer in range(ranks)]
    columns = problem.place(rank, "C").local_shape[1]
    counts = [count * columns for count in rows]
    # The shard has a place of its own: gloo's send and receive buffers may not overlap.
    first = problem.tensor(0, "C")
    shard = torch.empty((rows[rank], columns), dtype=first.dtype)
    flat_shard = shard.view(-1)
    operands = [
        (problem.tensor(s, "A"), problem.tensor(s, "B"), problem.tensor(s, "C").view(-1))
        for s in range(problem.sets)
    ]

    def call(set_index: int) -> None:
        a, b, gathered = operands[set_index]
        torch.matmul(a, b, out=shard)
        problem.host.all_gather(flat_shard, gathered, counts)

    return call


BASELINES: dict[str, Callable[[BaselineProblem], BaselineCall]] = {"torch_gloo": torch_gloo}
"""Name to the function that sets it up."""
