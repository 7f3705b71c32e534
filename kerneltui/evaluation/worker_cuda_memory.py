"""Device memory of a rank: what it maps of its own device and of its peers, and its scratch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from kerneltui.evaluation.worker_kernel import CHarness
from kerneltui.targets.cuda import device_memory, driver

__all__ = ["DeviceMapper"]


class DeviceMapper:
    """Maps shared device memory for one device.

    Args:
        device: Whose kernels use it.
        harness: Makes scratch memory.
    """

    def __init__(self, device: int, harness: CHarness) -> None:
        self._device = device
        self._library = harness.library
        self._mapped: list[device_memory.Mapping] = []
        self._scratch: list[int] = []
        self.before_close: Callable[[], None] | None = None

    def map(self, nbytes: int, descriptor: int) -> int:
        """Maps an allocation, of this device or of a peer."""
        try:
            mapping = device_memory.map_shared(descriptor, nbytes, (self._device,))
        except driver.DriverError as error:
            raise OSError(str(error)) from error
        self._mapped.append(mapping)
        return mapping.address

    def adopt(self, mapping: device_memory.Mapping) -> int:
        """Takes over memory that is mapped already; its address."""
        self._mapped.append(mapping)
        return mapping.address

    def scratch(self, nbytes: int) -> int:
        """Makes device memory."""
        place = self._library.ht_allocate(ctypes.c_uint64(nbytes))
        if not place:
            raise OSError(f"the GPU has no room for {-(-nbytes // (1 << 20))} MiB of scratch")
        self._scratch.append(place)
        return place

    def close(self) -> None:
        """Unmaps everything."""
        before, self.before_close = self.before_close, None
        try:
            if before is not None:
                before()
        finally:
            for mapping in self._mapped:
                mapping.close()
            for place in self._scratch:
                self._library.ht_release(ctypes.c_void_p(place))
            self._mapped, self._scratch = [], []
