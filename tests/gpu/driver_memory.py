"""Memory that both ranks of a driver load and store: the virtual-memory API of CUDA, with descriptors."""

from __future__ import annotations

import ctypes
import os
import socket
from typing import Any, Protocol

_u64, _i32, _size = ctypes.c_uint64, ctypes.c_int, ctypes.c_size_t
GRANULARITY = 2 << 20


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", _i32),
        ("handle_types", _i32),
        ("location_type", _i32),
        ("location_id", _i32),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class AccessDescription(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location_type", _i32), ("location_id", _i32), ("flags", _i32))


class Owner(Protocol):
    """What a window needs of its rank."""

    torch: Any
    rank: int
    link: socket.socket

    def cu(self, name: str, *arguments: Any) -> None:
        """Calls the driver; an error raises."""


class Raw:
    """Device memory as torch sees it."""

    def __init__(self, address: int, elements: int, type_string: str) -> None:
        """Wraps `elements` elements at `address`."""
        self.__cuda_array_interface__ = {
            "shape": (elements,),
            "typestr": type_string,
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


class Window:
    """Memory of this rank and of its peer."""

    def __init__(self, owner: Owner, size: int) -> None:
        """Makes `size` bytes on this rank and maps the peer's. Both ranks call it together."""
        self.owner = owner
        self.size = (max(1, size) + GRANULARITY - 1) // GRANULARITY * GRANULARITY
        own = _u64()
        prop = AllocationProp(1, 1, 1, owner.rank)
        owner.cu("cuMemCreate", ctypes.byref(own), _size(self.size), ctypes.byref(prop), _u64(0))
        other = self._exchange(own)
        self.addresses = [0, 0]
        self.addresses[owner.rank] = self._map(own)
        self.addresses[1 - owner.rank] = self._map(other)

    def _exchange(self, own: ctypes.c_uint64) -> ctypes.c_uint64:
        """Gives the allocation to the peer and takes its."""
        fd = _i32(-1)
        self.owner.cu("cuMemExportToShareableHandle", ctypes.byref(fd), own, _i32(1), _u64(0))
        socket.send_fds(self.owner.link, [b"w"], [fd.value])
        _, fds, _, _ = socket.recv_fds(self.owner.link, 1, 1)
        os.close(fd.value)
        other = _u64()
        self.owner.cu(
            *("cuMemImportFromShareableHandle", ctypes.byref(other)),
            *(ctypes.c_void_p(fds[0]), _i32(1)),
        )
        os.close(fds[0])
        return other

    def _map(self, handle: ctypes.c_uint64) -> int:
        """Maps an allocation for this rank's GPU; the mapping alone keeps it."""
        address, size = _u64(), _size(self.size)
        access = AccessDescription(1, self.owner.rank, 3)
        self.owner.cu(
            *("cuMemAddressReserve", ctypes.byref(address), size),
            *(_size(GRANULARITY), _u64(0), _u64(0)),
        )
        self.owner.cu("cuMemMap", address, size, _size(0), handle, _u64(0))
        self.owner.cu("cuMemSetAccess", address, size, ctypes.byref(access), _size(1))
        self.owner.cu("cuMemRelease", handle)
        return address.value

    @property
    def local(self) -> int:
        """The address of this rank's own memory."""
        return self.addresses[self.owner.rank]

    def close(self) -> None:
        """Unmaps; the owner's memory goes when the last mapping has gone."""
        for address in self.addresses:
            self.owner.cu("cuMemUnmap", _u64(address), _size(self.size))
            self.owner.cu("cuMemAddressFree", _u64(address), _size(self.size))

    def tensor(self, offset: int, elements: int, dtype: Any) -> Any:
        """A torch view of this rank's own memory."""
        torch = self.owner.torch
        code = {torch.bfloat16: "<i2", torch.int64: "<i8"}[dtype]
        return torch.as_tensor(
            Raw(self.local + offset, elements, code), device=f"cuda:{self.owner.rank}"
        ).view(dtype)
