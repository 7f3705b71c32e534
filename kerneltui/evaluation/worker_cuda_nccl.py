"""NCCL as a rank uses it: the library that torch brought along, a communicator when a kernel asks."""

from __future__ import annotations

import ctypes
import os

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.worker_kernel import KernelError, address_of
from kerneltui.targets.cuda.packages import Nccl as NcclHeader
from kerneltui.targets.cuda.packages import refuse_other_nccl

__all__ = ["NCCL_ENVIRONMENT", "Nccl", "NcclFace"]

_ID_BYTES = 128

NCCL_ENVIRONMENT = {
    "NCCL_SOCKET_IFNAME": "lo",
    # Everything is connected when the communicator is made: sockets are refused later.
    "NCCL_RUNTIME_CONNECT": "0",
    "NCCL_IB_DISABLE": "1",
    # Of the kernels for symmetric memory the one for small messages sends undefined bytes from addresses that
    # are no multiple of 4 (2.28 and 2.29, loadPack of op128.h): rows of an odd number of bfloat16.
    "NCCL_SYM_KERNEL": "AllGather_ST",
}
"""What a rank's environment holds for NCCL. All ranks of a group are on one machine."""


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * _ID_BYTES),)


class NcclFace(ctypes.Structure):
    """ht_nccl of the harness."""

    _fields_ = (
        ("all_gather", ctypes.c_void_p),
        ("broadcast", ctypes.c_void_p),
        ("all_reduce", ctypes.c_void_p),
        ("group_start", ctypes.c_void_p),
        ("group_end", ctypes.c_void_p),
        ("communicator", ctypes.c_void_p),
        ("word", ctypes.c_void_p),
        ("failure", ctypes.c_void_p),
        ("rank", ctypes.c_uint32),
        ("ranks", ctypes.c_uint32),
    )


class Nccl:
    """The library, and the communicator of this rank once it is connected.

    Args:
        rank: Of this process.
        ranks: How many there are.
        failure: Where the harness keeps the reason of a failure.
        header: What kernels are compiled against, or None if there is no header.

    Raises:
        KernelError: If the library cannot be loaded.
        TargetError: If it is of another version than the header.
    """

    def __init__(
        self, rank: int, ranks: int, failure: abi.Failure, header: NcclHeader | None
    ) -> None:
        try:
            self._library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise KernelError(f"no NCCL: {error}; install nvidia-nccl") from error
        for name in ("ncclGetErrorString", "ncclGetLastError"):
            getattr(self._library, name).restype = ctypes.c_char_p
        version = ctypes.c_int()
        self._check("ncclGetVersion", self._library.ncclGetVersion(ctypes.byref(version)))
        self.version = version.value
        if header is not None:
            refuse_other_nccl(header, self.version)
        self._rank, self._ranks = rank, ranks
        self.face = NcclFace(
            all_gather=address_of(self._library.ncclAllGather),
            broadcast=address_of(self._library.ncclBroadcast),
            all_reduce=address_of(self._library.ncclAllReduce),
            group_start=address_of(self._library.ncclGroupStart),
            group_end=address_of(self._library.ncclGroupEnd),
            communicator=None,
            word=None,
            failure=ctypes.addressof(failure),
            rank=rank,
            ranks=ranks,
        )

    @property
    def connected(self) -> bool:
        """Whether there is a communicator."""
        return bool(self.face.communicator)

    def meeting(self) -> str:
        """Where the ranks can meet; made by one of them, for all."""
        made = _UniqueId()
        self._check("ncclGetUniqueId", self._library.ncclGetUniqueId(ctypes.byref(made)))
        return bytes(made).hex()

    def connect(self, meeting: str, word: int) -> None:
        """Makes the communicator; all ranks must come.

        Args:
            meeting: From `meeting` of one rank.
            word: Four bytes of device memory, for the barrier.

        Raises:
            KernelError: If NCCL refuses.
        """
        identity = _UniqueId.from_buffer_copy(bytes.fromhex(meeting))
        communicator = ctypes.c_void_p()
        function = self._library.ncclCommInitRank
        function.argtypes = (ctypes.c_void_p, ctypes.c_int, _UniqueId, ctypes.c_int)
        code = function(ctypes.byref(communicator), self._ranks, identity, self._rank)
        self._check("ncclCommInitRank", code)
        self.face.word = word
        self.face.communicator = communicator.value

    def _check(self, what: str, code: int) -> None:
        if code:
            text = (self._library.ncclGetErrorString(code) or b"").decode()
            more = (self._library.ncclGetLastError(None) or b"").decode("utf-8", "replace")
            raise KernelError(f"{what}: {text}: {more}" if more else f"{what}: {text}")
