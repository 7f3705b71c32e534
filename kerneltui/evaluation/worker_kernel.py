"""One kernel in one rank: load, ask, set up, call. Each answer is plain data for the engine."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.baselines import BASELINES, BaselineCall, BaselineProblem
from kerneltui.evaluation.worker_host import HostCollectives
from kerneltui.evaluation.worker_memory import RankMemory, build_context
from kerneltui.targets.errors import FailureKind
from kerneltui.targets.windows import DType, GroupLayout

__all__ = ["Harness", "KernelError", "LoadedKernel", "Rank"]

_SYMBOLS = (
    "kerneltui_requirements",
    "kerneltui_setup",
    "kerneltui_run",
    "kerneltui_teardown",
)
_TICK_CALIBRATION_NS = 2_000_000


class KernelError(Exception):
    """A kernel cannot go on; the text is the reason, `kind` the sort of failure."""

    def __init__(self, reason: str, kind: FailureKind = FailureKind.ERROR) -> None:
        super().__init__(reason)
        self.kind = kind


class Harness:
    """The timing harness and the vendor functions, loaded before any kernel.

    Args:
        path: The built harness.
        blas: The library that holds the vendor's `sgemm_` and `dgemm_`.
    """

    def __init__(self, path: str, blas: ctypes.CDLL) -> None:
        self._library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        for name in ("ht_take_sample", "ht_setup", "ht_teardown"):
            getattr(self._library, name).restype = ctypes.c_int
        self._library.ht_tick_rate.restype = ctypes.c_double
        self._library.ht_tick_rate.argtypes = (ctypes.c_uint64,)
        self.failure = abi.Failure()
        self.tick_rate = float(self._library.ht_tick_rate(_TICK_CALIBRATION_NS))
        self._vendor_self = abi.VendorSelf(_address(blas.sgemm_), _address(blas.dgemm_), 0)
        self._vendor = abi.Vendor(
            _address(self._library.ht_gemm),
            ctypes.cast(ctypes.pointer(self._vendor_self), ctypes.c_void_p),
        )

    def fail(self, reason: str) -> None:
        """Keeps the first reason of a failure, as a kernel's `fail` does."""
        if not self.failure.set:
            self.failure.text = reason.encode()[:1023]
            self.failure.set = 1

    def equip(self, context: abi.Context, host: abi.Host, dtype: DType) -> None:
        """Puts vendor, host and fail into a context."""
        self._vendor_self.dtype = abi.DTYPE_CODES[dtype]
        context.vendor = ctypes.pointer(self._vendor)
        context.host = ctypes.pointer(host)
        context.fail = _address(self._library.ht_fail)
        context.fail_self = ctypes.cast(ctypes.pointer(self.failure), ctypes.c_void_p)

    def setup(self, function: int, context: abi.Context) -> int | None:
        """Calls a kernel's setup; its state."""
        state, code = ctypes.c_void_p(), ctypes.c_int()
        self.failure.set = 0
        result = self._library.ht_setup(
            ctypes.c_void_p(function),
            ctypes.byref(context),
            ctypes.byref(state),
            ctypes.byref(code),
            ctypes.byref(self.failure),
        )
        self._check(result, code.value, "kerneltui_setup")
        return state.value

    def teardown(self, function: int, state: int | None) -> None:
        """Calls a kernel's teardown."""
        code = ctypes.c_int()
        self.failure.set = 0
        result = self._library.ht_teardown(
            ctypes.c_void_p(function),
            ctypes.c_void_p(state),
            ctypes.byref(code),
            ctypes.byref(self.failure),
        )
        self._check(result, code.value, "kerneltui_teardown")

    def sample(self, arguments: abi.SampleArguments) -> None:
        """Takes a sample; the results are in `arguments`."""
        self.failure.set = 0
        result = self._library.ht_take_sample(ctypes.byref(arguments), ctypes.byref(self.failure))
        if result == abi.LATE:
            raise KernelError(
                f"rank {arguments.late_rank} did not come to the start of the calls",
                FailureKind.HANG,
            )
        if result:
            epoch = arguments.epoch + arguments.failed_call
            self._check(result, arguments.code, f"kerneltui_run, epoch {epoch}")

    def _check(self, result: int, code: int, where: str) -> None:
        if not result:
            return
        text = self.failure.text.decode("utf-8", "replace") if self.failure.set else ""
        if result == abi.NO_MEMORY:
            raise KernelError(f"{where} ran out of memory", FailureKind.OUT_OF_MEMORY)
        how = "threw" if result == abi.THREW else f"returned {code}"
        raise KernelError(f"{where} {how}: {text}" if text else f"{where} {how}")


class LoadedKernel:
    """The four functions of a kernel's library.

    Args:
        path: The library.

    Raises:
        KernelError: If it cannot be loaded, or lacks one of the functions.
    """

    def __init__(self, path: str) -> None:
        try:
            self._library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise KernelError(f"cannot load the kernel: {error}") from error
        missing = [name for name in _SYMBOLS if not hasattr(self._library, name)]
        if missing:
            raise KernelError(
                f"the kernel has no {missing[0]}; define it with C linkage as kernel.h says"
            )
        self.setup, self.run, self.teardown = (
            _address(getattr(self._library, name)) for name in _SYMBOLS[1:]
        )

    def requirements(
        self, dimensions: Mapping[str, int], runtime: Mapping[str, int], rank: int, ranks: int
    ) -> abi.Requirements:
        """Asks what the kernel needs for a shape.

        Raises:
            KernelError: If it refuses, or was built for another version of the contract.
        """
        wanted = abi.Requirements()
        code = self._library.kerneltui_requirements(
            abi.named_values(dimensions),
            ctypes.c_uint32(len(dimensions)),
            abi.named_values(runtime),
            ctypes.c_uint32(len(runtime)),
            ctypes.c_uint32(rank),
            ctypes.c_uint32(ranks),
            ctypes.byref(wanted),
        )
        if code:
            raise KernelError(f"kerneltui_requirements returned {code}")
        if wanted.abi_version != abi.ABI_VERSION:
            raise KernelError(
                f"the kernel states ABI version {wanted.abi_version}, not {abi.ABI_VERSION}; "
                "set abi_version to KERNELTUI_ABI_VERSION in kerneltui_requirements"
            )
        return wanted


