"""The few functions of the CUDA driver that make and share device memory, and its errors in words.

Nothing is loaded or initialised before the first call, so importing this module is safe before a fork.
Memory is made by the virtual-memory interface of the driver: an allocation has a handle of its own, goes
to another process as a file descriptor, and is mapped where and for whom one likes.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache

from kerneltui.targets.errors import MemoryFailure, TargetError

__all__ = [
    "DriverError",
    "Mapping",
    "cache_bytes",
    "can_access_peer",
    "create_mapped",
    "create_shared",
    "cuda_version",
    "device_count",
    "export_descriptor",
    "free_bytes",
    "granularity",
    "map_shared",
    "multiprocessors",
    "try_passing_on",
    "wait_flag",
    "write_flag",
]

_PINNED, _POSIX_DESCRIPTOR, _LOCATION_DEVICE, _READ_WRITE = 1, 1, 1, 3
_GRANULARITY_MINIMUM = 0
_CACHE_SIZE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
_ATTRIBUTE_MULTIPROCESSORS = 16
_ATTRIBUTE_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_OUT_OF_MEMORY = 2


class DriverError(TargetError):
    """The CUDA driver is missing, or refused a call.

    Attributes:
        code: Its CUresult, or -1 if there is no driver.
    """

    def __init__(self, text: str, code: int = -1) -> None:
        super().__init__(text)
        self.code = code


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
        _call("cuMemUnmap", ctypes.c_ulonglong(self.address), size)
        _call("cuMemAddressFree", ctypes.c_ulonglong(self.address), size)


def cuda_version() -> tuple[int, int]:
    """The newest CUDA that this driver runs: major and minor.

    Raises:
        DriverError: If there is no driver.
    """
    value = ctypes.c_int()
    _call("cuDriverGetVersion", ctypes.byref(value))
    return value.value // 1000, value.value // 10 % 100


def can_access_peer(device: int, peer: int) -> bool:
    """Whether kernels of a device can load from and store to the memory of another.

    Raises:
        DriverError: If there is no such device.
    """
    possible = ctypes.c_int()
    _call("cuDeviceCanAccessPeer", ctypes.byref(possible), device, peer)
    return bool(possible.value)


def device_count() -> int:
    """Number of GPUs that this process may use.

    Raises:
        DriverError: If there is no driver.
    """
    count = ctypes.c_int()
    _call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


@cache
def multiprocessors(device: int) -> int:
    """Number of SMs of a device.

    Raises:
        DriverError: If there is no such device.
    """
    count, handle = ctypes.c_int(), ctypes.c_int()
    _call("cuDeviceGet", ctypes.byref(handle), device)
    _call("cuDeviceGetAttribute", ctypes.byref(count), _ATTRIBUTE_MULTIPROCESSORS, handle)
    return count.value


@cache
def cache_bytes(device: int) -> int:
    """Size of a GPU's second-level cache.

    Raises:
        DriverError: If there is no driver, or no such GPU.
    """
    value = ctypes.c_int()
    _call("cuDeviceGetAttribute", ctypes.byref(value), _CACHE_SIZE, ctypes.c_int(device))
    return value.value


@cache
def granularity(device: int) -> int:
    """What the size of an allocation on a device must be a multiple of, in bytes."""
    value = ctypes.c_size_t()
    properties = _properties(device)
    _call(
        "cuMemGetAllocationGranularity",
        ctypes.byref(value),
        ctypes.byref(properties),
        _GRANULARITY_MINIMUM,
    )
    return value.value


def free_bytes() -> tuple[int, int]:
    """Free and total memory of the current context's device."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


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
        return export_descriptor(handle.value)
    finally:
        _call("cuMemRelease", handle)


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
            return mapping, export_descriptor(handle.value)
        except DriverError:
            mapping.close()
            raise
    finally:
        _call("cuMemRelease", handle)  # the mapping keeps the memory


def _create(device: int, nbytes: int) -> ctypes.c_ulonglong:
    handle = ctypes.c_ulonglong()
    properties = _properties(device)
    try:
        _call(
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


def export_descriptor(handle: int) -> int:
    """A new descriptor for an allocation, which keeps it alive."""
    descriptor = ctypes.c_int(-1)
    _call(
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
    _call(
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
        _call("cuMemRelease", handle)  # the mapping keeps the memory


def _look_at_home(handle: ctypes.c_ulonglong, address: int, home: int) -> None:
    """Refuses memory that lies elsewhere: by its properties, or by its address if they are not told."""
    found, device = _AllocationProperties(), ctypes.c_int(-1)
    try:
        _call("cuMemGetAllocationPropertiesFromHandle", ctypes.byref(found), handle)
        where = found.location
        place = where.id if where.type == _LOCATION_DEVICE else -1
    except DriverError as error:
        try:
            _call(
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
    _call("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), zero, zero)
    try:
        _call("cuMemMap", address, size, ctypes.c_size_t(0), handle, zero)
    except DriverError:
        _call("cuMemAddressFree", address, size)
        raise
    mapping = Mapping(address.value, nbytes)
    access = (_Access * len(devices))(
        *(_Access(_Location(_LOCATION_DEVICE, device), _READ_WRITE) for device in devices)
    )
    try:
        _call("cuMemSetAccess", address, size, access, ctypes.c_size_t(len(devices)))
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
    _call("cuMemRetainAllocationHandle", ctypes.byref(handle), ctypes.c_void_p(address))
    try:
        os.close(export_descriptor(handle.value))
    finally:
        _call("cuMemRelease", handle)


def write_flag(stream: int, place: int, value: int) -> None:
    """Enqueues the store of a 64-bit word, after everything that the stream stored before.

    Raises:
        DriverError: If the driver refuses.
    """
    word, here = ctypes.c_ulonglong(value), ctypes.c_ulonglong(place)
    _call("cuStreamWriteValue64_v2", ctypes.c_void_p(stream), here, word, ctypes.c_uint(0))


def wait_flag(stream: int, place: int, value: int) -> None:
    """Has a stream wait until a 64-bit word is at least a value.

    Raises:
        DriverError: If the driver refuses.
    """
    word, here = ctypes.c_ulonglong(value), ctypes.c_ulonglong(place)
    _call("cuStreamWaitValue64_v2", ctypes.c_void_p(stream), here, word, ctypes.c_uint(0))


def _properties(device: int) -> _AllocationProperties:
    return _AllocationProperties(
        type=_PINNED,
        handle_types=_POSIX_DESCRIPTOR,
        location=_Location(_LOCATION_DEVICE, device),
    )


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(
            f"no CUDA driver: {error}; install the driver of the GPU, or use --target cpu"
        ) from error
    code = library.cuInit(0)
    if code:
        raise DriverError(f"the CUDA driver does not start: {_words(library, code)}", code)
    return library


def _call(name: str, *arguments: object) -> None:
    library = _library()
    code = getattr(library, name)(*arguments)
    if code:
        raise DriverError(f"{name}: {_words(library, code)}", code)


def _words(library: ctypes.CDLL, code: int) -> str:
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(name))
    library.cuGetErrorString(code, ctypes.byref(text))
    if not name.value or not text.value:
        return f"error {code}"
    return f"{text.value.decode()} ({name.value.decode()})"
