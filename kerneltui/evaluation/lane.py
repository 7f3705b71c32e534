"""A lane: one kernel in one group of ranks, with the judge looking at its memory.

A group runs only while it is asked to. Between requests its processes are stopped, so work that a
kernel leaves behind when `run` returns can neither finish its output nor slow down anybody else.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any, Protocol

from kerneltui.evaluation.judge_client import JudgeClient, JudgeFailure
from kerneltui.evaluation.lane_times import Served, Spent, Sustained
from kerneltui.evaluation.values import Report, ValueClass
from kerneltui.model.workload import DTYPE_BYTES, Shape, Workload
from kerneltui.targets.buffers import SharedMemory
from kerneltui.targets.patterns import Poison
from kerneltui.targets.port import Group
from kerneltui.targets.sample import Sample
from kerneltui.targets.windows import GroupLayout, TensorSpec

__all__ = ["LATE", "MASKED", "Lane", "MemoryGroup", "set_bytes"]

_FIRST_EPOCHS = 1 << 20
LATE = "; its inputs were written after its calls were enqueued and before they began"
"""Ends the reason why an output is wrong in a sample with a late fill."""
MASKED = "; the inputs of each call were right only when the caller's stream was done with the call before"
"""Ends the reason why an output of a masked sample is wrong."""
SERVE_S = 10.0
"""Beside the pauses, for calls after pauses; and for whatever else a baseline is asked."""


def set_bytes(workload: Workload, shape: Shape) -> int:
    """Bytes of one buffer set over all ranks."""
    return sum(
        DTYPE_BYTES[tensor.dtype] * prod(tensor.local(shape, rank)[0])
        for tensor in workload.tensors
        for rank in range(shape.ranks)
    )


class MemoryGroup(Group, Protocol):
    """A group of this machine, whose buffers the judge can map."""

    @property
    def memory(self) -> SharedMemory | None:
        """Its buffers, from `setup` to `teardown`."""
        ...

    @property
    def enqueues(self) -> bool:
        """Whether calls are enqueued first and begin only when a gate opens."""
        ...

    @property
    def masks_inputs(self) -> bool:
        """Whether the inputs of a call can be kept wrong until it is its turn."""
        ...

    @property
    def alive(self) -> bool:
        """False when the group has ended."""
        ...


class Lane:
    """Drives one group. Not thread-safe, except `thaw`.

    Args:
        group: Ranks with a kernel or a baseline loaded.
        judge: Fills and checks the buffers.
        workload: What is computed.
        runtime: Values of the run-time tunables.
        spent: Where the time that things take is added up.

    Attributes:
        graph_safe: Whether calls may be captured into a CUDA graph, on the shape that is set up.
        called: Whether one was made there that was not captured: what a first call prepares may not be.

    Raises:
        RankFailure: From most methods, when the group has failed; it is dead then.
        JudgeFailure: If the judge has.
    """

    def __init__(
        self,
        group: MemoryGroup,
        judge: JudgeClient,
        workload: Workload,
        runtime: Mapping[str, int],
        spent: Spent | None = None,
    ) -> None:
        self.group = group
        self._spent = spent or Spent()
        self.shape: Shape | None = None
        self.sets = 0
        self.graph_safe = False
        self.called = False
        self.samples = 0
        self._judge = judge
        self.workload = workload
        self._runtime = dict(runtime)
        self._epoch = 0
        self._next_set = 0
        self._handles = [os.pidfd_open(pid) for pid in group.pids]

    @property
    def name(self) -> str:
        """Name of the group, also towards the judge."""
        return self.group.group_id

    def setup(self, shape: Shape, sets: int, *, address_shift: int = 0) -> None:
        """Sets the kernel up for a shape, and shows its memory to the judge."""
        with self._spent.adding("setup"):
            self._setup(shape, sets, address_shift)

    def _setup(self, shape: Shape, sets: int, address_shift: int) -> None:
        self.thaw()
        needs = self.group.requirements(shape.dimensions, self._runtime)
        self.graph_safe = needs.graph_safe
        layout = GroupLayout.plan(
            [TensorSpec.of(tensor, shape) for tensor in self.workload.tensors],
            shape.dimensions,
            ranks=shape.ranks,
            sets=sets,
            signal_words=needs.signal_words,
            window_bytes=needs.window_bytes,
            scratch_bytes=needs.scratch_bytes,
            address_shift=address_shift,
            granularity=self.group.granularity,
            offered=needs.nccl_windows,
        )
        if self.group.makes_memory:
            self.group.setup(layout, self._runtime)
            memory = self.group.memory
            assert memory is not None
            self.shape, self.sets = shape, sets
            self._judge.attach(self.name, shape.name, layout, memory.descriptors)
        else:
            self.shape, self.sets = shape, sets
            offered = self.group.offer(layout) if layout.offered else ()
            made = self._judge.allocate(self.name, shape.name, layout, offered)
            self.group.setup(layout, self._runtime, made)
        # Epochs begin anywhere: nothing tells a kernel which stage of its evaluation this is.
        self._epoch = 1 + secrets.randbelow(_FIRST_EPOCHS)
        self._next_set = secrets.randbelow(sets)
        self.called = False
        self.freeze()

    def teardown(self) -> None:
        """Ends the shape."""
        if self.shape is None:
            return
        self.shape = None
        with self._spent.adding("setup"):
            self._judge.detach(self.name)
            self.thaw()
            self.group.teardown()

    def next_sets(self, calls: int) -> list[int]:
        """The buffer sets that the next `calls` calls use."""
        return [(self._next_set + i) % self.sets for i in range(min(calls, self.sets))]

    def fill(
        self, sets: Sequence[int], values: ValueClass = ValueClass.NATURAL,
        poison: Poison | None = None,
    ) -> None:  # fmt: skip
        """Has fresh inputs written; see `JudgeClient.fill`."""
        with self._spent.adding("fill"):
            self._judge.fill(self.name, sets, values, poison)
            self._tell_filled(sets)

    def edit(self, sets: Sequence[int]) -> None:
        """Has one element of the inputs changed, and the outputs poisoned."""
        with self._spent.adding("fill"):
            self._judge.edit(self.name, sets)
            self._tell_filled(sets)

    def poison(self, sets: Sequence[int], pattern: Poison) -> None:
        """Has the outputs poisoned for another call on the same inputs."""
        with self._spent.adding("fill"):
            self._judge.poison(self.name, sets, pattern)

    def check(self, sets: Sequence[int], *, digest: bool = False) -> Report:
        """Has the memory compared with what it must hold."""
        with self._spent.adding("check"):
            return self._judge.check(self.name, sets, digest=digest)

    def repeat_set(self, index: int) -> None:
        """Makes the next call use this buffer set."""
        self._next_set = index

    def run(self, delays_ns: Sequence[int] = ()) -> Sample:
        """One call on the next buffer set, for verification."""
        return self._go(None, delays_ns)

    @property
    def enqueues(self) -> bool:
        """Whether inputs can be written when calls are enqueued and have not begun."""
        return self.group.enqueues and not self.group.facts.get("wants_fills")

    def can_mask(self, calls: int) -> bool:
        """Whether the inputs of so many calls can be kept wrong until it is their turn."""
        return self.group.masks_inputs and calls <= self.sets

    def sample(
        self,
        calls: int,
        delays_ns: Sequence[int] = (),
        *,
        verifying: bool = False,
        late_fill: bool = False,
        evict: bool = False,
        warm: bool = False,
        graph: bool = False,
        masked: bool = False,
    ) -> Sample:
        """Back-to-back calls on the next buffer sets, timed or for verification.

        Args:
            calls: How many.
            delays_ns: For each rank, how much later than the others it starts; none if empty.
            verifying: Whether the end of each call is wanted.
            late_fill: Whether the inputs are written only when all calls are enqueued and none has
                begun: who works before its time, on a stream of its own, works on old inputs.
            evict: Whether a GPU's second-level cache is emptied first.
            warm: Whether all calls use buffer set 0, which stays in the cache if it fits.
            graph: Whether they are enqueued as one CUDA graph; the kernel must say that it can be.
            masked: Whether the inputs of each call are wrong until the stream of the caller is done with the
                call before: who begins before its turn works on wrong ones. Ask `can_mask` before; its time
                means nothing.
        """
        if warm:
            self._next_set = 0
        how: dict[str, object] = {"evict": True} if evict else {}
        if warm:
            how["sets"] = 1
        if graph:
            how["graph"] = True
        if masked:
            how["masked"] = True
        return self._go(calls, delays_ns, verifying=verifying, late_fill=late_fill, how=how)

    def serve(self, gaps_ns: Sequence[int], *, evict: bool) -> Served:
        """Single calls on the next buffer sets, each after a pause in which nothing runs.

        Args:
            gaps_ns: The pauses, one for each call.
            evict: Whether a GPU's second-level cache is emptied before each pause.
        """
        count = len(gaps_ns)
        body = {
            "gaps_ns": list(gaps_ns),
            "first_set": self._next_set,
            "epoch": self._epoch,
            "evict": evict,
        }
        self._next_set = (self._next_set + count) % self.sets
        self._epoch += count
        answers = self._ask("serve", body, SERVE_S + sum(gaps_ns) / 1e9, gates=count)
        return Served.of(answers)

    def sustain(self, calls: int, chunk: int, limit_s: float) -> Sustained:
        """Calls without a pause, rotating over the buffer sets.

        Args:
            calls: How many.
            chunk: So many are enqueued at a time.
            limit_s: How long they may take, beside what is around them.

        Raises:
            RankFailure: The group failed.
        """
        body = {
            "first_set": self._next_set,
            "epoch": self._epoch,
            "sustained_calls": calls,
            "chunk": chunk,
        }
        answers = self._ask("sustain", body, SERVE_S + limit_s, gates=1)
        self._epoch += calls
        self._next_set = (self._next_set + calls) % self.sets
        return Sustained.of(answers)

    def launches(self) -> dict[str, Any]:
        """What the next call launches on rank 0, without making it: its epoch is left out.

        A kernel that counts its calls may not like that, so the lane makes no further ones on this shape.
        """
        body = {"first_set": self._next_set, "epoch": self._epoch}
        return self._ask("launches", body, SERVE_S)[0]

    def choose(self, index: int) -> None:
        """Has a baseline take another of its choices."""
        self._ask("choose", {"index": index}, SERVE_S)

    def _tell_filled(self, sets: Sequence[int]) -> None:
        if self.group.facts.get("wants_fills"):
            self._ask("filled", {"sets": list(sets)}, SERVE_S)

    def _ask(
        self, what: str, body: Mapping[str, Any], limit_s: float, *, gates: int = 0
    ) -> list[dict[str, Any]]:
        self.thaw()
        try:
            return self.group.ask(what, body, limit_s, gates=gates)
        finally:
            self.freeze()

    def _go(
        self,
        many: int | None,
        delays_ns: Sequence[int],
        *,
        verifying: bool = False,
        late_fill: bool = False,
        how: Mapping[str, object] | None = None,
    ) -> Sample:
        calls = 1 if many is None else many
        sets = self.next_sets(calls)
        fill = partial(self._judge.fill, self.name, sets, poison=None)
        between = fill if late_fill else None
        first, epoch = self._next_set, self._epoch
        self._next_set = (first + calls) % self.sets
        self._epoch += calls
        self.samples += 1
        with self._spent.adding("calls"):
            self.thaw()
            try:
                if many is None:
                    seen = self.group.run(first, epoch, delays_ns)
                else:
                    seen = self.group.sample(
                        calls,
                        first,
                        epoch,
                        delays_ns,
                        verifying=verifying,
                        between=between,
                        how=how,
                    )
            finally:
                self.freeze()
        self._spent.inside_ns += seen.elapsed_ns
        self.called = self.called or not (how or {}).get("graph")
        return seen

    def freeze(self) -> None:
        """Stops the processes of the group."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets the processes of the group go on; from any thread."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Ends the group; proof of its end stays with the group."""
        if self.shape is not None:
            self.shape = None
            with suppress(JudgeFailure):  # it is gone, and holds nothing any more
                self._judge.detach(self.name)
        self.thaw()  # a stopped process does not hear SIGTERM
        for handle in self._handles:
            os.close(handle)
        self._handles = []
        self.group.close()

    def _signal(self, number: signal.Signals) -> None:
        for handle in self._handles:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
