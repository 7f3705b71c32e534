"""What a rank has on a GPU: mapped device memory, streams, cuBLAS, NCCL, and the device's clock."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.worker_baseline import BaselineCall, PreparedBaseline
from kerneltui.evaluation.worker_compilers import CompilerHelper
from kerneltui.evaluation.worker_cuda_abi import (
    SIDE_STREAMS,
    CudaSampleArguments,
    Device,
    Place,
)
from kerneltui.evaluation.worker_cuda_baselines import CUDA_BASELINES, CudaProblem
from kerneltui.evaluation.worker_cuda_launches import read_launches
from kerneltui.evaluation.worker_cuda_library import cublas_functions
from kerneltui.evaluation.worker_cuda_memory import DeviceMapper
from kerneltui.evaluation.worker_cuda_nccl import Nccl, NcclFace
from kerneltui.evaluation.worker_cuda_python import cuda_face
from kerneltui.evaluation.worker_cuda_rates import measure_flag, measure_rates
from kerneltui.evaluation.worker_cuda_results import check_result
from kerneltui.evaluation.worker_cuda_taken import TakenMemory
from kerneltui.evaluation.worker_cuda_windows import NcclWindows
from kerneltui.evaluation.worker_kernel import (
    CHarness,
    KernelError,
    SampleCall,
    address_of,
)
from kerneltui.evaluation.worker_memory import RankMemory
from kerneltui.evaluation.worker_python_context import PythonFace
from kerneltui.evaluation.worker_serving import CacheEmptier, serving_of
from kerneltui.model.workload import Role
from kerneltui.targets.cuda import device_memory, driver
from kerneltui.targets.cuda.packages import Nccl as NcclHeader
from kerneltui.targets.errors import FailureKind, MemoryFailure
from kerneltui.targets.windows import DType, GroupLayout

__all__ = ["CudaMachine"]

_pointer, _u32, _u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64

_PATIENCE_NS, _LESS_PATIENCE_NS = 20_000_000, 5_000_000
_OPEN_FIRST = 2


class CudaMachine:
    """The `Machine` of a rank on a GPU.

    Args:
        harness: The built harness, loaded.
        rank: Of this process.
        ranks: How many there are.
        devices: The GPU of each rank.
        control: Address of the control page.
        threads: CPU threads that the rank may use.
        device_bytes: Memory that a kernel may take beyond its buffers.
        nccl_header: NCCL's header that kernels are compiled against, or None.
        seal: Takes from the process what only connecting needs.
        helper: Compiles for Python kernels, if one may come.

    Raises:
        KernelError: If the device cannot be used.
    """

    def __init__(
        self,
        harness: CHarness,
        rank: int,
        ranks: int,
        *,
        devices: Sequence[int],
        control: int,
        threads: int,
        device_bytes: int,
        nccl_header: NcclHeader | None,
        seal: Callable[[], None],
        helper: CompilerHelper | None = None,
    ) -> None:
        self.harness = harness
        self._check = partial(check_result, harness)
        self.threads = threads
        self._rank, self._ranks = rank, ranks
        self._devices = tuple(devices)
        self._control = control
        self._seal: Callable[[], None] | None = seal
        self._helper = helper
        self._windows: NcclWindows | None = None
        self._memory: RankMemory | None = None
        self._mapper: DeviceMapper | None = None
        self._offered: device_memory.Mapping | None = None
        self._unheld = False
        self._emptier = CacheEmptier(self._devices[rank])
        library = harness.library
        library.ht_free_bytes.restype = _u64
        self._taken = TakenMemory(devices[rank], device_bytes, library.ht_free_bytes)
        library.ht_allocate.restype = _pointer
        self.device = Device()
        code = ctypes.c_int32()
        result = library.ht_open_device(
            self._devices[rank],
            ctypes.byref(self.device),
            ctypes.byref(harness.failure),
            ctypes.byref(code),
        )
        self._check(result, code.value)
        self._nccl = Nccl(rank, ranks, harness.failure, nccl_header)
        self._vendor_self = cublas_functions()
        self._vendor = abi.Vendor(address_of(library.ht_gemm), ctypes.addressof(self._vendor_self))
        self._host = abi.Host(
            all_gather=address_of(library.ht_all_gather),
            barrier=address_of(library.ht_barrier),
            self=ctypes.addressof(self._nccl.face),
        )

    @property
    def nccl(self) -> NcclFace:
        """What the harness knows of NCCL."""
        return self._nccl.face

    def map(self, layout: GroupLayout, rank: int, descriptors: Sequence[int]) -> RankMemory:
        """Maps the buffers of a rank, and those that its peers share."""
        if self._seal is not None and self._windows is None:
            self._seal()
            self._seal = None
        mapper = self._mapper = DeviceMapper(self._devices[rank], self.harness)
        own, self._offered = self._offered, None
        if layout.offered and own is None:
            raise KernelError("this rank has offered no memory for this shape")
        try:
            offered = mapper.adopt(own) if own is not None else 0
            self._memory = RankMemory(layout, rank, descriptors, mapper, offered)
        except OSError as error:
            raise KernelError(str(error), FailureKind.OUT_OF_MEMORY) from error
        self._taken.begin()
        return self._memory

    def equip(self, context: abi.Context, dtype: DType, needs: abi.Requirements) -> list[Any]:
        """Puts streams, vendor, host and fail into a context."""
        if needs.side_streams > SIDE_STREAMS:
            raise KernelError(f"{needs.side_streams} side streams; there are {SIDE_STREAMS}")
        code = ctypes.c_int32()
        result = self.harness.library.ht_side_streams(
            ctypes.byref(self.device),
            _u32(needs.side_streams),
            ctypes.byref(self.harness.failure),
            ctypes.byref(code),
        )
        self._check(result, code.value)
        self._vendor_self.dtype = abi.DTYPE_CODES[dtype]
        context.vendor = ctypes.pointer(self._vendor)
        context.host = ctypes.pointer(self._host)
        context.stream = self.device.stream
        context.side_streams = ctypes.addressof(self.device) + Device.side.offset
        context.fail = address_of(self.harness.library.ht_fail)
        context.fail_self = ctypes.addressof(self.harness.failure)
        if (needs.nccl_windows or needs.gin_signals) and self._windows is not None:
            assert self._memory is not None and self._mapper is not None
            try:  # NCCL would ask its peer, whose refusal it takes for silence
                device_memory.try_passing_on(self._memory.symmetric[self._rank])
            except driver.DriverError as error:
                reason = f"no NCCL windows: the driver does not pass shared buffers on: {error}"
                raise KernelError(reason) from error
            self._mapper.before_close = self._windows.end
            self._windows.make(context, self._memory, needs)
        return []

    def python_face(self, context: abi.Context, needs: abi.Requirements) -> PythonFace:
        """Tensors, streams and flags; see `cuda_face`."""
        index = self._devices[self._rank]
        return cuda_face(
            index,
            context,
            needs,
            harness=self.harness,
            host=self._host,
            compiling=self.compiling,
        )

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Lets the helper run compilers."""
        if self._helper is not None:
            self._helper.allow(True)
        try:
            yield
        finally:
            if self._helper is not None:
                self._helper.allow(False)

    def after_setup(self) -> None:
        """Looks at errors that setup left, and at the memory that it took."""
        code = ctypes.c_int32()
        self.harness.failure.set = 0
        result = self.harness.library.ht_synchronize(
            ctypes.byref(self.harness.failure), ctypes.byref(code)
        )
        self._check(result, code.value)
        self._taken.add("kerneltui_setup")

    def baseline_needs(self, name: str) -> abi.Requirements:
        """What a trusted implementation asks for."""
        if name not in CUDA_BASELINES:
            known = ", ".join(sorted(CUDA_BASELINES))
            raise KernelError(f"no baseline {name!r} on GPUs; there are {known}")
        return abi.Requirements(
            abi_version=abi.ABI_VERSION,
            host_collectives=CUDA_BASELINES[name].collectives,
            graph_safe=1,
        )

    def baseline(self, name: str, memory: RankMemory) -> BaselineCall | PreparedBaseline:
        """Sets a trusted implementation up."""
        torch.cuda.set_device(self._devices[self._rank])
        library = self.harness.library
        problem = CudaProblem(
            memory,
            rank=self._rank,
            ranks=self._ranks,
            stream=torch.cuda.ExternalStream(int(self.device.stream)),
            all_gather=abi.GatherFunction(address_of(library.ht_all_gather)),
            collectives=self._host.self,
            harness=self.harness,
            vendor=self._vendor_self,
        )
        return CUDA_BASELINES[name].setup(problem)

    def sample(self, request: Mapping[str, Any], call: SampleCall) -> dict[str, Any]:
        """Makes calls and times them."""
        if request.get("evict"):
            self._emptier.empty(self.harness, self.device, self._check)
        ends = (_u64 * int(request["calls"]))()
        arguments = self._arguments(request, call, ends)
        if arguments.verifying:
            self._taken.look()
        self._check(self.harness.sample(arguments), arguments.code)
        if arguments.verifying:
            self._taken.add("kerneltui_run")
        self._unheld = bool(arguments.unheld)
        return {
            "start_ns": arguments.start_ns,
            "ends_ns": list(ends[: arguments.end_count]),
            "gate_ns": arguments.gate_ns,
            "go_ns": arguments.go_ns,
            "enqueue_ns": arguments.enqueue_ns,
            "unheld": self._unheld,
            "ticks_ns": arguments.ticks,
            "cpu_ns": arguments.cpu_ns,
            "minor_faults": arguments.minor_faults,
            "involuntary_switches": arguments.involuntary_switches,
        }

    def serve(self, request: Mapping[str, Any], call: SampleCall) -> dict[str, Any]:
        """Makes single calls, each after a pause; see `ht_serve`."""
        ends = (_u64 * 1)()
        arguments = self._arguments({**request, "calls": 1}, call, ends)
        serving = serving_of(arguments, request)
        if request["evict"]:
            serving.face.evict, serving.face.evict_bytes = self._emptier.zeros(self.harness)
        self._take(self.harness.library.ht_serve, arguments, ctypes.byref(serving.face))
        return {**serving.found(), "unheld": bool(arguments.unheld)}

    def sustain(self, request: Mapping[str, Any], call: SampleCall) -> dict[str, Any]:
        """Makes calls without a pause; see `ht_sustain`."""
        ends = (_u64 * 1)()
        arguments = self._arguments({**request, "calls": 1}, call, ends)
        calls, chunk = _u64(int(request["sustained_calls"])), _u64(int(request["chunk"]))
        self._take(
            self.harness.library.ht_sustain, arguments, ctypes.byref(arguments), calls, chunk
        )
        return {
            "elapsed_ns": ends[0] - arguments.start_ns,
            "enqueue_ns": arguments.enqueue_ns,
        }

    def launches(self, request: Mapping[str, Any], call: SampleCall) -> dict[str, Any]:
        """What a call launches; see `read_launches`."""
        run, stream = abi.RunFunction(call.run), int(self.device.stream)
        where = (request["first_set"], request["epoch"], stream)
        return read_launches(partial(run, call.state, *where), stream)

    def _take(self, function: Any, arguments: CudaSampleArguments, *rest: Any) -> None:
        """Calls a function of the harness that makes calls of the kernel."""
        function.restype = ctypes.c_int
        self.harness.failure.set = 0
        result = function(*rest, ctypes.byref(self.harness.failure))
        if 0 < result < abi.LATE:
            where = f"kerneltui_run, epoch {arguments.epoch + arguments.failed_call}"
            self.harness.check(result, arguments.code, where)
        if result == abi.LATE:
            raise KernelError(f"rank {arguments.late_rank} did not come", FailureKind.HANG)
        self._check(result, arguments.code)

    def _arguments(
        self, request: Mapping[str, Any], call: SampleCall, ends: ctypes.Array[ctypes.c_uint64]
    ) -> CudaSampleArguments:
        layout, memory = call.layout, self._memory
        assert memory is not None
        gates = (_pointer * self._ranks)(*(s + layout.gate_offset for s in memory.signals))
        inputs, outputs = self._places(memory)
        made = CudaSampleArguments(
            run=call.run,
            state=call.state,
            control=self._control,
            rank=self._rank,
            ranks=self._ranks,
            sets=int(request.get("sets", layout.sets)),
            first_set=request["first_set"],
            calls=int(request["calls"]),
            epoch=request["epoch"],
            gate=request["gate"],
            delay_ns=request.get("delay_ns", 0),
            deadline_ns=request["deadline_ns"],
            ends_ns=ctypes.addressof(ends),
            device=ctypes.addressof(self.device),
            gates=ctypes.addressof(gates),
            outputs=ctypes.addressof(outputs),
            output_count=len(outputs) // layout.sets,
            verifying=int(bool(request.get("verifying"))),
            patience_ns=_LESS_PATIENCE_NS if self._unheld else _PATIENCE_NS,
            hold=_OPEN_FIRST if request.get("open_first") else int(bool(request.get("hold"))),
            graph=int(bool(request.get("graph"))),
            inputs=ctypes.addressof(inputs),
            input_count=len(inputs) // layout.sets,
            masked=int(bool(request.get("masked"))),
        )
        made.keep = (gates, inputs, outputs)  # the structure holds their addresses alone
        return made

    def special(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Meets and connects the ranks; measures rates."""
        match message["do"]:
            case "meet":
                return {"meeting": self._nccl.meeting()}
            case "connect":
                word = self.harness.library.ht_allocate(_u64(4))
                self._nccl.connect(message["meeting"], word)
                return {}
            case "windows":
                self._windows = NcclWindows(message["library"], self._nccl)
                return {}
            case "offer":
                return {"descriptors": [self._offer(GroupLayout.from_json(message["layout"]))]}
            case "rates":
                kind = str(message["dtype"])
                return measure_rates(self._devices, self._rank, kind, self.harness)
            case "flag":  # of one for all: two processes on a GPU would take turns
                alone = self._rank != 0 or self._ranks == 1
                return {"ns": 0.0 if alone else measure_flag(self._devices, self.harness)}
            case other:
                raise KernelError(f"unknown request {other!r}")

    def _offer(self, layout: GroupLayout) -> int:
        """Makes the own symmetric file, which NCCL can pass on; a descriptor of it for the others."""
        if self._offered is not None:  # of a shape that was not set up in the end
            self._offered.close()
            self._offered = None
        device, nbytes = self._devices[self._rank], layout.ranks[self._rank].symmetric_bytes
        try:
            self._offered, descriptor = device_memory.create_mapped(device, nbytes)
        except MemoryFailure as error:
            raise KernelError(str(error), FailureKind.OUT_OF_MEMORY) from error
        except driver.DriverError as error:
            raise KernelError(f"no NCCL windows: {error}") from error
        return descriptor

    def _places(self, memory: RankMemory) -> tuple[ctypes.Array[Place], ctypes.Array[Place]]:
        """The inputs that this rank alone reads, and its outputs, as many for each buffer set."""
        inputs: list[Place] = []
        outputs: list[Place] = []
        for tensor in chain.from_iterable(memory.layout.ranks[self._rank].sets):
            place = Place(memory.address(tensor), tensor.nbytes)
            if tensor.role is not Role.INPUT:
                outputs.append(place)
            elif not tensor.symmetric:
                inputs.append(place)
        return _array_of(inputs), _array_of(outputs)


def _array_of(places: list[Place]) -> ctypes.Array[Place]:
    return (Place * len(places))(*places)
