"""The CUDA driver: its calls, its errors in words, what it says of devices, and flags on streams.

Nothing is loaded or initialised before the first call, so importing this module is safe before a fork.
For memory see `device_memory`.
"""

from __future__ import annotations

import ctypes
from functools import cache

from kerneltui.targets.errors import TargetError

__all__ = [
    "DriverError",
    "cache_bytes",
    "call",
    "can_access_peer",
    "cuda_version",
    "device_count",
    "free_bytes",
    "multiprocessors",
    "wait_flag",
    "write_flag",
]

_CACHE_SIZE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
_ATTRIBUTE_MULTIPROCESSORS = 16


class DriverError(TargetError):
    """The CUDA driver is missing, or refused a call.

    Attributes:
        code: Its CUresult, or -1 if there is no driver.
    """

    def __init__(self, text: str, code: int = -1) -> None:
        super().__init__(text)
        self.code = code


def call(name: str, *arguments: object) -> None:
    """Calls a function of the driver by its name.

    Raises:
        DriverError: If there is no driver, or it refuses.
    """
    library = _library()
    code = getattr(library, name)(*arguments)
    if code:
        raise DriverError(f"{name}: {_words(library, code)}", code)


def cuda_version() -> tuple[int, int]:
    """The newest CUDA that this driver runs: major and minor.

    Raises:
        DriverError: If there is no driver.
    """
    value = ctypes.c_int()
    call("cuDriverGetVersion", ctypes.byref(value))
    return value.value // 1000, value.value // 10 % 100


def can_access_peer(device: int, peer: int) -> bool:
    """Whether kernels of a device can load from and store to the memory of another.

    Raises:
        DriverError: If there is no such device.
    """
    possible = ctypes.c_int()
    call("cuDeviceCanAccessPeer", ctypes.byref(possible), device, peer)
    return bool(possible.value)


def device_count() -> int:
    """Number of GPUs that this process may use.

    Raises:
        DriverError: If there is no driver.
    """
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


@cache
def multiprocessors(device: int) -> int:
    """Number of SMs of a device.

    Raises:
        DriverError: If there is no such device.
    """
    count, handle = ctypes.c_int(), ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(handle), device)
    call("cuDeviceGetAttribute", ctypes.byref(count), _ATTRIBUTE_MULTIPROCESSORS, handle)
    return count.value


@cache
def cache_bytes(device: int) -> int:
    """Size of a GPU's second-level cache.

    Raises:
        DriverError: If there is no driver, or no such GPU.
    """
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), _CACHE_SIZE, ctypes.c_int(device))
    return value.value


def free_bytes() -> tuple[int, int]:
    """Free and total memory of the current context's device."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def write_flag(stream: int, place: int, value: int) -> None:
    """Enqueues the store of a 64-bit word, after everything that the stream stored before.

    Raises:
        DriverError: If the driver refuses.
    """
    word, here = ctypes.c_ulonglong(value), ctypes.c_ulonglong(place)
    call("cuStreamWriteValue64_v2", ctypes.c_void_p(stream), here, word, ctypes.c_uint(0))


def wait_flag(stream: int, place: int, value: int) -> None:
    """Has a stream wait until a 64-bit word is at least a value.

    Raises:
        DriverError: If the driver refuses.
    """
    word, here = ctypes.c_ulonglong(value), ctypes.c_ulonglong(place)
    call("cuStreamWaitValue64_v2", ctypes.c_void_p(stream), here, word, ctypes.c_uint(0))


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


def _words(library: ctypes.CDLL, code: int) -> str:
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(name))
    library.cuGetErrorString(code, ctypes.byref(text))
    if not name.value or not text.value:
        return f"error {code}"
    return f"{text.value.decode()} ({name.value.decode()})"
