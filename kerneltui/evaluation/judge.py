"""The judge: makes inputs and expected values, compares raw memory, keeps the secrets.

A process of its own, started by `judge_client`. It never loads candidate code, and the only things
that it shares with ranks are their buffers: memfds of the engine, or device memory that it makes itself.
It answers one request at a time: a JSON
object with `op`, answered by one with `ok`, or with `error` and one readable line.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kerneltui.evaluation.inputs import Variant, secret_seed
from kerneltui.evaluation.judge_group import (
    Filled,
    JudgedGroup,
    changed_inputs,
    find_broken_guards,
    poison_outputs,
    write_rank,
)
from kerneltui.evaluation.judge_memory import DeviceMemory, HostMemory, JudgeMemory
from kerneltui.evaluation.oracle import Base, Reference, compare_outputs
from kerneltui.evaluation.selftest import run_self_test
from kerneltui.evaluation.values import Fault, ValueClass
from kerneltui.model.workload import Shape
from kerneltui.model.workload_file import load_workload
from kerneltui.targets.channel import Channel, ChannelClosed, ChannelTimeout
from kerneltui.targets.cuda import device_memory
from kerneltui.targets.errors import MemoryFailure, RankFailure
from kerneltui.targets.patterns import Poison
from kerneltui.targets.windows import GroupLayout

__all__ = ["JUDGE_VERSION", "Judge", "main"]

JUDGE_VERSION = 4
"""Grows when a verdict could change; the cached self-test of a workload is void then."""

_MOST_BASES_BYTES = {"cpu": 8 << 30, "cuda": 32 << 30}
"""Base inputs and answers that are kept, by device; the oldest go first."""

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


def _is_no_room(error: Exception) -> bool:
    """Whether it says that there is no memory: of Python, of torch on a device or a host, of the system."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


