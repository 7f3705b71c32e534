"""One kernel in one rank: load, ask, set up, call. Each answer is plain data for the engine."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.worker_baseline import BaselineCall, PreparedBaseline
from kerneltui.evaluation.worker_memory import RankMemory
from kerneltui.targets.errors import FailureKind
from kerneltui.targets.windows import DType, GroupLayout

if TYPE_CHECKING:
    from kerneltui.evaluation.worker_loaded import LoadableKernel
    from kerneltui.evaluation.worker_python_context import PythonFace

__all__ = [
    "CHarness",
    "KernelError",
    "Machine",
    "Rank",
    "SampleCall",
    "address_of",
    "no_needs",
    "thread_count",
]


class KernelError(Exception):
    """A kernel cannot go on; the text is the reason, `kind` the sort of failure."""

    def __init__(self, reason: str, kind: FailureKind = FailureKind.ERROR) -> None:
        super().__init__(reason)
        self.kind = kind


class CHarness:
    """A built timing harness, loaded before any kernel: what is the same on all targets.

    Args:
        path: The library.
    """

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        for name in ("ht_take_sample", "ht_setup", "ht_teardown"):
            getattr(self.library, name).restype = ctypes.c_int
        self.failure = abi.Failure()

    def fail(self, reason: str) -> None:
        """Keeps the first reason of a failure, as a kernel's `fail` does."""
        if not self.failure.set:
            self.failure.text = reason.encode()[:1023]
            self.failure.set = 1

    def setup(self, function: int, context: abi.Context) -> int | None:
        """Calls a kernel's setup; its state."""
        state, code = ctypes.c_void_p(), ctypes.c_int()
        self.failure.set = 0
        result = self.library.ht_setup(
            ctypes.c_void_p(function),
            ctypes.byref(context),
            ctypes.byref(state),
            ctypes.byref(code),
            ctypes.byref(self.failure),
        )
        self.check(result, code.value, "kerneltui_setup")
        return state.value

    def teardown(self, function: int, state: int | None) -> None:
        """Calls a kernel's teardown."""
        code = ctypes.c_int()
        self.failure.set = 0
        result = self.library.ht_teardown(
            ctypes.c_void_p(function),
            ctypes.c_void_p(state),
            ctypes.byref(code),
            ctypes.byref(self.failure),
        )
        self.check(result, code.value, "kerneltui_teardown")

    def sample(self, arguments: abi.SampleArguments) -> int:
        """Takes a sample; the results are in `arguments`.

        Returns:
            What came of it, where it is something that only the target knows how to read.
        """
        self.failure.set = 0
        result = self.library.ht_take_sample(ctypes.byref(arguments), ctypes.byref(self.failure))
        if result == abi.LATE:
            raise KernelError(
                f"rank {arguments.late_rank} did not come to the start of the calls",
                FailureKind.HANG,
            )
        if 0 < result < abi.LATE:
            epoch = arguments.epoch + arguments.failed_call
            self.check(result, arguments.code, f"kerneltui_run, epoch {epoch}")
        return result

    @property
    def reason(self) -> str:
        """The first reason of a failure, or nothing."""
        return self.failure.text.decode("utf-8", "replace") if self.failure.set else ""

    def check(self, result: int, code: int, where: str) -> None:
        """Raises what a result of the harness means.

        Raises:
            KernelError: If it is a failure.
        """
        if not result:
            return
        if result == abi.NO_MEMORY:
            raise KernelError(f"{where} ran out of memory", FailureKind.OUT_OF_MEMORY)
        how = "threw" if result == abi.THREW else f"returned {code}"
        raise KernelError(f"{where} {how}: {self.reason}" if self.reason else f"{where} {how}")


class SampleCall(Protocol):
    """What a sample calls: the function, its state, and the layout that it works on."""

    run: int
    state: int | None

    @property
    def layout(self) -> GroupLayout:
        """Where everything lies."""
        ...


