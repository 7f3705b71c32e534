"""Device memory that processes share: made, sent as a descriptor, and mapped.

By the virtual-memory interface of the driver: an allocation has a handle of its own, goes to another
process as a file descriptor, and is mapped where and for whom one likes.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache

from kerneltui.targets.cuda.driver import DriverError, call
from kerneltui.targets.errors import MemoryFailure

__all__ = [
    "Mapping",
    "create_mapped",
    "create_shared",
    "granularity",
    "map_shared",
    "try_passing_on",
]

_PINNED, _POSIX_DESCRIPTOR, _LOCATION_DEVICE, _READ_WRITE = 1, 1, 1, 3
_GRANULARITY_MINIMUM = 0
_ATTRIBUTE_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_OUT_OF_MEMORY = 2


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _AllocationFlags(ctypes.Structure):
    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", _AllocationFlags),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


@dataclass(slots=True)
class Mapping:
    """Device memory that is mapped in this process.

    Attributes:
        address: Where it begins.
        nbytes: Its size, a multiple of the granularity.
    """

    address: int
    nbytes: int
    _mapped: bool = True

    def close(self) -> None:
        """Unmaps it; the memory is free when nobody holds it any more. May be called again."""
        if not self._mapped:
            return
        self._mapped = False
        size = ctypes.c_size_t(self.nbytes)
        call("cuMemUnmap", ctypes.c_ulonglong(self.address), size)
        call("cuMemAddressFree", ctypes.c_ulonglong(self.address), size)


@cache
def granularity(device: int) -> int:
    """What the size of an allocation on a device must be a multiple of, in bytes."""
    value = ctypes.c_size_t()
    properties = _properties(device)
    call(
        "cuMemGetAllocationGranularity",
        ctypes.byref(value),
        ctypes.byref(properties),
        _GRANULARITY_MINIMUM,
    )
    return value.value


def create_shared(device: int, nbytes: int) -> int:
    """Makes an allocation that can go to other processes; a descriptor that holds it.

    Args:
        device: Where it lies.
        nbytes: A multiple of the granularity.

    Raises:
        MemoryFailure: If the device has no room.
        DriverError: If the driver refuses for another reason.
    """
    handle = _create(device, nbytes)
    try:
        return _export_descriptor(handle.value)
    finally:
        call("cuMemRelease", handle)


def create_mapped(device: int, nbytes: int) -> tuple[Mapping, int]:
    """Makes an allocation and maps it for its device, so that it can go on to others from here.

    What a process has mapped from a descriptor the driver does not export again; what it has made, it does.

    Args:
        device: Where it lies.
        nbytes: A multiple of the granularity.

    Returns:
        The mapping, and a descriptor that holds the allocation.

    Raises:
        MemoryFailure: If the device has no room.
        DriverError: If the driver refuses for another reason.
    """
    handle = _create(device, nbytes)
    try:
        mapping = _map(handle, nbytes, (device,))
        try:
            return mapping, _export_descriptor(handle.value)
        except DriverError:
            mapping.close()
            raise
    finally:
        call("cuMemRelease", handle)  # the mapping keeps the memory


def _create(device: int, nbytes: int) -> ctypes.c_ulonglong:
    handle = ctypes.c_ulonglong()
    properties = _properties(device)
    try:
        call(
            "cuMemCreate",
            ctypes.byref(handle),
            ctypes.c_size_t(nbytes),
            ctypes.byref(properties),
            ctypes.c_ulonglong(0),
        )
    except DriverError as error:
        if error.code == _OUT_OF_MEMORY:
            raise MemoryFailure(
                f"GPU {device} has no room for {-(-nbytes // (1 << 20))} MiB of buffers; "
                "use a smaller shape or fewer buffer sets"
            ) from error
        raise
    return handle


def _export_descriptor(handle: int) -> int:
    """A new descriptor for an allocation, which keeps it alive."""
    descriptor = ctypes.c_int(-1)
    call(
        "cuMemExportToShareableHandle",
        ctypes.byref(descriptor),
        ctypes.c_ulonglong(handle),
        _POSIX_DESCRIPTOR,
        ctypes.c_ulonglong(0),
    )
    return descriptor.value


def map_shared(
    descriptor: int, nbytes: int, devices: tuple[int, ...], *, home: int | None = None
) -> Mapping:
    """Maps what a descriptor holds, for reading and writing by some devices.

    Args:
        descriptor: Of an allocation of this or another process; it stays open.
        nbytes: Its whole size.
        devices: Whose kernels and copies may use it.
        home: On which device it must lie, if it comes from somebody who is not to be believed.

    Raises:
        DriverError: If the driver refuses, or the memory lies elsewhere.
    """
    handle = ctypes.c_ulonglong()
    call(
        "cuMemImportFromShareableHandle",
        ctypes.byref(handle),
        ctypes.c_void_p(descriptor),
        _POSIX_DESCRIPTOR,
    )
    try:
        mapping = _map(handle, nbytes, devices)
        try:
            if home is not None:
                _look_at_home(handle, mapping.address, home)
        except DriverError:
            mapping.close()
            raise
        return mapping
    finally:
        call("cuMemRelease", handle)  # the mapping keeps the memory


def _look_at_home(handle: ctypes.c_ulonglong, address: int, home: int) -> None:
    """Refuses memory that lies elsewhere: by its properties, or by its address if they are not told."""
    found, device = _AllocationProperties(), ctypes.c_int(-1)
    try:
        call("cuMemGetAllocationPropertiesFromHandle", ctypes.byref(found), handle)
        where = found.location
        place = where.id if where.type == _LOCATION_DEVICE else -1
    except DriverError as error:
        try:
            call(
                "cuPointerGetAttribute",
                ctypes.byref(device),
                _ATTRIBUTE_DEVICE_ORDINAL,
                ctypes.c_ulonglong(address),
            )
        except DriverError as second:
            raise DriverError(f"where it lies is not known: {error}; {second}") from second
        place = device.value
    if place != home:
        name = f"GPU {place}" if place >= 0 else "no GPU"
        raise DriverError(f"it lies on {name}, not on GPU {home}")


def _map(handle: ctypes.c_ulonglong, nbytes: int, devices: tuple[int, ...]) -> Mapping:
    address, size = ctypes.c_ulonglong(), ctypes.c_size_t(nbytes)
    zero = ctypes.c_ulonglong(0)
    call("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), zero, zero)
    try:
        call("cuMemMap", address, size, ctypes.c_size_t(0), handle, zero)
    except DriverError:
        call("cuMemAddressFree", address, size)
        raise
    mapping = Mapping(address.value, nbytes)
    access = (_Access * len(devices))(
        *(_Access(_Location(_LOCATION_DEVICE, device), _READ_WRITE) for device in devices)
    )
    try:
        call("cuMemSetAccess", address, size, access, ctypes.c_size_t(len(devices)))
    except DriverError:
        mapping.close()
        raise
    return mapping


def try_passing_on(address: int) -> None:
    """Looks whether memory that is mapped here, also that of another process, can go to a third one.

    Args:
        address: Where a mapping begins.

    Raises:
        DriverError: If the driver refuses.
    """
    handle = ctypes.c_ulonglong()
    call("cuMemRetainAllocationHandle", ctypes.byref(handle), ctypes.c_void_p(address))
    try:
        os.close(_export_descriptor(handle.value))
    finally:
        call("cuMemRelease", handle)


def _properties(device: int) -> _AllocationProperties:
    return _AllocationProperties(
        type=_PINNED,
        handle_types=_POSIX_DESCRIPTOR,
        location=_Location(_LOCATION_DEVICE, device),
    )
