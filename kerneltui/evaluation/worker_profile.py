"""The program that runs under the profiler: one rank, its buffers, and a few calls of a kernel.

Run as `python -m kerneltui.evaluation.worker_profile REQUEST`, a JSON object; started by `profile`. The
rank is not confined, since the profiler lives in its process, and there is no judge: what is counted
does not depend on right or wrong.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kerneltui.config import config_folder
from kerneltui.evaluation.judge_memory import DeviceMemory
from kerneltui.model.record import parse_json
from kerneltui.model.workload import Role, Shape
from kerneltui.model.workload_file import load_workload
from kerneltui.targets.buffers import RankFiles
from kerneltui.targets.cuda.policy import load_policy
from kerneltui.targets.cuda.runtime import CudaTarget
from kerneltui.targets.port import GroupRole, Limits
from kerneltui.targets.windows import GroupLayout, TensorSpec

__all__ = ["main"]

_SETS, _CALLS = 2, 2
# Every kernel runs some forty times under the profiler, which has a limit of its own for all of it.
_LIMITS = Limits(load_s=120.0, setup_s=120.0, first_call_s=240.0)


@dataclass(frozen=True, slots=True)
class _Lent:
    """Buffers as the group takes them; the memory behind them belongs to `DeviceMemory`."""

    layout: GroupLayout
    files: tuple[RankFiles, ...]

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple(fd for f in self.files for fd in (f.private, f.symmetric, f.signals))

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def main(arguments: list[str]) -> int:
    """Makes a few calls."""
    request: Mapping[str, Any] = parse_json(arguments[0].encode())
    workload = load_workload(Path(request["workload"]), "cuda")
    shape = Shape(request["shape"], request["dimensions"], (), 1, request["element_bytes"])
    runtime: dict[str, int] = request["runtime"]
    # The profiler reaches the rank by what it put into the environment of this process.
    target = CudaTarget(
        Path(request["cache"]),
        confine=False,
        policy=load_policy(config_folder()),
        environment=dict(os.environ),
    )
    with target:
        group = target.open_group(GroupRole.CANDIDATE, 1, limits=_LIMITS)
        group.load(Path(request["library"]))
        needs = group.requirements(shape.dimensions, runtime)
        layout = GroupLayout.plan(
            [TensorSpec.of(tensor, shape) for tensor in workload.tensors],
            shape.dimensions,
            ranks=1,
            sets=_SETS,
            signal_words=needs.signal_words,
            window_bytes=needs.window_bytes,
            scratch_bytes=needs.scratch_bytes,
            granularity=group.granularity,
            offered=needs.nccl_windows,
        )
        memory = DeviceMemory(layout, group.offer(layout) if layout.offered else ())
        _fill(memory, layout)
        group.setup(layout, runtime, _Lent(layout, (RankFiles(*memory.descriptors),)))
        memory.descriptors = []  # they are the group's now
        for call in range(_CALLS):
            group.run(call % _SETS, 1 + call)
        group.teardown()
        memory.close()
        group.close()
    return 0


def _fill(memory: DeviceMemory, layout: GroupLayout) -> None:
    for buffers in layout.ranks[0].sets:
        for tensor in buffers:
            view = memory.tensor(0, tensor)
            if tensor.role is Role.INPUT and view.is_floating_point():
                view.normal_()
            else:
                view.zero_()
    torch.cuda.synchronize()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