class Machine(Protocol):
    """What a rank has of its target: memory, collectives, vendor functions, clocks."""

    harness: CHarness
    threads: int

    def map(self, layout: GroupLayout, rank: int, descriptors: Sequence[int]) -> RankMemory:
        """Maps the buffers of a rank; closes the descriptors.

        Raises:
            KernelError: If there is no room.
        """
        ...

    def equip(self, context: abi.Context, dtype: DType, needs: abi.Requirements) -> list[Any]:
        """Puts what the target offers into a context; what must live as long as it does."""
        ...

    def python_face(self, context: abi.Context, needs: abi.Requirements) -> PythonFace:
        """What Python kernels get instead of addresses, from an equipped context."""
        ...

    def compiling(self) -> AbstractContextManager[None]:
        """Within it, a Python kernel may compile."""
        ...

    def baseline_needs(self, name: str) -> abi.Requirements:
        """What a trusted implementation asks for.

        Raises:
            KernelError: If there is none of that name.
        """
        ...

    def baseline(self, name: str, memory: RankMemory) -> BaselineCall | PreparedBaseline:
        """Sets a trusted implementation up."""
        ...

    def sample(self, request: Mapping[str, Any], call: SampleCall) -> dict[str, Any]:
        """Makes calls and times them."""
        ...

    def serve(self, request: Mapping[str, Any], call: SampleCall) -> dict[str, Any]:
        """Makes single calls, each after a pause."""
        ...

    def sustain(self, request: Mapping[str, Any], call: SampleCall) -> dict[str, Any]:
        """Makes calls without a pause for some time.

        Raises:
            KernelError: If the target knows no such calls.
        """
        ...

    def launches(self, request: Mapping[str, Any], call: SampleCall) -> dict[str, Any]:
        """What a call launches; the call is not made.

        Raises:
            KernelError: It cannot be told.
        """
        ...

    def after_setup(self) -> None:
        """Looks whether the kernel took more than it may."""
        ...

    def special(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Answers what only this target is asked.

        Raises:
            KernelError: If the target knows no such request.
        """
        ...


class Rank:
    """What one rank process holds: its machine, the kernel, its memory.

    Args:
        rank: Its number.
        ranks: How many there are.
        machine: What the target gives it.
        loader: Loads a build.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        machine: Machine,
        loader: Callable[[str, Machine], LoadableKernel],
    ) -> None:
        self._rank, self._ranks, self._machine = rank, ranks, machine
        self._loader = loader
        self._kernel: LoadableKernel | None = None
        self._baseline: str | None = None
        self._prepared: PreparedBaseline | None = None
        self._needs = no_needs()
        self._memory: RankMemory | None = None
        self.state: int | None = None
        self.run = 0
        self._keep: list[Any] = []

    @property
    def layout(self) -> GroupLayout:
        """Where everything lies.

        Raises:
            KernelError: If nothing is set up.
        """
        if self._memory is None:
            raise KernelError("setup must come before a call")
        return self._memory.layout

    def load(self, library: str) -> None:
        """Loads a kernel, or another one in place of the first."""
        self._kernel, self._baseline = self._loader(library, self._machine), None

    def load_baseline(self, name: str) -> None:
        """Takes a trusted implementation."""
        self._machine.baseline_needs(name)
        self._kernel, self._baseline = None, name

    def requirements(
        self, dimensions: Mapping[str, int], runtime: Mapping[str, int]
    ) -> dict[str, Any]:
        """What the kernel asks for."""
        if self._kernel is not None:
            wanted = self._kernel.requirements(dimensions, runtime, self._rank, self._ranks)
        elif self._baseline is not None:
            wanted = self._machine.baseline_needs(self._baseline)
        else:
            raise KernelError("no kernel is loaded")
        self._needs = wanted
        return {
            "signal_words": wanted.signal_words,
            "window_bytes": wanted.window_bytes,
            "scratch_bytes": wanted.scratch_bytes,
            "host_collectives": int(bool(wanted.host_collectives)),
            "nccl_windows": int(bool(wanted.nccl_windows or wanted.gin_signals)),
            "graph_safe": int(bool(wanted.graph_safe)),
        }

    def setup(
        self, layout: GroupLayout, runtime: Mapping[str, int], descriptors: Sequence[int]
    ) -> dict[str, Any]:
        """Maps the buffers and sets the kernel up; what a baseline says of itself."""
        memory = self._machine.map(layout, self._rank, descriptors)
        self._memory = memory
        if self._baseline is not None:
            return self._setup_baseline(self._baseline, memory)
        if self._kernel is None:
            raise KernelError("no kernel is loaded")
        call = self._kernel.set_up(self._machine, memory, runtime, self._needs)
        self.run, self.state, self._keep = call.run, call.state, call.keep
        self._machine.after_setup()
        return {}

    def _setup_baseline(self, name: str, memory: RankMemory) -> dict[str, Any]:
        try:
            made = self._machine.baseline(name, memory)
        except (KeyError, ValueError, RuntimeError) as error:
            raise KernelError(f"baseline {name} does not fit this workload: {error}") from error
        prepared = made if isinstance(made, PreparedBaseline) else PreparedBaseline(call=made)
        self._prepared = prepared
        if prepared.native is not None:
            self.run, self.state = prepared.native
            self._keep = [prepared]
            return prepared.facts
        assert prepared.call is not None
        function = abi.RunFunction(self._as_run(prepared.call))
        self._keep = [function]
        self.state, self.run = None, address_of(function)
        return prepared.facts

    def _as_run(self, call: BaselineCall) -> Any:
        def run(_state: int | None, set_index: int, _epoch: int, _stream: int | None) -> int:
            try:
                call(set_index)
            except Exception as error:
                # The caller is C: the exception becomes a code, as for any kernel.
                self._machine.harness.fail(f"{type(error).__name__}: {error}")
                return 1
            return 0

        return run

    def sample(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Makes calls and times them."""
        before = thread_count()
        seen = self._machine.sample(request, self)
        if self._kernel is not None:
            self._kernel.check()
        return {**seen, "threads_before": before, "threads_after": thread_count()}

    def special(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Answers what only the target or a baseline knows."""
        match message["do"]:
            case "serve":
                return self._machine.serve(message, self)
            case "sustain":
                return self._machine.sustain(message, self)
            case "launches":
                return self._machine.launches(message, self)
            case "filled" | "choose":
                self._tell_baseline(message)
                return {}
            case _:
                return self._machine.special(message)

    def _tell_baseline(self, message: Mapping[str, Any]) -> None:
        told = self._prepared
        try:
            if message["do"] == "filled" and told is not None and told.filled is not None:
                told.filled(message["sets"])
            elif message["do"] == "choose" and told is not None and told.choose is not None:
                told.choose(int(message["index"]))
            else:
                raise KernelError(f"there is no baseline that understands {message['do']!r}")
        except (IndexError, RuntimeError) as error:
            raise KernelError(f"baseline: {error}") from error

    def teardown(self) -> None:
        """Tears the kernel down and unmaps the buffers."""
        memory, self._memory = self._memory, None
        if memory is None:
            raise KernelError("there is nothing to tear down")
        if self._kernel is not None:
            self._kernel.tear_down(self._machine, self.state)
        if self._prepared is not None:
            self._prepared.end()
        self.state, self.run, self._keep, self._prepared = None, 0, [], None
        memory.close()


def no_needs() -> abi.Requirements:
    """The requirements of somebody who asks for nothing."""
    return abi.Requirements(abi_version=abi.ABI_VERSION)


def address_of(function: Any) -> int:
    """The address of a C function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def thread_count() -> int:
    """Threads of this process."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names only, on the way to a timing
