"""A Python kernel in a rank: what it is given, and how its functions become those of the contract."""

from __future__ import annotations

import gc
import importlib.util
import io
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch import Tensor

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.inputs import torch_dtype
from kerneltui.evaluation.worker_guard import Guard, use_plain_arithmetic
from kerneltui.evaluation.worker_kernel import KernelError, Machine, address_of
from kerneltui.evaluation.worker_loaded import (
    KernelCall,
    LoadableKernel,
    LoadedKernel,
    output_dtype,
)
from kerneltui.evaluation.worker_memory import RankMemory, build_context
from kerneltui.model.workload import Role
from kerneltui.targets.errors import FailureKind
from kerneltui.targets.python import is_python

__all__ = ["Context", "Problem", "PythonFace", "PythonKernel", "load_kernel"]

_NAME = "kerneltui_kernel"
_FIELDS = {
    "signal_words",
    "scratch_bytes",
    "window_bytes",
    "side_streams",
    "host_collectives",
    "graph_safe",
}
_LONGEST_REASON = 320  # with the words around it, one line of a failure


@dataclass(frozen=True, slots=True)
class Problem:
    """What `requirements` is asked about.

    Attributes:
        dimensions: The shape.
        tunables: The run-time tunables.
        rank: Of this process.
        ranks: How many there are.
    """

    dimensions: Mapping[str, int]
    tunables: Mapping[str, int]
    rank: int
    ranks: int


@dataclass(frozen=True, slots=True)
class Context:
    """What `setup` and `run` get. All tensors lie on the memory that the judge looks at.

    Attributes:
        dimensions: The shape.
        tunables: The run-time tunables.
        rank: Of this process.
        ranks: How many there are.
        threads: CPU threads that this rank may use.
        device: Where the tensors are.
        buffers: For each buffer set the tensors of this rank by name, in their local shapes.
        peers: For each buffer set the symmetric tensors by name: that of rank q at place q.
        offsets: Where the shard of a tensor begins in the whole tensor, by name.
        outputs: Names of the outputs.
        scratch: Private bytes.
        window: The further symmetric memory of every rank, as bytes.
        signals: The signal area of every rank, as int64 words.
        stream: The caller's stream, which is the current one; None on the CPU.
        side_streams: As many as were asked for. Join them before `run` returns.
        all_gather: `all_gather(send, receive)` gathers flat parts, rank after rank, by the host library.
        barrier: `barrier()` waits for all ranks, by the host library.
        raise_flag: `raise_flag(peer, word, value)` stores into the signal area of a rank, after all that
            this rank stored before.
        wait_flag: `wait_flag(word, value)` waits until a word of one's own area is at least so large.
    """

    dimensions: Mapping[str, int]
    tunables: Mapping[str, int]
    rank: int
    ranks: int
    threads: int
    device: torch.device
    buffers: tuple[Mapping[str, Tensor], ...]
    peers: tuple[Mapping[str, tuple[Tensor, ...]], ...]
    offsets: Mapping[str, tuple[int, ...]]
    outputs: tuple[str, ...]
    scratch: Tensor
    window: tuple[Tensor, ...]
    signals: tuple[Tensor, ...]
    stream: Any
    side_streams: tuple[Any, ...]
    all_gather: Callable[[Tensor, Tensor], None]
    barrier: Callable[[], None]
    raise_flag: Callable[[int, int, int], None]
    wait_flag: Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class PythonFace:
    """What a machine lends to Python kernels.

    Attributes:
        device: Where buffers are.
        view: A flat uint8 tensor over memory at an address.
        stream: The caller's stream, or None.
        side_streams: Those that were asked for.
        all_gather: From address, to address, bytes of each rank; 0 or an error code.
        barrier: 0 or an error code.
        raise_flag: Stores a value at an address, after everything before it.
        wait_flag: Waits until the word at an address is at least a value.
        setting_up: Around the kernel's `setup`: compilers may run.
        before_calls: When `setup` is done.
        after_calls: Before `teardown`.
    """

    device: torch.device
    view: Callable[[int, int], Tensor]
    stream: Any
    side_streams: tuple[Any, ...]
    all_gather: Callable[[int, int, Sequence[int]], int]
    barrier: Callable[[], int]
    raise_flag: Callable[[int, int], None]
    wait_flag: Callable[[int, int], None]
    setting_up: Callable[[], AbstractContextManager[None]]
    before_calls: Callable[[], None]
    after_calls: Callable[[], None]


