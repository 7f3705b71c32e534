"""A group of ranks as the judge knows it: what stands in its buffer sets, and what became of that.

Judge only (torch).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kerneltui.evaluation.inputs import Variant
from kerneltui.evaluation.judge_memory import JudgeMemory
from kerneltui.evaluation.oracle import Base
from kerneltui.evaluation.values import Fault, FaultKind
from kerneltui.model.workload import Role, Shape
from kerneltui.targets.patterns import Poison

__all__ = [
    "Filled",
    "JudgedGroup",
    "changed_inputs",
    "find_broken_guards",
    "poison_outputs",
    "write_rank",
]


@dataclass
class Filled:
    """What stands in one buffer set: base inputs, and how they were changed."""

    base: Base
    variant: Variant


@dataclass
class JudgedGroup:
    """The memory of a group of ranks at one shape."""

    shape: Shape
    memory: JudgeMemory
    guard_key: int
    secret: bytes
    filled: dict[int, Filled] = field(default_factory=dict[int, Filled])
    fills: int = 0

    def next_seed(self) -> int:
        """A seed of its own for every fill, all following from one secret."""
        self.fills += 1
        digest = hashlib.blake2b(self.fills.to_bytes(8, "little"), key=self.secret).digest()
        return int.from_bytes(digest[:7], "little")


def write_rank(group: JudgedGroup, index: int, rank: int) -> None:
    """Writes the inputs of one rank into a buffer set."""
    filled = group.filled[index]
    for tensor in group.memory.layout.ranks[rank].sets[index]:
        if tensor.role is Role.OUTPUT or not tensor.nbytes:
            continue
        out = group.memory.tensor(rank, tensor)
        base = filled.base.inputs[tensor.name]
        # Made where the base lies: the memory of another rank may lie on another device.
        made = out if out.device == base.device else torch.empty_like(out, device=base.device)
        filled.variant.write(tensor.name, base, tensor.origin[0], made)
        if made is not out:
            out.copy_(made)


def poison_outputs(group: JudgedGroup, index: int, pattern: Poison) -> None:
    """Overwrites the outputs of all ranks in a buffer set."""
    for rank, layout in enumerate(group.memory.layout.ranks):
        for tensor in layout.sets[index]:
            if tensor.role is Role.OUTPUT and tensor.nbytes:
                group.memory.poison(rank, tensor, pattern, index + 8 * rank)


def changed_inputs(group: JudgedGroup, index: int) -> list[Fault]:
    """Inputs of a buffer set that are not what was written."""
    filled = group.filled[index]
    right: dict[tuple[str, int, int], Tensor] = {}
    faults: list[Fault] = []
    for rank, layout in enumerate(group.memory.layout.ranks):
        for tensor in layout.sets[index]:
            if tensor.role is not Role.INPUT or not tensor.nbytes:
                continue
            base = filled.base.inputs[tensor.name]
            found = group.memory.tensor(rank, tensor).to(base.device)
            key = (tensor.name, tensor.origin[0], tensor.local_shape[0])
            if key not in right:
                right[key] = torch.empty_like(found)
                filled.variant.write(tensor.name, base, tensor.origin[0], right[key])
            if not torch.equal(found.view(torch.uint8), right[key].view(torch.uint8)):
                text = f"input {tensor.name} of rank {rank} was changed by the kernel"
                faults.append(Fault(FaultKind.INPUT_CHANGED, rank, index, text))
    return faults


def find_broken_guards(group: JudgedGroup) -> list[Fault]:
    """Guard bands that were written to."""
    faults: list[Fault] = []
    for name, rank, span in group.memory.broken_guards(group.guard_key):
        text = (
            f"{span.nbytes} bytes outside the tensors were overwritten in the {name} memory "
            f"of rank {rank}, from byte {span.offset}: an access out of bounds"
        )
        faults.append(Fault(FaultKind.GUARD_BROKEN, rank, -1, text))
    return faults
