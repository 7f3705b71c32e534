"""The buffers of one rank as the kernel sees them: mappings, and the context built on them."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kerneltui.evaluation.worker_abi import (
    ABI_VERSION,
    DTYPE_CODES,
    ROLE_CODES,
    BufferSet,
    Context,
    Tensor,
    named_values,
)
from kerneltui.targets.windows import GroupLayout, TensorLayout

__all__ = ["HostMapper", "Mapper", "RankMemory", "build_context"]

_PROT, _POPULATE = 3, 0x8000
_SHARED, _PRIVATE_ANONYMOUS = 0x01, 0x22
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class Mapper(Protocol):
    """Maps the buffers of a rank into its process."""

    def map(self, nbytes: int, descriptor: int) -> int:
        """Maps what a descriptor holds; its address.

        Raises:
            OSError: If there is no room.
        """
        ...

    def scratch(self, nbytes: int) -> int:
        """Makes memory that is this rank's alone; its address.

        Raises:
            OSError: If there is no room.
        """
        ...

    def close(self) -> None:
        """Unmaps everything."""
        ...


class RankMemory:
    """What a rank has mapped for one shape: its private file, everybody's symmetric and signal files.

    Args:
        layout: Where everything lies.
        rank: Whose view.
        descriptors: Private file of this rank, symmetric files by rank, signal files by rank. They
            are closed here; the mappings stay.
        mapper: How they are mapped.
        offered: Where the own symmetric file is mapped already, if this rank made it.

    Raises:
        OSError: If the address space or the memory is used up.
    """

    def __init__(
        self,
        layout: GroupLayout,
        rank: int,
        descriptors: Sequence[int],
        mapper: Mapper,
        offered: int = 0,
    ) -> None:
        self.layout = layout
        self.rank = rank
        self._mapper = mapper
        ranks = len(layout.ranks)
        try:
            if len(descriptors) != 1 + 2 * ranks:
                raise OSError(f"{len(descriptors)} descriptors for {ranks} ranks")
            self.private = mapper.map(layout.ranks[rank].private_bytes, descriptors[0])
            files = zip(layout.ranks, descriptors[1 : 1 + ranks], strict=True)
            self.symmetric = [
                offered if offered and peer == rank else mapper.map(item.symmetric_bytes, fd)
                for peer, (item, fd) in enumerate(files)
            ]
            self.signals = [mapper.map(layout.signal_bytes, fd) for fd in descriptors[1 + ranks :]]
            self.scratch = mapper.scratch(layout.scratch_bytes) if layout.scratch_bytes else 0
        except OSError:
            self.close()
            raise
        finally:
            for fd in descriptors:
                os.close(fd)

    def address(self, tensor: TensorLayout, rank: int | None = None) -> int:
        """Where a tensor lies in this process: the own one, or that of a peer."""
        if not tensor.symmetric:
            return self.private + tensor.offset
        return self.symmetric[self.rank if rank is None else rank] + tensor.offset

    def close(self) -> None:
        """Unmaps everything."""
        self._mapper.close()


class HostMapper:
    """Maps files into the address space of this process."""

    def __init__(self) -> None:
        self._mapped: list[tuple[int, int]] = []

    def map(self, nbytes: int, descriptor: int) -> int:
        """Maps a file, shared."""
        return self._map(nbytes, _SHARED, descriptor)

    def scratch(self, nbytes: int) -> int:
        """Makes anonymous memory."""
        return self._map(nbytes, _PRIVATE_ANONYMOUS, -1)

    def close(self) -> None:
        """Unmaps everything."""
        for address, nbytes in self._mapped:
            _libc.munmap(address, nbytes)
        self._mapped = []

    def _map(self, nbytes: int, flags: int, fd: int) -> int:
        # Populated now, so that no page fault falls into a timed call.
        length = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        address = _libc.mmap(None, length, _PROT, flags | _POPULATE, fd, 0)
        if address in (None, _FAILED):
            error = ctypes.get_errno()
            raise OSError(error, f"cannot map {nbytes >> 20} MiB: {os.strerror(error)}")
        self._mapped.append((address, length))
        return address


def build_context(
    memory: RankMemory, runtime: Mapping[str, int], threads: int
) -> tuple[Context, list[Any]]:
    """Builds the kt_context of a rank, without vendor, host and fail.

    Returns:
        The context, and what must live as long as it does.
    """
    layout, rank = memory.layout, memory.rank
    ranks = len(layout.ranks)
    keep: list[Any] = []
    sets: list[BufferSet] = []
    for row in layout.ranks[rank].sets:
        tensors = (Tensor * len(row))()
        for place, tensor in enumerate(row):
            peers = None
            if tensor.symmetric:
                peers = (ctypes.c_void_p * ranks)(
                    *(memory.address(tensor, peer) for peer in range(ranks))
                )
                keep.append(peers)
            pad = (0,) * (4 - len(tensor.local_shape))
            tensors[place] = Tensor(
                name=tensor.name.encode(),
                dtype=DTYPE_CODES[tensor.dtype],
                role=ROLE_CODES[tensor.role],
                dims=len(tensor.local_shape),
                shape=(ctypes.c_int64 * 4)(*tensor.local_shape, *pad),
                offset=(ctypes.c_int64 * 4)(*tensor.origin, *pad),
                bytes=tensor.nbytes,
                local=memory.address(tensor),
                peers=ctypes.cast(peers, ctypes.c_void_p) if peers else None,
                window=None,
            )
        keep.append(tensors)
        sets.append(BufferSet(len(row), tensors))
    buffers = (BufferSet * len(sets))(*sets)
    dimensions, tunables = named_values(layout.dimensions), named_values(runtime)
    window = (ctypes.c_void_p * ranks)(*(base + layout.window.offset for base in memory.symmetric))
    signals = (ctypes.c_void_p * ranks)(*memory.signals)
    context = Context(
        abi_version=ABI_VERSION,
        rank=rank,
        ranks=ranks,
        threads=threads,
        dimension_count=len(layout.dimensions),
        dimensions=dimensions,
        tunable_count=len(runtime),
        tunables=tunables,
        sets=len(sets),
        buffers=buffers,
        scratch=memory.scratch or None,
        scratch_bytes=layout.scratch_bytes,
        window=window,
        window_bytes=layout.window.nbytes,
        signals=signals,
        signal_words=layout.signal_words,
    )
    keep += [buffers, dimensions, tunables, window, signals]
    return context, keep