def load_kernel(path: str, machine: Machine) -> LoadableKernel:
    """Loads a build: a library, or a Python kernel.

    Raises:
        KernelError: If it cannot be loaded.
    """
    if is_python(Path(path)):
        return PythonKernel(path, machine.compiling)
    return LoadedKernel(path)


class PythonKernel:
    """The functions of a Python kernel.

    Args:
        path: The file.
        compiling: Within it, compilers may run.

    Raises:
        KernelError: If it cannot be imported, or has no `run`.
    """

    def __init__(self, path: str, compiling: Callable[[], AbstractContextManager[None]]) -> None:
        self._path = path
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # a rank may end without a farewell
        use_plain_arithmetic()
        self._guard = Guard()
        with compiling():
            self._module = self._imported()
        if not callable(getattr(self._module, "run", None)):
            raise KernelError("the kernel has no function run(context, state, set, epoch)")
        self._face: PythonFace | None = None
        self._context: Context | None = None
        self._state: Any = None

    def requirements(
        self, dimensions: Mapping[str, int], runtime: Mapping[str, int], rank: int, ranks: int
    ) -> abi.Requirements:
        """Asks what the kernel needs for a shape.

        Raises:
            KernelError: If it refuses, or asks for what there is not.
        """
        problem = Problem(_frozen(dimensions), _frozen(runtime), rank, ranks)
        asked = self._call("requirements", problem) or {}
        if not isinstance(asked, Mapping):
            raise KernelError("requirements returned something that is no dict")
        unknown = [str(name) for name in asked if name not in _FIELDS]
        if unknown:
            known = ", ".join(sorted(_FIELDS))
            raise KernelError(f"requirements asks for '{unknown[0]}'; there are {known}")
        wanted = abi.Requirements(abi_version=abi.ABI_VERSION)
        for name, value in asked.items():
            if isinstance(value, float) or not 0 <= int(value) < 1 << 48:
                raise KernelError(f"requirements: {name} is {value}")
            setattr(wanted, name, int(value))
        return wanted

    def set_up(
        self,
        machine: Machine,
        memory: RankMemory,
        runtime: Mapping[str, int],
        needs: abi.Requirements,
    ) -> KernelCall:
        """Gives it its buffers and calls its `setup`.

        Raises:
            KernelError: If it fails.
        """
        native, keep = build_context(memory, runtime, machine.threads)
        keep += [native, machine.equip(native, output_dtype(memory), needs)]
        face = machine.python_face(native, needs)
        self._face, self._context = face, _context(memory, runtime, machine.threads, face)
        with face.setting_up(), torch.no_grad():
            self._state = self._call("setup", self._context)
        gc.collect()
        gc.freeze()  # a sweep over all of torch would take longer than a sample
        face.before_calls()
        self.check()
        function = abi.RunFunction(self._as_run(machine))
        return KernelCall(address_of(function), None, [*keep, function])

    def check(self) -> None:
        """Looks whether the kernel changed what is not its own.

        Raises:
            KernelError: If it did.
        """
        stream = self._face.stream if self._face is not None else None
        changed = self._guard.changed(stream)
        if changed:
            raise KernelError(f"the kernel changed {changed}")

    def tear_down(self, machine: Machine, state: int | None) -> None:
        """Calls its `teardown` and forgets its tensors."""
        face, context = self._face, self._context
        self._face = self._context = None
        mine, self._state = self._state, None
        if face is not None and context is not None:
            face.after_calls()
            if hasattr(self._module, "teardown"):
                self._call("teardown", context, mine)
        gc.unfreeze()

    def _imported(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location(_NAME, self._path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_NAME] = module  # where Triton looks for the text of a function
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            raise KernelError(f"cannot load the kernel: {self._reason(error)}") from error
        return module

    def _call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._module, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except BaseException as error:
            kind = _kind(error)
            raise KernelError(f"{name} raised {self._reason(error)}", kind) from error

    def _as_run(self, machine: Machine) -> Callable[[int | None, int, int, int | None], int]:
        run, context, state = self._module.run, self._context, self._state
        fail = machine.harness.fail

        def call(_state: int | None, set_index: int, epoch: int, _stream: int | None) -> int:
            try:
                run(context, state, set_index, epoch)
            except BaseException as error:
                # The caller is C: whatever it is, SystemExit too, becomes a code.
                fail(self._reason(error))
                return 1
            return 0

        return call

    def _reason(self, error: BaseException) -> str:
        """An exception as one line, with the line of the kernel that it came from."""
        text = " ".join(str(error).split())
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame.lineno for frame in frames if frame.filename == self._path and frame.lineno]
        where = f" (line {own[-1]})" if own else ""
        name = type(error).__name__
        return f"{name}: {text[:_LONGEST_REASON]}{where}" if text else f"{name}{where}"


