"""What a Python kernel may use, as data: packages, and what in them is not a kernel's business."""

from __future__ import annotations

import sys
from collections.abc import Mapping

__all__ = [
    "ALLOWED_BELOW",
    "BUILTINS",
    "DENIED_ATTRIBUTES",
    "DENIED_BELOW",
    "METHODS",
    "MODULES",
    "PACKAGES",
    "ROUNDABOUT",
    "STANDARD",
]

PACKAGES = frozenset(
    {
        *("torch", "triton", "cupy", "numpy"),
        *("__future__", "collections", "contextlib", "dataclasses", "enum", "functools"),
        *("itertools", "math", "typing"),
    }
)
"""Packages that a kernel may import."""

_TORCH = (
    *("load", "save", "compile", "from_file", "hub", "jit", "fx", "export", "package", "library"),
    *("ops", "classes", "overrides", "serialization", "multiprocessing", "distributed", "utils"),
    *("backends", "compiler", "profiler", "autograd", "futures", "testing", "monitor", "storage"),
    *("UntypedStorage", "TypedStorage", "use_deterministic_algorithms", "manual_seed", "seed"),
    *("accelerator", "cpu", "mtia", "mps", "xpu", "onnx", "func", "ao", "quantization", "contrib"),
    *("set_autocast_enabled", "autocast", "deploy", "torch_version", "version", "types", "nested"),
)

DENIED_BELOW: Mapping[str, frozenset[str]] = {
    "torch": frozenset(_TORCH),
    "triton": frozenset({"autotune"}),
    "triton.language": frozenset({"core", "semantic", "standard", "target_info"}),
    "numpy": frozenset(
        {
            *("load", "save", "savez", "savez_compressed", "savetxt", "loadtxt", "genfromtxt"),
            *("fromfile", "fromregex", "memmap", "lib", "core", "ctypeslib", "f2py", "testing"),
            *("distutils", "show_config", "seterrcall"),
        }
    ),
    "cupy": frozenset(
        {
            *("load", "save", "savez", "savez_compressed", "savetxt", "loadtxt", "genfromtxt"),
            *("fromfile", "testing", "prof", "random", "show_config", "clear_memo", "cuda"),
            *("set_allocator", "disable_experimental_feature_warning"),
        }
    ),
}
"""Names of a package that a kernel may not use, whatever lies below them."""

ALLOWED_BELOW: Mapping[str, frozenset[str]] = {
    "torch.cuda": frozenset(
        {
            *("CUDAGraph", "Event", "ExternalStream", "Stream", "StreamContext"),
            *("current_stream", "device", "get_device_capability", "get_device_properties"),
            *("graph", "is_available", "stream"),
        }
    ),
    "torch.nn": frozenset({"functional"}),
    "triton": frozenset(
        {
            *("Config", "cdiv", "constexpr_function", "heuristics", "jit", "language"),
            *("next_power_of_2", "set_allocator", "tools"),
        }
    ),
    "triton.tools": frozenset({"tensor_descriptor"}),
    "triton.tools.tensor_descriptor": frozenset({"TensorDescriptor"}),
    "cupy.cuda": frozenset({"Event", "ExternalStream", "Stream", "get_current_stream"}),
    "collections": frozenset({"ChainMap", "Counter", "OrderedDict", "abc", "defaultdict", "deque",
                              "namedtuple"}),
    "contextlib": frozenset({"contextmanager", "nullcontext"}),
    "dataclasses": frozenset({"dataclass", "field", "replace"}),
    "enum": frozenset({"Enum", "IntEnum", "StrEnum", "auto"}),
    "functools": frozenset({"cache", "lru_cache", "partial", "reduce", "wraps"}),
}  # fmt: skip
"""Packages of which only some names are allowed."""

MODULES = frozenset(
    {
        *ALLOWED_BELOW,
        *PACKAGES,
        *(f"{package}.{name}" for package, names in DENIED_BELOW.items() for name in names),
        *(f"torch.{name}" for name in ("fft", "linalg", "masked", "random", "signal", "sparse")),
        *("torch.special", "torch.nn.functional", "collections.abc"),
        *(f"triton.language.{name}" for name in ("extra", "math", "random")),
        *("triton.language", "triton.language.extra.cuda", "triton.language.extra.libdevice"),
        *("triton.language.extra.cuda.libdevice",),
        *(f"numpy.{name}" for name in ("char", "dtypes", "emath", "exceptions", "fft", "linalg")),
        *(f"numpy.{name}" for name in ("ma", "polynomial", "random", "rec", "strings", "typing")),
        *(f"cupy.{name}" for name in ("fft", "linalg", "polynomial", "sparse")),
    }
)
"""Names that are modules: something is to be taken of them, and they are not to be passed about."""

ROUNDABOUT = frozenset({"cupy", "cupyx", "kerneltui", "np", "numpy", "torch", "triton"})
"""Packages that lie about in other packages (`torch.nn.functional.torch`)."""

BUILTINS = frozenset(
    {
        *("__builtins__", "__import__", "__loader__", "__spec__", "breakpoint", "compile"),
        *("delattr", "eval", "exec", "exit", "getattr", "globals", "help", "input", "locals"),
        *("memoryview", "open", "quit", "setattr", "vars"),
    }
)
"""Built-in names that reach beyond what a kernel is given."""

DENIED_ATTRIBUTES = frozenset(
    {
        *("ag_frame", "cr_frame", "f_back", "f_builtins", "f_globals", "f_locals", "gi_code"),
        *("gi_frame", "tb_frame", "tb_next", "ctypes", "tofile", "load_library", "load_inline"),
        *("from_file", "share_memory_", "untyped_storage", "register_hook", "mro"),
    }
)
"""Attributes that no object of a kernel's has a use for: ways to frames, files and other memory."""

METHODS = frozenset(
    {"__call__", "__contains__", "__enter__", "__exit__", "__getitem__", "__init__", "__iter__",
     "__len__", "__post_init__", "__repr__"}
)  # fmt: skip
"""Methods with names of their own that a class of a kernel may define."""

STANDARD = frozenset(sys.stdlib_module_names) - {
    *("abc", "array", "bisect", "cmath", "code", "copy", "math", "operator", "queue", "random"),
    *("select", "signal", "statistics", "string", "struct", "trace", "typing", "types"),
}
"""Modules of the standard library that packages carry about as attributes (`torch.sys`)."""
