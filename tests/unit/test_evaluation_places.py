"""Where the harness of GPUs finds the tensors of a rank: what it masks, and what it sums up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from evaluation_fakes import shape, workload

from kerneltui.evaluation.worker_cuda_machine import CudaMachine
from kerneltui.evaluation.worker_memory import RankMemory
from kerneltui.model.workload import Role
from kerneltui.targets.windows import GroupLayout, TensorLayout, TensorSpec

BASE = 1 << 40
SETS = 3


def places(*, symmetric_inputs: bool) -> tuple[list[int], list[int], list[TensorLayout]]:
    """Addresses of inputs and outputs of rank 1, and its tensors, set by set."""
    specs = [TensorSpec.of(tensor, shape()) for tensor in workload().tensors]
    layout = GroupLayout.plan(specs, shape().dimensions, ranks=2, sets=SETS)
    tensors = [tensor for row in layout.ranks[1].sets for tensor in row]
    if symmetric_inputs:
        for tensor in tensors:
            object.__setattr__(tensor, "symmetric", True)
    memory = SimpleNamespace(layout=layout, address=lambda tensor: BASE + tensor.offset)
    machine = CudaMachine.__new__(CudaMachine)
    cast(Any, machine)._rank = 1
    inputs, outputs = machine._places(cast(RankMemory, memory))
    return [place.bytes for place in inputs], [place.bytes for place in outputs], tensors


def test_inputs_of_a_rank_are_told_from_its_outputs_set_by_set() -> None:
    inputs, outputs, tensors = places(symmetric_inputs=False)
    wanted = [BASE + t.offset for t in tensors if t.role is Role.INPUT]
    assert inputs == wanted and len(inputs) == 2 * SETS
    assert outputs == [BASE + t.offset for t in tensors if t.role is not Role.INPUT]
    assert len(outputs) == SETS


def test_what_a_peer_may_read_is_left_alone() -> None:
    inputs, outputs, _ = places(symmetric_inputs=True)
    assert not inputs and len(outputs) == SETS
