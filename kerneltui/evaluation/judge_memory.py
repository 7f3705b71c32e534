"""The memory of a group as the judge sees it: tensors over it, guard bands, poison. Judge only (torch)."""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Iterator, Sequence
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from kerneltui.evaluation.cuda_tensors import device_bytes
from kerneltui.evaluation.inputs import torch_dtype
from kerneltui.model.workload import Role
from kerneltui.targets.cpu.memory import GroupMemory
from kerneltui.targets.cuda import device_memory, driver
from kerneltui.targets.errors import FailureKind, RankFailure
from kerneltui.targets.patterns import (
    Poison,
    broken_guards,
    canary,
    poison,
    poison_block,
    write_guards,
)
from kerneltui.targets.windows import GroupLayout, RankLayout, Span, TensorLayout

__all__ = ["DeviceMemory", "HostMemory", "JudgeMemory"]

_BLOCK_BYTES = 64 << 20


class JudgeMemory(Protocol):
    """What the judge does with the memory of a group."""

    layout: GroupLayout

    def tensor(self, rank: int, tensor: TensorLayout) -> Tensor:
        """A tensor over the memory of a rank, in the layout that the rank sees."""
        ...

    def write_guards(self, key: int) -> None:
        """Writes all guard bands."""
        ...

    def broken_guards(self, key: int) -> Iterator[tuple[str, int, Span]]:
        """Guard bands that were overwritten: which file, of which rank, which bytes."""
        ...

    def poison(self, rank: int, tensor: TensorLayout, pattern: Poison, key: int) -> None:
        """Overwrites a tensor."""
        ...

    def digest(self, index: int) -> str:
        """A digest of all outputs of a buffer set."""
        ...

    def close(self) -> None:
        """Lets the memory go."""
        ...


class HostMemory:
    """Memory in files that are mapped here.

    Args:
        memory: The files.
    """

    def __init__(self, memory: GroupMemory) -> None:
        self._memory = memory
        self.layout = memory.layout

    @classmethod
    def attach(cls, layout: GroupLayout, descriptors: Sequence[int]) -> HostMemory:
        """Takes over descriptors that the engine sent."""
        return cls(GroupMemory.attach(layout, descriptors))

    def tensor(self, rank: int, tensor: TensorLayout) -> Tensor:
        """A tensor over the memory of a rank, in the layout that the rank sees."""
        count = prod(tensor.local_shape)
        if count == 0:
            return torch.empty(tensor.local_shape, dtype=torch_dtype(tensor.dtype))
        flat = torch.frombuffer(
            self._memory.file_of(rank, tensor),
            dtype=torch_dtype(tensor.dtype),
            count=count,
            offset=tensor.offset,
        )
        return flat.view(tensor.local_shape)

    def write_guards(self, key: int) -> None:
        """Writes all guard bands."""
        for rank, layout in enumerate(self.layout.ranks):
            write_guards(self._memory.private(rank), layout.private_guards, key)
            write_guards(self._memory.symmetric(rank), layout.symmetric_guards, key)

    def broken_guards(self, key: int) -> Iterator[tuple[str, int, Span]]:
        """Guard bands that were overwritten."""
        for rank, layout in enumerate(self.layout.ranks):
            for name, buffer, guards in (
                ("private", self._memory.private(rank), layout.private_guards),
                ("symmetric", self._memory.symmetric(rank), layout.symmetric_guards),
            ):
                for span in broken_guards(buffer, guards, key):
                    yield name, rank, span

    def poison(self, rank: int, tensor: TensorLayout, pattern: Poison, key: int) -> None:
        """Overwrites a tensor."""
        poison(self._memory.file_of(rank, tensor), tensor, pattern, key)

    def digest(self, index: int) -> str:
        """A digest of all outputs of a buffer set."""
        digest = hashlib.blake2b(digest_size=12)
        for rank, tensor in _outputs(self.layout, index):
            view = self._memory.view(rank, tensor)
            digest.update(view)
            view.release()
        return digest.hexdigest()

    def close(self) -> None:
        """Lets the memory go."""
        try:
            self._memory.close()
        except BufferError:  # a tensor over the memory hangs in a cycle of references
            gc.collect()
            self._memory.close()


