"""The test of the workload itself: answers that must be refused, and answers that must pass.

Runs in the judge (torch). Every answer is written into real shared memory of a make-believe group and
goes through the same comparison as a candidate's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kerneltui.evaluation.inputs import MutantCall, secret_seed
from kerneltui.evaluation.judge_memory import JudgeMemory
from kerneltui.evaluation.oracle import Reference
from kerneltui.evaluation.values import ValueClass
from kerneltui.model.workload import Role, Shape, Workload
from kerneltui.targets.cpu.memory import GroupMemory
from kerneltui.targets.windows import GroupLayout, TensorSpec, first_row

if TYPE_CHECKING:
    from kerneltui.evaluation.judge import Judge

__all__ = ["run_self_test", "self_test_shapes"]

_GROUP = "self-test"
_MOST_WORK = 1 << 22
"""Largest product of all dimensions that the self-test takes; larger shapes show nothing more."""


def run_self_test(judge: Judge, workload: Workload, reference: Reference) -> list[dict[str, Any]]:
    """Runs lint, honest variants and mutants.

    Returns:
        For each row `name`, `kind` (lint, honest, mutant), `ok`, and `text`: why it was refused, or
        what is wrong with the workload.
    """
    rows: list[dict[str, Any]] = []
    for shape in self_test_shapes(workload):
        rows += _lint(reference, shape)
        for name, make in reference.honest.items():
            for values in ValueClass:
                refused, text = _try(judge, workload, reference, _Case(shape, values, make))
                rows.append(_row(f"{name}, {shape.name}, {values}", "honest", not refused, text))
        for name, make in reference.mutants.items():
            case = _Case(shape, ValueClass.NATURAL, make)
            refused, text = _try(judge, workload, reference, case)
            rows.append(_row(f"{name}, {shape.name}", "mutant", refused, text))
    return rows


@dataclass(frozen=True)
class _Case:
    shape: Shape
    values: ValueClass
    make: Callable[[MutantCall], list[dict[str, Tensor]]]


def _row(name: str, kind: str, ok: bool, text: str) -> dict[str, Any]:
    return {"name": name, "kind": kind, "ok": ok, "text": text}


def self_test_shapes(workload: Workload) -> list[Shape]:
    """The largest shape that is cheap, for every number of ranks; one rank only if there is no other."""
    found: dict[int, Shape] = {}
    alone = all(shape.ranks == 1 for shape in workload.shapes)
    for shape in workload.shapes:
        work = _work(shape)
        wanted = shape.ranks > 1 or alone
        if wanted and work <= _MOST_WORK and min(shape.dimensions.values()) >= 16:
            best = found.get(shape.ranks)
            if best is None or work > _work(best):
                found[shape.ranks] = shape
    return list(found.values()) or [min(workload.shapes, key=_work)]


def _work(shape: Shape) -> int:
    total = 1
    for value in shape.dimensions.values():
        total *= value
    return total


def _lint(reference: Reference, shape: Shape) -> list[dict[str, Any]]:
    """The answer must vary: with the seed, with every input, along every axis."""
    rows: list[dict[str, Any]] = []
    base = reference.base(shape, ValueClass.NATURAL, secret_seed())
    other = reference.base(shape, ValueClass.NATURAL, secret_seed())
    for name, value in base.outputs.items():
        fresh = not torch.equal(value, other.outputs[name])
        rows.append(_row(f"{name} varies with the seed, {shape.name}", "lint", fresh, ""))
        for axis in range(value.dim()):
            if value.shape[axis] > 1:
                spread = float(value.std(dim=axis).min())
                rows.append(
                    _row(
                        f"{name} varies along axis {axis}, {shape.name}",
                        "lint",
                        spread > 0,
                        f"least deviation {spread:g}",
                    )
                )
    for name in base.inputs:
        mixed = {**base.inputs, name: other.inputs[name]}
        changed = reference.outputs(mixed, shape)
        differs = any(not torch.equal(changed[k], base.outputs[k]) for k in changed)
        rows.append(_row(f"the answer depends on {name}, {shape.name}", "lint", differs, ""))
    return rows


def _try(judge: Judge, workload: Workload, reference: Reference, case: _Case) -> tuple[bool, str]:
    """Puts one answer through the judge: whether it was refused, and its first finding."""
    shape = case.shape
    layout = GroupLayout.plan(
        [TensorSpec.of(tensor, shape) for tensor in workload.tensors],
        shape.dimensions,
        ranks=shape.ranks,
        sets=1,
        granularity=judge.granularity,
    )
    request = {"group": _GROUP, "shape": shape.name, "layout": layout.to_json()}
    if judge.makes_memory:
        judge.do_allocate(request)
    else:
        with GroupMemory.create(layout) as own:
            judge.do_attach(request, [os.dup(fd) for fd in own.descriptors])
    try:
        fill = {"group": _GROUP, "sets": [0], "values": case.values, "poison": "nan"}
        judge.do_fill(fill)
        _, previous = reference.rounded(*judge.filled(_GROUP, 0))
        judge.do_fill(fill)
        inputs, outputs = reference.rounded(*judge.filled(_GROUP, 0))
        sharded = [t for t in workload.tensors if t.shard is not None]
        rows = sharded[0].extent(shape)[sharded[0].shard or 0] if sharded else 0
        owned = [
            slice(first_row(rows, r, shape.ranks), first_row(rows, r + 1, shape.ranks))
            for r in range(shape.ranks)
        ]
        answers = case.make(MutantCall(shape, inputs, outputs, previous, owned))
        _write(judge.group_memory(_GROUP), answers)
        found = judge.do_check({"group": _GROUP, "sets": [0]})
    finally:
        judge.do_detach({"group": _GROUP})
    if found["faults"]:
        return True, str(found["faults"][0]["text"])
    return False, f"error {found['error']:.2f} of the allowed"


def _write(memory: JudgeMemory, answers: list[dict[str, Tensor]]) -> None:
    for rank, answer in enumerate(answers):
        for tensor in memory.layout.ranks[rank].sets[0]:
            if tensor.role is Role.OUTPUT:
                memory.tensor(rank, tensor).copy_(answer[tensor.name])
