"""The shared memory of a group of ranks: made by the engine, attached by the judge."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kerneltui.targets.buffers import RankFiles
from kerneltui.targets.errors import MemoryFailure
from kerneltui.targets.windows import GroupLayout, TensorLayout

__all__ = ["GroupMemory"]


class GroupMemory:
    """The files of a group, and their mappings in this process.

    Use as a context manager, or call `close`. Mappings handed out by `private` and `symmetric` stay
    valid until `close`; memoryviews of them must be released before.
    """

    def __init__(self, layout: GroupLayout, files: Sequence[RankFiles]) -> None:
        if len(files) != len(layout.ranks):
            raise ValueError(f"{len(files)} ranks of files for {len(layout.ranks)} ranks")
        self.layout = layout
        self.files = tuple(files)
        self._maps: dict[int, mmap.mmap] = {}
        self._closed = False

    @classmethod
    def create(cls, layout: GroupLayout) -> Self:
        """Makes the files, zeroed, allocated, and sealed against a change of size.

        Raises:
            MemoryFailure: If the machine has no room for them.
        """
        free = _available_bytes()
        if free is not None and layout.total_bytes > free:
            raise MemoryFailure(
                f"the buffers need {_mib(layout.total_bytes)} MiB and {_mib(free)} MiB are free; "
                "use a smaller shape or fewer buffer sets"
            )
        opened: list[int] = []
        files: list[RankFiles] = []
        try:
            for rank, item in enumerate(layout.ranks):
                three = []
                for kind, nbytes in (
                    ("private", item.private_bytes),
                    ("symmetric", item.symmetric_bytes),
                    ("signals", layout.signal_bytes),
                ):
                    fd = os.memfd_create(
                        f"kerneltui-{kind}-{rank}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
                    )
                    opened.append(fd)
                    three.append(fd)
                    _allocate(fd, nbytes)
                files.append(RankFiles(*three))
        except OSError as error:
            for fd in opened:
                os.close(fd)
            if error.errno in (errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE):
                raise MemoryFailure(
                    f"the buffers need {_mib(layout.total_bytes)} MiB: {error.strerror}"
                ) from error
            raise
        return cls(layout, files)

    @classmethod
    def attach(cls, layout: GroupLayout, descriptors: Sequence[int]) -> Self:
        """Takes over descriptors that another process sent, in the order of `descriptors`."""
        triples = [descriptors[i : i + 3] for i in range(0, len(descriptors), 3)]
        return cls(layout, [RankFiles(*triple) for triple in triples])

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Private, symmetric, signals of rank 0, then of rank 1, and so on; for the judge."""
        return tuple(fd for f in self.files for fd in (f.private, f.symmetric, f.signals))

    def private(self, rank: int) -> mmap.mmap:
        """The private file of a rank, mapped for reading and writing."""
        return self._map(self.files[rank].private)

    def symmetric(self, rank: int) -> mmap.mmap:
        """The symmetric file of a rank, mapped for reading and writing."""
        return self._map(self.files[rank].symmetric)

    def file_of(self, rank: int, tensor: TensorLayout) -> mmap.mmap:
        """The mapped file in which a tensor of a rank lies."""
        return self.symmetric(rank) if tensor.symmetric else self.private(rank)

    def view(self, rank: int, tensor: TensorLayout) -> memoryview:
        """The bytes of a tensor of a rank. Release it before `close`."""
        whole = memoryview(self.file_of(rank, tensor))
        return whole[tensor.offset : tensor.offset + tensor.nbytes]

    def close(self) -> None:
        """Unmaps and closes everything; the memory is free when the ranks are gone too."""
        if self._closed:
            return
        self._closed = True
        for mapped in self._maps.values():
            mapped.close()
        self._maps.clear()
        for fd in self.descriptors:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _map(self, fd: int) -> mmap.mmap:
        if self._closed:
            raise ValueError("the memory of this group is closed")
        if fd not in self._maps:
            # All pages at once: faults one by one took longer than filling them.
            self._maps[fd] = mmap.mmap(fd, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        return self._maps[fd]


def _allocate(fd: int, nbytes: int) -> None:
    os.ftruncate(fd, nbytes)
    # Takes the pages now: a full machine is an error here instead of a SIGBUS in a kernel.
    os.posix_fallocate(fd, 0, nbytes)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)


def _available_bytes() -> int | None:
    """Memory to be had without swapping, from /proc/meminfo; None where that is unreadable."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _mib(value: int) -> int:
    return -(-value // (1 << 20))
