"""What a rank has on the CPU: mapped memory, gloo, the BLAS inside torch, and the harness's clocks."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.baselines import BASELINES, BaselineProblem
from kerneltui.evaluation.worker_baseline import BaselineCall
from kerneltui.evaluation.worker_host import HostCollectives, bytes_at
from kerneltui.evaluation.worker_kernel import (
    CHarness,
    KernelError,
    SampleCall,
    address_of,
    no_needs,
)
from kerneltui.evaluation.worker_memory import HostMapper, RankMemory
from kerneltui.evaluation.worker_python_context import PythonFace
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

    def python_face(self, context: abi.Context, needs: abi.Requirements) -> PythonFace:
        """Tensors over shared memory, gloo, and the harness's loads and stores."""
        library, host = self.harness.library, self._host

        def all_gather(send: int, receive: int, counts: Sequence[int]) -> int:
            sizes = list(counts)
            host.all_gather(bytes_at(send, sizes[host.rank]), bytes_at(receive, sum(sizes)), sizes)
            return 0

        def barrier() -> int:
            host.barrier()
            return 0

        def raise_flag(place: int, value: int) -> None:
            library.ht_raise(ctypes.c_void_p(place), ctypes.c_uint64(value))

        def wait_flag(place: int, value: int) -> None:
            library.ht_wait(ctypes.c_void_p(place), ctypes.c_uint64(value))

        return PythonFace(
            device=torch.device("cpu"),
            view=bytes_at,
            stream=None,
            side_streams=(),
            all_gather=all_gather,
            barrier=barrier,
            raise_flag=raise_flag,
            wait_flag=wait_flag,
            setting_up=self.compiling,
            before_calls=lambda: None,
            after_calls=lambda: None,
        )

    def compiling(self) -> AbstractContextManager[None]:
        """There is no compiler for Python kernels here."""
        return nullcontext()

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
            sets=int(request.get("sets", layout.sets)),
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

    def serve(self, request: Mapping[str, Any], call: SampleCall) -> dict[str, Any]:
        """Makes single calls, each after a pause; a call is over when it returns."""
        count = len(request["gaps_ns"])
        found: list[int] = []
        for number in range(count):
            time.sleep(request["gaps_ns"][number] / 1e9)
            one = {
                **request,
                "calls": 1,
                "delay_ns": 0,
                "first_set": (request["first_set"] + number) % call.layout.sets,
                "epoch": request["epoch"] + number,
                "gate": request["gate"] + number,
            }
            seen = self.sample(one, call)
            found.append(seen["ends_ns"][0] - seen["start_ns"])
        return {"launch_ns": [], "latency_ns": found[::2], "device_ns": found[1::2]}

    def sustain(self, request: Mapping[str, Any], call: SampleCall) -> dict[str, Any]:
        """A CPU has no clocks that this could show."""
        raise KernelError("calls without a pause are measured on GPUs only")

    def launches(self, request: Mapping[str, Any], call: SampleCall) -> dict[str, Any]:
        """A CPU launches nothing."""
        raise KernelError("launches are those of GPUs")

    def after_setup(self) -> None:
        """The limits of the process are enough."""

    def special(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """There is nothing that only the CPU is asked."""
        raise KernelError(f"unknown request {message['do']!r}")