class Rank:
    """What one rank process holds: harness, collectives, the kernel, its memory.

    Args:
        rank: Its number.
        ranks: How many there are.
        threads: CPU threads that it may use.
        harness: Timing.
        host: Collectives.
        control: Address of the control page.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        *,
        threads: int,
        harness: Harness,
        host: HostCollectives,
        control: int,
    ) -> None:
        self._rank, self._ranks, self._threads = rank, ranks, threads
        self._harness, self._host, self._control = harness, host, control
        self._kernel: LoadedKernel | None = None
        self._baseline: str | None = None
        self._memory: RankMemory | None = None
        self._state: int | None = None
        self._run: int = 0
        self._keep: list[Any] = []
        self._baseline_error: str | None = None

    def load(self, library: str) -> None:
        """Loads a kernel, or another one in place of the first."""
        self._kernel, self._baseline = LoadedKernel(library), None

    def load_baseline(self, name: str) -> None:
        """Takes a trusted implementation."""
        if name not in BASELINES:
            raise KernelError(f"no baseline {name!r}; there are {', '.join(sorted(BASELINES))}")
        self._kernel, self._baseline = None, name

    def requirements(
        self, dimensions: Mapping[str, int], runtime: Mapping[str, int]
    ) -> dict[str, Any]:
        """What the kernel asks for; nothing for a baseline."""
        if self._kernel is None:
            return dict.fromkeys(
                ("signal_words", "window_bytes", "scratch_bytes", "host_collectives"), 0
            )
        wanted = self._kernel.requirements(dimensions, runtime, self._rank, self._ranks)
        return {
            "signal_words": wanted.signal_words,
            "window_bytes": wanted.window_bytes,
            "scratch_bytes": wanted.scratch_bytes,
            "host_collectives": int(bool(wanted.host_collectives)),
        }

    def setup(
        self, layout: GroupLayout, runtime: Mapping[str, int], descriptors: Sequence[int]
    ) -> None:
        """Maps the buffers and sets the kernel up."""
        try:
            memory = RankMemory(layout, self._rank, descriptors)
        except OSError as error:
            raise KernelError(str(error), FailureKind.OUT_OF_MEMORY) from error
        self._memory = memory
        if self._baseline is not None:
            self._setup_baseline(memory)
            return
        if self._kernel is None:
            raise KernelError("no kernel is loaded")
        context, self._keep = build_context(memory, runtime, self._threads)
        host = self._host.face()
        outputs = [t.dtype for t in layout.ranks[self._rank].sets[0] if t.role != "input"]
        self._harness.equip(context, host, outputs[0] if outputs else DType.FLOAT32)
        self._keep += [context, host]
        self._state = self._harness.setup(self._kernel.setup, context)
        self._run = self._kernel.run

    def _setup_baseline(self, memory: RankMemory) -> None:
        try:
            call = BASELINES[str(self._baseline)](BaselineProblem(memory, self._host))
        except (KeyError, ValueError, RuntimeError) as error:
            raise KernelError(
                f"baseline {self._baseline} does not fit this workload: {error}"
            ) from error
        function = abi.RunFunction(self._as_run(call))
        self._keep = [function]
        self._state, self._run = None, _address(function)

    def _as_run(self, call: BaselineCall) -> Any:
        def run(_state: int | None, set_index: int, _epoch: int, _stream: int | None) -> int:
            try:
                call(set_index)
            except Exception as error:
                # The caller is C: the exception becomes a code, as for any kernel.
                self._harness.fail(f"{type(error).__name__}: {error}")
                return 1
            return 0

        return run

    def sample(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Makes calls and times them."""
        if self._memory is None:
            raise KernelError("setup must come before a call")
        calls = int(request["calls"])
        ends = (ctypes.c_uint64 * calls)()
        arguments = abi.SampleArguments(
            run=self._run,
            state=self._state,
            control=self._control,
            rank=self._rank,
            ranks=self._ranks,
            sets=self._memory.layout.sets,
            first_set=request["first_set"],
            calls=calls,
            epoch=request["epoch"],
            gate=request["gate"],
            delay_ns=request["delay_ns"],
            deadline_ns=request["deadline_ns"],
            ends_ns=ctypes.addressof(ends),
        )
        before = _thread_count()
        self._harness.sample(arguments)
        rate = self._harness.tick_rate
        return {
            "start_ns": arguments.start_ns,
            "ends_ns": list(ends),
            "ticks_ns": round(arguments.ticks * 1e9 / rate) if rate else 0,
            "cpu_ns": arguments.cpu_ns,
            "minor_faults": arguments.minor_faults,
            "involuntary_switches": arguments.involuntary_switches,
            "threads_before": before,
            "threads_after": _thread_count(),
        }

    def teardown(self) -> None:
        """Tears the kernel down and unmaps the buffers."""
        memory, self._memory = self._memory, None
        if memory is None:
            raise KernelError("there is nothing to tear down")
        if self._kernel is not None:
            self._harness.teardown(self._kernel.teardown, self._state)
        self._state, self._run, self._keep = None, 0, []
        memory.close()


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _thread_count() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names only, on the way to a timing
