"""How many CTAs of a kernel fit on an SM, what limits them, and how a grid falls into waves.

Limits of the devices are those of the CUDA C++ Programming Guide, technical specifications per compute
capability; the arithmetic is that of the toolkit's cuda_occupancy.h, against which a test compares it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["DEVICE_LIMITS", "DeviceLimits", "Occupancy", "Waves", "limits_of", "occupancy", "waves"]

_WARP = 32


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What an SM has. Shared memory in bytes.

    Attributes:
        threads: Threads that can be resident.
        ctas: CTAs that can be resident.
        registers: 32-bit registers.
        partitions: Parts that the registers and schedulers are divided into.
        register_unit: Registers of a warp are handed out in multiples of this.
        shared: Shared memory for all CTAs.
        shared_per_cta: Largest that one CTA may ask for.
        shared_reserved: Taken by the system for each CTA.
        shared_unit: Shared memory is handed out in multiples of this.
        sms: SMs of the usual product; the runtime asks the device for the true number.
    """

    threads: int
    ctas: int
    registers: int
    partitions: int
    register_unit: int
    shared: int
    shared_per_cta: int
    shared_reserved: int
    shared_unit: int
    sms: int


DEVICE_LIMITS = {
    "sm_80": DeviceLimits(2048, 32, 65536, 4, 256, 167936, 166912, 1024, 128, 108),
    "sm_86": DeviceLimits(1536, 16, 65536, 4, 256, 102400, 101376, 1024, 128, 84),
    "sm_89": DeviceLimits(1536, 24, 65536, 4, 256, 102400, 101376, 1024, 128, 142),
    "sm_90": DeviceLimits(2048, 32, 65536, 4, 256, 233472, 232448, 1024, 128, 132),
}
"""Limits by architecture, without the letter behind its number."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """CTAs on an SM at one time.

    Attributes:
        ctas: How many; 0 if the kernel cannot be launched so.
        limiter: What there is too little of: registers, shared memory, threads or CTAs.
        warps_share: Resident warps over possible ones, 0 to 1.
    """

    ctas: int
    limiter: str
    warps_share: float


@dataclass(frozen=True, slots=True)
class Waves:
    """How a grid falls into waves.

    Attributes:
        full: Waves in which every place is taken.
        tail: CTAs of the last wave, 0 if it is full.
        places: CTAs of a full wave.
        efficiency: Work over places in all waves, 0 to 1.
    """

    full: int
    tail: int
    places: int
    efficiency: float


def limits_of(arch: str) -> DeviceLimits | None:
    """Limits of an architecture such as "sm_90a"; None if they are not known."""
    match = re.match(r"sm_\d+", arch)
    return DEVICE_LIMITS.get(match[0]) if match else None


def occupancy(
    limits: DeviceLimits, *, threads: int, registers: int, shared: int, cluster: int = 1
) -> Occupancy:
    """CTAs of a kernel on one SM.

    Args:
        limits: The device.
        threads: Threads of a CTA.
        registers: Registers of a thread.
        shared: Static and dynamic shared memory of a CTA.
        cluster: CTAs of a cluster; whether clusters fit into a device's groups of SMs is not known
            here, so the result is an upper bound then.
    """
    warps = -(-threads // _WARP)
    each = _up(max(1, registers) * _WARP, limits.register_unit)
    asked = _up(shared + limits.shared_reserved, limits.shared_unit)
    # the hardware checks a launch as if every partition took as many warps as the fullest one
    launchable = each * _up(warps, limits.partitions) <= limits.registers
    resident_warps = limits.registers // limits.partitions // each * limits.partitions
    by = {
        "registers": resident_warps // warps if launchable else 0,
        "shared memory": limits.shared // asked if shared <= limits.shared_per_cta else 0,
        "threads": limits.threads // _WARP // warps if threads <= 1024 else 0,
        "CTAs": limits.ctas,
    }
    limiter = min(by, key=lambda name: by[name])
    ctas = by[limiter]
    if cluster > 1 and ctas * limits.sms < cluster:
        return Occupancy(0, "cluster", 0.0)
    return Occupancy(ctas, limiter, ctas * warps * _WARP / limits.threads)


def waves(grid: int, places: int) -> Waves:
    """Falls a grid into waves.

    Args:
        grid: CTAs.
        places: CTAs that fit on the device at one time.

    Raises:
        ValueError: No CTA fits, or there is no grid.
    """
    if grid < 1 or places < 1:
        raise ValueError("waves need a grid, and a CTA that fits")
    full, tail = divmod(grid, places)
    return Waves(full, tail, places, grid / (places * (full + (tail > 0))))


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
