"""What a Python kernel is given: tensors over its buffers, streams, flags, collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from kerneltui.evaluation.inputs import torch_dtype
from kerneltui.evaluation.worker_memory import RankMemory
from kerneltui.model.workload import Role

__all__ = ["EXTENSION_NAMESPACE", "Context", "Problem", "PythonFace", "frozen", "make_context"]

EXTENSION_NAMESPACE = "kernel"
"""In which an extension of torch registers its operators."""


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
        extension: The operators of the kernel's extension of torch, or None.
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
    extension: Any
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


def frozen(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A mapping that a kernel cannot change."""
    return MappingProxyType(dict(values))


def make_context(
    memory: RankMemory,
    runtime: Mapping[str, int],
    threads: int,
    face: PythonFace,
    *,
    extended: bool,
) -> Context:
    """Makes what `setup` and `run` get.

    Args:
        memory: The buffers of all ranks, mapped.
        runtime: Values of the run-time tunables.
        threads: CPU threads that this rank may use.
        face: What the machine lends.
        extended: Whether an extension of torch was loaded.
    """
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
        buffers.append(frozen(own))
        peers.append(frozen(others))
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
        dimensions=frozen(layout.dimensions),
        tunables=frozen(runtime),
        rank=rank,
        ranks=ranks,
        threads=threads,
        device=face.device,
        buffers=tuple(buffers),
        peers=tuple(peers),
        offsets=frozen({t.name: tuple(t.origin) for t in row}),
        outputs=tuple(t.name for t in row if t.role is not Role.INPUT),
        scratch=face.view(memory.scratch, layout.scratch_bytes),
        window=tuple(
            face.view(base + layout.window.offset, layout.window.nbytes)
            for base in memory.symmetric
        ),
        signals=tuple(face.view(base, words).view(torch.int64) for base in memory.signals),
        stream=face.stream,
        side_streams=face.side_streams,
        extension=getattr(torch.ops, EXTENSION_NAMESPACE) if extended else None,
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
