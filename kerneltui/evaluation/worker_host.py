"""Host collectives of torch.distributed gloo, as C functions that a kernel can call."""

from __future__ import annotations

import ctypes
import datetime
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from kerneltui.evaluation.worker_abi import BarrierFunction, GatherFunction, Host

__all__ = ["HostCollectives", "bytes_at"]

_ERROR = 1


class HostCollectives:
    """A gloo process group over loopback, and its C face.

    Args:
        rank: Of this process.
        ranks: How many there are.
        directory: A folder that all ranks of the group share, for the meeting file.
        timeout_s: After which gloo gives up on a peer.
        fail: Takes the reason of a failure.
    """

    def __init__(
        self, rank: int, ranks: int, directory: Path, timeout_s: float, fail: Callable[[str], None]
    ) -> None:
        store = FileStore(str(directory / "meeting"), ranks)
        dist.init_process_group(
            "gloo",
            store=store,
            rank=rank,
            world_size=ranks,
            timeout=datetime.timedelta(seconds=timeout_s),
        )
        self.rank = rank
        self.ranks = ranks
        self.group = dist.distributed_c10d._get_default_group()
        self._fail = fail
        self._padded: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        # ctypes keeps no reference: without these the C pointers would dangle.
        self._gather = GatherFunction(self._c_all_gather)
        self._barrier = BarrierFunction(self._c_barrier)

    def face(self) -> Host:
        """The kt_host of this group; the object must outlive it."""
        return Host(
            all_gather=ctypes.cast(self._gather, ctypes.c_void_p),
            barrier=ctypes.cast(self._barrier, ctypes.c_void_p),
            self=None,
        )

    def all_gather(self, send: torch.Tensor, receive: torch.Tensor, counts: list[int]) -> None:
        """Gathers flat shards of `counts` elements into the flat `receive`, rank after rank.

        gloo gathers equal parts only. Unequal ones go through buffers of the largest part.

        Args:
            send: This rank's shard, flat, `counts[rank]` elements.
            receive: Flat, `sum(counts)` elements of the same dtype.
            counts: Elements of each rank.
        """
        if len(set(counts)) == 1:
            self.group._allgather_base(receive, send).wait()
            return
        largest = max(counts)
        size = largest * send.element_size()
        if size not in self._padded:
            self._padded[size] = (
                torch.zeros(size, dtype=torch.uint8),
                torch.zeros(size * self.ranks, dtype=torch.uint8),
            )
        part, whole = (buffer.view(send.dtype) for buffer in self._padded[size])
        part[: send.numel()].copy_(send)
        self.group._allgather_base(whole, part).wait()
        begin = 0
        for peer, count in enumerate(counts):
            at = peer * largest
            receive[begin : begin + count].copy_(whole[at : at + count])
            begin += count

    def barrier(self) -> None:
        """Waits for all ranks."""
        self.group.barrier().wait()

    def _c_all_gather(
        self,
        _self: int | None,
        send: int | None,
        receive: int | None,
        counts: ctypes._Pointer[ctypes.c_uint64],
        _stream: int | None,
    ) -> int:
        try:
            sizes = [int(counts[peer]) for peer in range(self.ranks)]
            self.all_gather(
                bytes_at(send or 0, sizes[self.rank]), bytes_at(receive or 0, sum(sizes)), sizes
            )
        except Exception as error:
            # The caller is C: an exception cannot pass it, and ctypes would only print it.
            self._fail(f"all_gather: {type(error).__name__}: {error}")
            return _ERROR
        return 0

    def _c_barrier(self, _self: int | None, _stream: int | None) -> int:
        try:
            self.barrier()
        except Exception as error:  # as above
            self._fail(f"barrier: {type(error).__name__}: {error}")
            return _ERROR
        return 0


def bytes_at(address: int, nbytes: int) -> torch.Tensor:
    """A flat uint8 tensor over memory that somebody else owns."""
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8)
