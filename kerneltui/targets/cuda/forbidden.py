"""What a machine can forbid, as data, and what is forbidden where no file says anything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache

__all__ = ["DEFAULT_FEATURES", "ForbiddenFeature", "matches"]


@dataclass(frozen=True, slots=True)
class ForbiddenFeature:
    """One thing that kernels may not do.

    Attributes:
        name: What a file calls it.
        rule: Id of its findings.
        reason: Why, in words that stand behind "is forbidden: ".
        identifiers: Patterns of names, such as `cuMulticast*`.
        instructions: Opcodes of PTX that are forbidden with everything behind them, such as `multimem`.
        arguments: Regular expressions on calls and assignments, for features that a value switches on.
        texts: Parts that no text in the source may have.
        environment: Variables that switch it off in every process.
        optional: True if a machine's file may allow it.
        in_objects: False if the code that nvcc adds asks for these symbols, so that they prove nothing
            in an object file.
    """

    name: str
    rule: str
    reason: str
    identifiers: tuple[str, ...] = ()
    instructions: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    optional: bool = False
    in_objects: bool = True


_MULTICAST = ForbiddenFeature(
    name="nvlink_multicast",
    rule="L01",
    reason="NVLink multicast can put the GPUs of a shared machine out of service",
    identifiers=(
        "cuMulticast*",
        "CUmulticast*",
        "CU_MULTICAST_*",
        "*[Mm]ultimem*",
        "*multicast_ptr*",
        "*[Nn]vls*",
        "*NVLS*",
        "nvshmem*_mc_ptr",
    ),
    instructions=("multimem",),
    arguments=(
        r"\bTKParallelTensor\b[^;{}]*?,\s*[Tt]rue\s*[),]",
        r"\bnccl(?:LsaBarrier|LLA2A|Barrier)Session\b[^;{}]*?,\s*true\s*[),}]",
    ),
    environment={
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
    },
    optional=True,
)
_ENVIRONMENT = ForbiddenFeature(
    name="environment_change",
    rule="L02",
    reason="the harness sets the environment, also what keeps a machine safe",
    identifiers=("setenv", "putenv", "unsetenv", "clearenv", "environ", "_environ", "__environ"),
)
_DEVICE_SETTINGS = ForbiddenFeature(
    name="device_settings",
    rule="P01",
    reason="clocks, power, partitions and the reset of a device belong to the machine",
    identifiers=(
        "nvmlDeviceSet*",
        "nvmlDeviceReset*",
        "nvmlDeviceClear*",
        "nvmlDeviceModify*",
        "nvmlDeviceCreate*",
        "nvmlGpuInstanceCreate*",
        "nvmlGpuInstanceDestroy*",
        "nvmlComputeInstanceDestroy",
        "nvmlUnitSet*",
        "nvmlSystemSet*",
        "cudaDeviceReset",
        "cuDevicePrimaryCtxReset*",
    ),
    texts=("nvidia-smi", "nvidia-settings", "nvidia-modprobe"),
)
_LOADED_CODE = ForbiddenFeature(
    name="loaded_code",
    rule="P03",
    reason="code that a kernel loads while it runs cannot be looked at; write it in the kernel's file",
    identifiers=(
        "dlopen",
        "dlmopen",
        "__libc_dl*",
        "_dl_*",
        "dl_iterate_phdr",  # the next ones find functions without asking for their names
        "dlinfo",
        "_r_debug",
        "cuGetExportTable",
        "cudaGetExportTable",
        "cuModuleLoad*",
        "cuLibraryLoad*",
        "cudaLibraryLoad*",
        "cuLinkCreate*",
        "cuLinkAdd*",
        "nvrtc[A-Z]*",
        "nvJitLink*",
        "__nvJitLink*",
        "nvPTXCompiler*",
        "nvFatbin*",
        "Py_*",  # a rank is a Python process: its interpreter runs texts, too
        "Py[A-Z]*_*",
        "_Py_*",
        "_Py[A-Z]*_*",
        "*DynamicLibrary*",  # what torch has loaded lies in the process as well
        "*DriverAPI*",
    ),
)
_REGISTERED_CODE = ForbiddenFeature(
    name="registered_code",
    rule="P03",
    reason="nvcc registers the code of a kernel's file, and there is no other to register",
    identifiers=("__cudaRegister*", "__cudaUnregister*", "__cudaGetKernel", "__cudaInitModule"),
    texts=("nv_fatbin", "nvFatBin"),
    in_objects=False,
)

_CAPTURE_CONTROL = ForbiddenFeature(
    name="capture_control",
    rule="P04",
    reason="whether and how calls are captured is the harness's affair; who asks can tell when it is timed",
    identifiers=(
        "cudaStreamIsCapturing*",
        "cudaStreamGetCaptureInfo*",
        "cuStreamIsCapturing*",
        "cuStreamGetCaptureInfo*",
        "cudaStreamUpdateCaptureDependencies*",  # calls could run before the gate, or side by side
        "cuStreamUpdateCaptureDependencies*",
        "cudaStreamBeginCaptureToGraph*",
        "cuStreamBeginCaptureToGraph*",
        "cudaEventRecordExternal",  # these are errors in one of the two cases
        "cudaEventWaitExternal",
        "CU_EVENT_*_EXTERNAL",
        "cudaLaunchAttributeLaunchCompletionEvent",  # who waits for it runs beside the kernel, not behind it
        "CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT",
        "cudaLaunchAttributeDeviceUpdatableKernelNode",
        "CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE",
        "is_current_stream_capturing",
        "streamIsCapturing",  # CuPy
        "is_capturing",
    ),
)

DEFAULT_FEATURES = (
    _MULTICAST,
    _ENVIRONMENT,
    _DEVICE_SETTINGS,
    _LOADED_CODE,
    _REGISTERED_CODE,
    _CAPTURE_CONTROL,
)
"""What is forbidden where no file says anything."""


def matches(patterns: tuple[str, ...], name: str) -> bool:
    """Whether a name is one of those that the patterns mean."""
    return _union(patterns).match(name) is not None


@cache
def _union(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) or r"(?!)")
