"""In what the groups of one target differ from those of another."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kerneltui.targets.buffers import SharedMemory
from kerneltui.targets.port import KillProof
from kerneltui.targets.windows import GroupLayout

__all__ = ["GroupTraits", "Memory"]

Memory = TypeVar("Memory", bound=SharedMemory)


def _nothing_left(proof: KillProof, layout: GroupLayout | None) -> str:
    """Processes are all that has to be gone."""
    return ""


@dataclass(frozen=True, slots=True)
class GroupTraits(Generic[Memory]):
    """In what the groups of one target differ from those of another.

    Attributes:
        make_memory: Makes the buffers of a layout, or None if `setup` is given them.
        granularity: What the files of a layout must be multiples of, in bytes.
        connects_late: Whether host collectives are connected only when a kernel asks for them.
        limits_addresses: Whether the address space of a rank is limited.
        enqueues: Whether calls are enqueued first and begin only when a gate opens.
        masks_inputs: Whether `how` of a sample can say `masked`: see `RankGroup.sample`.
        clock_slack_ns: How far the clocks of two ranks may lie apart.
        windows: Builds the library that makes NCCL windows, when a kernel asks for them; None where
            there are none.
        ticks_slack_ns: By which a rank's two clocks may differ in any sample.
        ticks_late: Whether the second one is read by a host that may come late to the begin.
        settle: Asked when the processes are gone, with the layout that was set up last: what is left
            elsewhere, as one line, or nothing.
    """

    make_memory: Callable[[GroupLayout], Memory] | None
    granularity: int = mmap.PAGESIZE
    connects_late: bool = False
    limits_addresses: bool = True
    enqueues: bool = False
    masks_inputs: bool = False
    clock_slack_ns: int = 0
    ticks_slack_ns: int = 50_000
    ticks_late: bool = False
    windows: Callable[[], str] | None = None
    settle: Callable[[KillProof, GroupLayout | None], str] = _nothing_left