class Judge:
    """The requests that the judge answers; `answer` finds the method `do_<op>`.

    Args:
        folder: The workload.
        threads: Threads for making and comparing values.
        target: Whose dtypes and shapes.
        device: Where values are made and compared: "cpu" or "cuda".
    """

    def __init__(
        self, folder: Path, threads: int, target: str | None = None, device: str = "cpu"
    ) -> None:
        self._threads = threads
        # Filling and comparing goes through memory in blocks of the cache: more threads would wait for
        # one another at every block, long where the machine is busy. Only expected values need them;
        # inputs are written by a thread for each rank, on its own.
        torch.set_num_threads(1)
        self._writers = ThreadPoolExecutor(
            threads, "writer", initializer=torch.set_num_threads, initargs=(1,)
        )
        # Sums of the vendor library that are kept in less than float32 would loosen the tolerance.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self._workload = load_workload(folder, target)
        self.makes_memory = device != "cpu"
        self._reference = Reference(self._workload, device)
        self._shapes = {shape.name: shape for shape in self._workload.shapes}
        self._most_ranks = max(shape.ranks for shape in self._workload.shapes)
        self._bases: dict[tuple[str, ValueClass], Base] = {}
        self._groups: dict[str, JudgedGroup] = {}
        self._seeds: list[dict[str, Any]] = []

    def answer(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
        """Answers one request; what goes wrong is an answer too."""
        method = getattr(self, f"do_{request.get('op')}", None)
        if method is None:
            return {"error": f"the judge knows no request {request.get('op')!r}"}
        try:
            given = method(request, descriptors) if descriptors else method(request)
            if self.makes_memory:  # others work on the memory next
                self._synchronize()
            return {"ok": given}
        except MemoryFailure as error:
            return {"error": str(error), "memory": True}
        except RankFailure as error:
            return {"error": error.reason, "rank": error.rank}
        except Exception as error:  # the engine reports it as a fault of the harness
            text = f"{type(error).__name__}: {error}"
            if _is_no_room(error):
                for key in [*self._bases]:  # what is filled keeps its own
                    self._retire(key)
                if self.makes_memory:
                    torch.cuda.empty_cache()
                return {"error": text, "no_room": True}
            return {"error": text, "broken": self._is_broken()}

    def _synchronize(self) -> None:
        """Waits for the devices of the ranks; of no other, since that would open a context there."""
        for device in range(min(self._most_ranks, torch.cuda.device_count())):
            torch.cuda.synchronize(device)

    def _is_broken(self) -> bool:
        """Whether a device does not work for this process any more: only a new judge can."""
        if not self.makes_memory:
            return False
        try:
            self._synchronize()
        except RuntimeError:
            return True
        return False

    def do_hello(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Says what is judged and by which version."""
        return {
            "workload": self._workload.name,
            "version": JUDGE_VERSION,
            "torch": torch.__version__,
            "mutants": [*self._reference.mutants],
        }

    def do_attach(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Takes the memory of a group, and writes its guard bands."""
        name = str(request["group"])
        self._drop(name)
        memory = HostMemory.attach(GroupLayout.from_json(request["layout"]), descriptors)
        self._take(name, str(request["shape"]), memory)

    def do_allocate(self, request: Mapping[str, Any], offered: Sequence[int] = ()) -> None:
        """Makes the memory of a group on GPUs, and writes its guard bands; see `descriptors_of`."""
        name = str(request["group"])
        try:
            self._drop(name)
            layout = GroupLayout.from_json(request["layout"])
        except BaseException:
            for descriptor in offered:
                os.close(descriptor)
            raise
        self._take(name, str(request["shape"]), DeviceMemory(layout, offered))

    def descriptors_of(self, request: Mapping[str, Any]) -> tuple[int, ...]:
        """Descriptors that go along with the answer to a request."""
        if request.get("op") != "allocate":
            return ()
        group = self._groups.get(str(request["group"]))
        memory = group.memory if group else None
        return tuple(memory.descriptors) if isinstance(memory, DeviceMemory) else ()

    def sent(self, request: Mapping[str, Any]) -> None:
        """Told when an answer has been sent: descriptors that went along are the engine's now."""
        group = self._groups.get(str(request.get("group")))
        if group is not None and isinstance(group.memory, DeviceMemory):
            group.memory.drop_descriptors()

    def _take(self, name: str, shape: str, memory: JudgeMemory) -> None:
        secret = os.urandom(16)
        key = int.from_bytes(secret[:6], "little")
        try:
            memory.write_guards(key)
            self._groups[name] = JudgedGroup(self._shapes[shape], memory, key, secret)
        except BaseException:
            memory.close()
            raise

    def do_detach(self, request: Mapping[str, Any]) -> None:
        """Lets the memory of a group go."""
        self._drop(str(request["group"]))

    def do_prepare(self, request: Mapping[str, Any]) -> None:
        """Draws base inputs and computes their answers ahead of time."""
        values = ValueClass(request["values"])
        shape = self._shapes[request["shape"]]
        if request.get("renew"):
            self._retire((shape.name, values))
        self._base(shape, values)

    def do_fill(self, request: Mapping[str, Any]) -> None:
        """Writes fresh inputs into buffer sets and poisons their outputs."""
        group = self._groups[request["group"]]
        base = self._base(group.shape, ValueClass(request["values"]))
        for index in request["sets"]:
            variant = self._reference.variant(base.inputs, base.shape, group.next_seed())
            group.filled[index] = Filled(base, variant)
            self._write_inputs(group, index)
            # Without poison the outputs of an earlier call stay: on other inputs, so they are wrong.
            if request.get("poison"):
                poison_outputs(group, index, Poison(request["poison"]))

    def do_edit(self, request: Mapping[str, Any]) -> None:
        """Changes a single element of one input, and poisons the outputs again."""
        group = self._groups[request["group"]]
        for index in request["sets"]:
            filled = group.filled[index]
            filled.variant = self._reference.edited(
                filled.variant, filled.base.inputs, group.next_seed()
            )
            self._write_inputs(group, index)
            poison_outputs(group, index, Poison(request["poison"]))

    def do_poison(self, request: Mapping[str, Any]) -> None:
        """Poisons the outputs and leaves the inputs as they are, for a repeat."""
        group = self._groups[request["group"]]
        for index in request["sets"]:
            poison_outputs(group, index, Poison(request["poison"]))

    def do_check(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Compares outputs, inputs and guard bands of buffer sets with what they must hold."""
        group = self._groups[request["group"]]
        faults: list[Fault] = []
        error = share = 0.0
        digests: list[str] = []
        for index in request["sets"]:
            filled = group.filled[index]
            found = compare_outputs(
                self._reference, filled.base, filled.variant, group.memory, index
            )
            faults += [*found.faults, *changed_inputs(group, index)]
            error, share = max(error, found.error), max(share, found.library_share)
            if request.get("digest"):
                digests.append(group.memory.digest(index))
        faults += find_broken_guards(group)
        return {
            "faults": [asdict(fault) for fault in faults],
            "error": error,
            "library_share": share,
            "digests": digests,
        }

    def do_seeds(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Hands out the seeds that nothing hangs on any more, since the last time.

        With `all`, base inputs are dropped before, so that their seeds are among them.
        """
        if request.get("all"):
            for key in [*self._bases]:
                self._retire(key)
        used, self._seeds = self._seeds, []
        return used

    def do_self_test(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Puts mutants and honest variants through the comparison; see `selftest`."""
        return run_self_test(self, self._workload, self._reference)

    @property
    def granularity(self) -> int:
        """What the files of a layout must be multiples of, in bytes."""
        return device_memory.granularity(0) if self.makes_memory else mmap.PAGESIZE

    def group_memory(self, name: str) -> JudgeMemory:
        """The memory of a group; for the self-test."""
        return self._groups[name].memory

    def filled(self, name: str, index: int) -> tuple[Base, Variant]:
        """What stands in a buffer set; for the self-test."""
        filled = self._groups[name].filled[index]
        return filled.base, filled.variant

    def close(self) -> None:
        """Lets all memory go."""
        self._writers.shutdown()
        for name in [*self._groups]:
            self._drop(name)

    def _write_inputs(self, group: JudgedGroup, index: int) -> None:
        ranks = range(len(group.memory.layout.ranks))
        if self.makes_memory:  # the device is one for all
            for rank in ranks:
                write_rank(group, index, rank)
        else:
            list(self._writers.map(partial(write_rank, group, index), ranks))

    def _base(self, shape: Shape, values: ValueClass) -> Base:
        key = (shape.name, values)
        if key not in self._bases:
            seed = secret_seed()
            torch.set_num_threads(self._threads)
            try:
                self._bases[key] = self._reference.base(shape, values, seed)
            finally:
                torch.set_num_threads(1)
            self._make_room(key)
        return self._bases[key]

    def _make_room(self, kept: tuple[str, ValueClass]) -> None:
        """Lets the oldest bases go while all of them are too large; what is filled keeps its own."""
        most = _MOST_BASES_BYTES[self._reference.device]
        while sum(base.nbytes for base in self._bases.values()) > most:
            oldest = next(iter(self._bases))
            if oldest == kept:
                return
            self._retire(oldest)

    def _retire(self, key: tuple[str, ValueClass]) -> None:
        base = self._bases.pop(key, None)
        if base is not None:
            self._seeds.append({"shape": key[0], "values": key[1], "seed": base.seed})

    def _drop(self, name: str) -> None:
        group = self._groups.pop(name, None)
        if group is None:
            return
        self._seeds.append(
            {"group": name, "shape": group.shape.name, "secret": group.secret.hex(),
             "fills": group.fills}
        )  # fmt: skip
        group.filled.clear()
        group.memory.close()


def main() -> int:
    """Serves the engine until it closes the socket."""
    descriptor, folder, threads, parent, target, device = sys.argv[1:7]
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # No other process of the same user may read this one's memory.
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the engine, which ends this process
    if os.getppid() != int(parent):
        return 1  # the engine went away before the first line above
    channel = Channel(socket.socket(fileno=int(descriptor)))
    try:
        judge = Judge(Path(folder), int(threads), target or None, device)
    except Exception as error:
        channel.send({"error": str(error)})
        return 1
    channel.send({"ok": judge.do_hello({})})
    try:
        while True:
            try:
                request, descriptors = channel.receive_with_descriptors(time.monotonic() + 3600)
            except ChannelTimeout:
                continue  # the human thinks
            answer = judge.answer(request, descriptors)
            channel.send(answer, judge.descriptors_of(request) if "ok" in answer else ())
            judge.sent(request)
    except ChannelClosed:
        judge.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
