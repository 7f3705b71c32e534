"""What a rank has on the CPU: mapped memory, gloo, the BLAS inside torch, and the harness's clocks."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.baselines import BASELINES, BaselineProblem
from kerneltui.evaluation.worker_host import HostCollectives
from kerneltui.evaluation.worker_kernel import (
    BaselineCall,
    CHarness,
    KernelError,
    SampleCall,
    address_of,
    no_needs,
)
from kerneltui.evaluation.worker_memory import HostMapper, RankMemory
from kerneltui.targets.errors import FailureKind
from kerneltui.targets.windows import DType, GroupLayout

__all__ = ["CpuMachine"]

_TICK_CALIBRATION_NS = 2_000_000


class CpuMachine:
    """The `Machine` of a rank on the CPU.

    Args:
        harness: The built harness, loaded.
        host: Collectives.
        blas: The library that holds the vendor's `sgemm_` and `dgemm_`.
        control: Address of the control page.
        threads: CPU threads that the rank may use.
    """

    def __init__(
        self,
        harness: CHarness,
        host: HostCollectives,
        blas: ctypes.CDLL,
        *,
        control: int,
        threads: int,
    ) -> None:
        self.harness = harness
        self.threads = threads
        self._host = host
        self._control = control
        library = harness.library
        library.ht_tick_rate.restype = ctypes.c_double
        library.ht_tick_rate.argtypes = (ctypes.c_uint64,)
        self._tick_rate = float(library.ht_tick_rate(_TICK_CALIBRATION_NS))
        self._vendor_self = abi.VendorSelf(address_of(blas.sgemm_), address_of(blas.dgemm_), 0)
        self._vendor = abi.Vendor(
            address_of(library.ht_gemm),
            ctypes.cast(ctypes.pointer(self._vendor_self), ctypes.c_void_p),
        )

    def map(self, layout: GroupLayout, rank: int, descriptors: Sequence[int]) -> RankMemory:
        """Maps the buffers of a rank."""
        try:
            return RankMemory(layout, rank, descriptors, HostMapper())
        except OSError as error:
            raise KernelError(str(error), FailureKind.OUT_OF_MEMORY) from error

    def equip(self, context: abi.Context, dtype: DType, needs: abi.Requirements) -> list[Any]:
        """Puts vendor, host and fail into a context."""
        host = self._host.face()
        self._vendor_self.dtype = abi.DTYPE_CODES[dtype]
        context.vendor = ctypes.pointer(self._vendor)
        context.host = ctypes.pointer(host)
        context.fail = address_of(self.harness.library.ht_fail)
        context.fail_self = ctypes.cast(ctypes.pointer(self.harness.failure), ctypes.c_void_p)
        return [host]

    def baseline_needs(self, name: str) -> abi.Requirements:
        """Nothing, for all that there are."""
        if name not in BASELINES:
            raise KernelError(f"no baseline {name!r}; there are {', '.join(sorted(BASELINES))}")
        return no_needs()

    def baseline(self, name: str, memory: RankMemory) -> BaselineCall:
        """Sets a trusted implementation up."""
        return BASELINES[name](BaselineProblem(memory, self._host))

    def sample(self, request: Mapping[str, Any], call: SampleCall) -> dict[str, Any]:
        """Makes calls and times them."""
        calls, layout = int(request["calls"]), call.layout
        ends = (ctypes.c_uint64 * calls)()
        arguments = abi.SampleArguments(
            run=call.run,
            state=call.state,
            control=self._control,
            rank=self._host.rank,
            ranks=self._host.ranks,
            sets=layout.sets,
            first_set=request["first_set"],
            calls=calls,
            epoch=request["epoch"],
            gate=request["gate"],
            delay_ns=request["delay_ns"],
            deadline_ns=request["deadline_ns"],
            ends_ns=ctypes.addressof(ends),
        )
        self.harness.sample(arguments)
        rate = self._tick_rate
        return {
            "start_ns": arguments.start_ns,
            "ends_ns": list(ends),
            "ticks_ns": round(arguments.ticks * 1e9 / rate) if rate else 0,
            "cpu_ns": arguments.cpu_ns,
            "minor_faults": arguments.minor_faults,
            "involuntary_switches": arguments.involuntary_switches,
        }

    def after_setup(self) -> None:
        """The limits of the process are enough."""

    def special(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """There is nothing that only the CPU is asked."""
        raise KernelError(f"unknown request {message['do']!r}")
