"""Groups of real rank processes for tests: opened with a kernel, checked, and proved to be gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from runtime_kernels import COLUMNS, ROWS, kernel, layout

from kerneltui.targets.cpu.runtime import CpuTarget
from kerneltui.targets.errors import RankFailure
from kerneltui.targets.group import RankGroup
from kerneltui.targets.port import GroupRole, Limits
from kerneltui.targets.processes import descendants

LIMITS = Limits(first_call_s=60.0, sample_s=60.0, load_s=60.0, setup_s=60.0)  # for busy machines
HANG = replace(LIMITS, first_call_s=5.0)


def check_nothing_left(target: CpuTarget) -> None:
    """The fork server has no process under it and still makes a working group."""
    assert wait_until(lambda: not descendants([target.server_pid]))
    with open_ready(target, kernel()) as group:
        check_gather(group, epoch=0)
    assert wait_until(lambda: not descendants([target.server_pid]))


def open_ready(
    target: CpuTarget, source: str, *, ranks: int = 2, limits: Limits = LIMITS
) -> RankGroup:
    """A group with a kernel loaded and set up."""
    build = target.toolchain.compile(source)
    group = target.open_group(GroupRole.CANDIDATE, ranks, limits=limits)
    group.load(build.library)
    wanted = group.requirements({"M": ROWS, "N": COLUMNS}, {})
    group.setup(layout(ranks, wanted=wanted), {})
    return group


def check_gather(group: RankGroup, epoch: int, set_index: int = 1, *, numbers: int = 256) -> None:
    """Every rank must get every shard, of bytes below `numbers` that are new in each epoch."""
    memory = group.memory
    assert memory is not None
    expected = b""
    for rank in range(group.ranks):
        shard = memory.layout.ranks[rank].tensor(set_index, "A")
        with memory.view(rank, shard) as view:
            view[:] = bytes([(epoch + rank + 1) % numbers]) * shard.nbytes
            expected += bytes(view)
    group.run(set_index, epoch)
    for rank in range(group.ranks):
        with memory.view(rank, memory.layout.ranks[rank].tensor(set_index, "C")) as view:
            assert bytes(view) == expected


def fails(target: CpuTarget, body: str, *, limits: Limits = LIMITS) -> RankFailure:
    """What running a kernel with this body raises; the group is gone then."""
    group = open_ready(target, kernel(body), limits=limits)
    with pytest.raises(RankFailure) as caught:
        group.run(0, 0)
    proof = group.close()
    assert proof.gone and not proof.left
    assert not any(Path(f"/proc/{pid}").exists() for pid in group.pids)
    assert "\n" not in caught.value.reason
    return caught.value


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