def _kind(error: BaseException) -> FailureKind:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate" in str(error):
        return FailureKind.OUT_OF_MEMORY
    return FailureKind.ERROR


def _frozen(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(values))


def _context(
    memory: RankMemory, runtime: Mapping[str, int], threads: int, face: PythonFace
) -> Context:
    layout, rank = memory.layout, memory.rank
    ranks = len(layout.ranks)
    buffers: list[Mapping[str, Tensor]] = []
    peers: list[Mapping[str, tuple[Tensor, ...]]] = []
    for index, row in enumerate(layout.ranks[rank].sets):
        own: dict[str, Tensor] = {}
        others: dict[str, tuple[Tensor, ...]] = {}
        for tensor in row:
            kind = torch_dtype(tensor.dtype)
            flat = face.view(memory.address(tensor), tensor.nbytes)
            own[tensor.name] = flat.view(kind).view(tensor.local_shape)
            if tensor.symmetric:
                places = [layout.ranks[q].tensor(index, tensor.name) for q in range(ranks)]
                others[tensor.name] = tuple(
                    face.view(memory.address(place, q), place.nbytes)
                    .view(kind)
                    .view(place.local_shape)
                    for q, place in enumerate(places)
                )
        buffers.append(_frozen(own))
        peers.append(_frozen(others))
    row = layout.ranks[rank].sets[0]
    words = 8 * layout.signal_words

    def all_gather(send: Tensor, receive: Tensor) -> None:
        total, mine = receive.numel(), send.numel()
        if not (send.is_contiguous() and receive.is_contiguous() and send.dtype == receive.dtype):
            raise ValueError("all_gather takes contiguous tensors of one dtype")
        counts = _shares(memory, total, mine)
        size = send.element_size()
        code = face.all_gather(send.data_ptr(), receive.data_ptr(), [c * size for c in counts])
        if code:
            raise RuntimeError(f"all_gather failed with {code}")

    def barrier() -> None:
        code = face.barrier()
        if code:
            raise RuntimeError(f"barrier failed with {code}")

    def word_of(owner: int, word: int) -> int:
        if not 0 <= word < layout.signal_words:
            raise IndexError(f"signal word {word} of {layout.signal_words}")
        return memory.signals[owner] + 8 * word

    return Context(
        dimensions=_frozen(layout.dimensions),
        tunables=_frozen(runtime),
        rank=rank,
        ranks=ranks,
        threads=threads,
        device=face.device,
        buffers=tuple(buffers),
        peers=tuple(peers),
        offsets=_frozen({t.name: tuple(t.origin) for t in row}),
        outputs=tuple(t.name for t in row if t.role is not Role.INPUT),
        scratch=face.view(memory.scratch, layout.scratch_bytes),
        window=tuple(
            face.view(base + layout.window.offset, layout.window.nbytes)
            for base in memory.symmetric
        ),
        signals=tuple(face.view(base, words).view(torch.int64) for base in memory.signals),
        stream=face.stream,
        side_streams=face.side_streams,
        all_gather=all_gather,
        barrier=barrier,
        raise_flag=lambda peer, word, value: face.raise_flag(word_of(peer, word), value),
        wait_flag=lambda word, value: face.wait_flag(word_of(rank, word), value),
    )


def _shares(memory: RankMemory, total: int, mine: int) -> list[int]:
    """Elements that each rank gives: as rows are shared out, if `mine` is that share; else equal."""
    layout, rank = memory.layout, memory.rank
    ranks = len(layout.ranks)
    if mine * ranks == total:
        return [mine] * ranks
    for tensor in layout.ranks[rank].sets[0]:
        rows = [layout.ranks[q].tensor(0, tensor.name).local_shape[0] for q in range(ranks)]
        whole = sum(rows)
        if whole and total % whole == 0 and rows[rank] * (total // whole) == mine:
            return [count * (total // whole) for count in rows]
    raise ValueError(f"all_gather of {mine} into {total} elements is no share of {ranks} ranks")