class DeviceMemory:
    """Memory on GPUs: rank r's on device r, made here or offered, mapped here for all devices.

    Args:
        layout: Where everything lies.
        offered: Descriptors of the symmetric files, by rank, if ranks made them; closed here. Whoever
            holds such a file had a mapping of it anyway; what it holds is looked at.

    Raises:
        MemoryFailure: If a GPU has no room.
        RankFailure: If what a rank offered is not what the layout says.
        DriverError: If the driver refuses.
    """

    def __init__(self, layout: GroupLayout, offered: Sequence[int] = ()) -> None:
        self.layout = layout
        self._offered = list(offered)
        self.descriptors: list[int] = []
        self._mappings: list[device_memory.Mapping] = []
        self._areas: list[tuple[Tensor, Tensor]] = []
        devices = tuple(range(len(layout.ranks)))
        torch.cuda.empty_cache()  # what the judge has no use for any more, others may need
        try:
            if len(self._offered) != (len(layout.ranks) if layout.offered else 0):
                raise ValueError(
                    f"{len(self._offered)} offered files for {len(layout.ranks)} ranks"
                )
            for rank, item in enumerate(layout.ranks):
                private = self._make(rank, item.private_bytes, devices)
                symmetric = self._make(rank, item.symmetric_bytes, devices, offered=layout.offered)
                signals = self._make(rank, layout.signal_bytes, devices)
                signals.zero_()
                self._areas.append((private, symmetric))
            _synchronize(devices)
        except BaseException:
            self.close()
            raise

    def tensor(self, rank: int, tensor: TensorLayout) -> Tensor:
        """A tensor over the memory of a rank, in the layout that the rank sees."""
        private, symmetric = self._areas[rank]
        area = symmetric if tensor.symmetric else private
        flat = area[tensor.offset : tensor.offset + tensor.nbytes]
        return flat.view(torch_dtype(tensor.dtype)).view(tensor.local_shape)

    def write_guards(self, key: int) -> None:
        """Writes all guard bands."""
        for _, _, band, span in self._bands():
            band.copy_(_canary(span, key))

    def broken_guards(self, key: int) -> Iterator[tuple[str, int, Span]]:
        """Guard bands that were overwritten."""
        for name, rank, band, span in self._bands():
            changed = band != _canary(span, key).to(band.device)
            if bool(changed.any()):
                places = changed.nonzero().flatten()
                first, last = int(places[0]), int(places[-1])
                yield name, rank, Span(span.offset + first, last - first + 1)

    def poison(self, rank: int, tensor: TensorLayout, pattern: Poison, key: int) -> None:
        """Overwrites a tensor."""
        flat = self.tensor(rank, tensor).view(-1).view(torch.uint8)
        if pattern is Poison.NAN:
            flat.fill_(0xFF)
            return
        block = torch.frombuffer(bytearray(poison_block(tensor.dtype, key)), dtype=torch.uint8)
        block = block[: flat.numel()].to(flat.device)
        whole = flat.numel() // block.numel() * block.numel()
        flat[:whole].view(-1, block.numel()).copy_(block)
        flat[whole:].copy_(block[: flat.numel() - whole])

    def digest(self, index: int) -> str:
        """A digest of all outputs of a buffer set."""
        digest = hashlib.blake2b(digest_size=12)
        for rank, tensor in _outputs(self.layout, index):
            flat = self.tensor(rank, tensor).view(-1).view(torch.uint8)
            for block in flat.split(_BLOCK_BYTES):
                digest.update(_sums(block).cpu().numpy().tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        """Lets the memory go."""
        self.drop_descriptors()
        self._areas = []
        if self._mappings:
            _synchronize(range(len(self.layout.ranks)))
        for mapping in self._mappings:
            mapping.close()
        self._mappings = []

    def drop_descriptors(self) -> None:
        """Closes the descriptors, when the engine has its own; the mappings stay."""
        for descriptor in (*self.descriptors, *self._offered):
            os.close(descriptor)
        self.descriptors, self._offered = [], []

    def _make(
        self, rank: int, nbytes: int, devices: tuple[int, ...], *, offered: bool = False
    ) -> Tensor:
        descriptor = self._offered.pop(0) if offered else device_memory.create_shared(rank, nbytes)
        self.descriptors.append(descriptor)
        try:
            mapping = device_memory.map_shared(
                descriptor, nbytes, devices, home=rank if offered else None
            )
        except driver.DriverError as error:
            if not offered:
                raise
            reason = f"rank {rank} offered memory that cannot be used: {error}"
            raise RankFailure(FailureKind.ERROR, rank, reason) from error
        self._mappings.append(mapping)
        return device_bytes(mapping.address, nbytes, torch.device("cuda", rank))

    def _bands(self) -> Iterator[tuple[str, int, Tensor, Span]]:
        for rank, layout in enumerate(self.layout.ranks):
            for name, area, guards in _guards(layout, *self._areas[rank]):
                for span in guards:
                    yield name, rank, area[span.offset : span.offset + span.nbytes], span


def _guards(
    layout: RankLayout, private: Tensor, symmetric: Tensor
) -> tuple[tuple[str, Tensor, tuple[Span, ...]], ...]:
    return (
        ("private", private, layout.private_guards),
        ("symmetric", symmetric, layout.symmetric_guards),
    )


def _canary(span: Span, key: int) -> Tensor:
    return torch.frombuffer(bytearray(canary(span, key)), dtype=torch.uint8)


def _outputs(layout: GroupLayout, index: int) -> Iterator[tuple[int, TensorLayout]]:
    for rank, item in enumerate(layout.ranks):
        for tensor in item.sets[index]:
            if tensor.role is not Role.INPUT and tensor.nbytes:
                yield rank, tensor


def _sums(block: Tensor) -> Tensor:
    """Two sums of a block of bytes that change with any byte, and with the order of words."""
    words = block[: block.numel() // 8 * 8].view(torch.int64)
    places = torch.arange(words.numel(), device=block.device, dtype=torch.int64)
    odd = places * 2 + 0x1E3779B97F4A7C15
    rest = block[words.numel() * 8 :].to(torch.int64)
    tail = (rest * torch.arange(1, rest.numel() + 1, device=block.device)).sum()
    return torch.stack([(words * odd).sum(), tail])


def _synchronize(devices: Sequence[int]) -> None:
    for device in devices:
        torch.cuda.synchronize(device)
