"""NCCL windows and the device communicator of a rank, for kernels that ask for them."""

from __future__ import annotations

import ctypes
import os

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.worker_cuda_nccl import Nccl
from kerneltui.evaluation.worker_kernel import KernelError
from kerneltui.evaluation.worker_memory import RankMemory

__all__ = ["NcclWindows"]

_PAGE = 4096  # NCCL_WIN_REQUIRED_ALIGNMENT
_ROOM = 512
_pointer, _u32, _u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64


class NcclWindows:
    """The library that makes them, and what is made for the shape that is set up.

    Args:
        path: The library, built against the installed header.
        nccl: The connected communicator.

    Raises:
        KernelError: If the library cannot be loaded, or header and NCCL differ.
    """

    def __init__(self, path: str, nccl: Nccl) -> None:
        try:
            self._library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise KernelError(f"no NCCL windows: {error}") from error
        built = int(self._library.ht_nccl_version())
        if built != nccl.version:
            raise KernelError(
                f"the header of NCCL is of version {built}, its library of {nccl.version}; "
                "install one nvidia-nccl"
            )
        self._nccl = nccl
        self._windows: list[ctypes.c_void_p] = []
        self._device = _pointer()

    def make(self, context: abi.Context, memory: RankMemory, needs: abi.Requirements) -> None:
        """Makes windows over all symmetric memory and a device communicator, and shows them in a context.

        What the kernel asked for beside the symmetric tensors is registered too: NCCL's own collectives
        find it by its address.

        Raises:
            KernelError: If NCCL refuses.
        """
        text = ctypes.create_string_buffer(_ROOM)
        communicator = _pointer(self._nccl.face.communicator)
        result = self._library.ht_nccl_device(
            communicator,
            _u32(needs.barriers),
            _u32(needs.gin_signals),
            ctypes.byref(self._device),
            text,
            _u64(_ROOM),
        )
        self._check(result, text)
        for index, row in enumerate(memory.layout.ranks[memory.rank].sets):
            for place, tensor in enumerate(row):
                if tensor.symmetric and tensor.nbytes:
                    window = self._register(memory.address(tensor), tensor.nbytes)
                    context.buffers[index].tensors[place].window = window
        further = memory.layout.window
        if further.nbytes:
            self._register(memory.symmetric[memory.rank] + further.offset, further.nbytes)
        context.device_comm = self._device.value

    def end(self) -> None:
        """Takes the windows and the communicator back, while their memory is still mapped.

        Raises:
            KernelError: If NCCL refuses; everything has been tried then.
        """
        refusal = self._end()
        if refusal:
            raise KernelError(refusal)

    def _register(self, address: int, nbytes: int) -> int | None:
        base = address - address % _PAGE
        size = -(-(address + nbytes - base) // _PAGE) * _PAGE
        window, text = _pointer(), ctypes.create_string_buffer(_ROOM)
        result = self._library.ht_nccl_register(
            _pointer(self._nccl.face.communicator),
            _pointer(base),
            _u64(size),
            ctypes.byref(window),
            text,
            _u64(_ROOM),
        )
        self._check(result, text)
        self._windows.append(window)
        return window.value

    def _end(self) -> str:
        """Takes everything back; the first refusal, or nothing."""
        communicator = _pointer(self._nccl.face.communicator)
        refusals: list[str] = []
        for window in self._windows:
            code = self._library.ht_nccl_deregister(communicator, window)
            if code:
                refusals.append(f"ncclCommWindowDeregister: error {code}")
        self._windows = []
        if self._device.value:
            code = self._library.ht_nccl_device_end(communicator, self._device)
            if code:
                refusals.append(f"ncclDevCommDestroy: error {code}")
            self._device = _pointer()
        return refusals[0] if refusals else ""

    def _check(self, result: int, text: ctypes.Array[ctypes.c_char]) -> None:
        if result:
            self._end()
            raise KernelError(text.value.decode("utf-8", "replace"))
