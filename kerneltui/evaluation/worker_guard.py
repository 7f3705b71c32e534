"""Watches over what a Python kernel must leave alone: the harness around it, and how torch computes.

A Python kernel lives in the interpreter of the process that serves the engine. What it could reach there
has been looked for in its text before; this looks whether something changed all the same. It is no wall:
the wall is that buffers, answers and the deciding clock belong to other processes.
"""

from __future__ import annotations

import builtins
import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

__all__ = ["Guard", "use_plain_arithmetic"]

_OWN = "kerneltui."
_MISSING = object()
_COUNTED: tuple[tuple[str, Callable[[], object]], ...] = (
    ("the precision of float32 products", torch.get_float32_matmul_precision),
    ("the default dtype", torch.get_default_dtype),
    ("the number of threads", torch.get_num_threads),
    (
        "sums in float16",
        lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    ),
    (
        "sums in bfloat16",
        lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    ),
    ("float16 accumulation", lambda: torch.backends.cuda.matmul.allow_fp16_accumulation),
    ("deterministic algorithms", torch.are_deterministic_algorithms_enabled),
)


def use_plain_arithmetic() -> None:
    """Has torch add parts of a sum in float32, as vendor functions of kernels do."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.set_float32_matmul_precision("highest")


class Guard:
    """Remembers the harness and the state of torch as they are now."""

    def __init__(self) -> None:
        self._names = [(place, name, value) for place, name, value in _harness()]
        self._state = _state()

    def changed(self, stream: Any) -> str:
        """What is different now, in words, or nothing.

        Args:
            stream: What the current stream must be, if there are streams.
        """
        for place, name, value in self._names:
            if place.__dict__.get(name, _MISSING) is not value:
                return f"{getattr(place, '__name__', place)}.{name}, which is not its own"
        now = _state()
        for (name, _), before, after in zip(_COUNTED, self._state, now, strict=True):
            if before != after:
                return f"{name} of torch: {before} before, {after} now"
        if stream is not None and torch.cuda.current_stream(stream.device) != stream:
            return "the current stream, and did not put it back"
        return ""


def _harness() -> Iterator[tuple[Any, str, object]]:
    """Every name of the harness's modules and classes, and of those that it reads clocks with."""
    modules: list[ModuleType] = [builtins, ctypes, time]
    modules += [module for name, module in sys.modules.items() if name.startswith(_OWN)]
    for module in modules:
        for name, value in list(vars(module).items()):
            if (name.startswith("__") and name.endswith("__")) or (
                module is builtins and name == "_"
            ):
                continue
            yield module, name, value
            if isinstance(value, type) and value.__module__.startswith(_OWN):
                for part, what in list(vars(value).items()):
                    yield value, part, what


def _state() -> tuple[object, ...]:
    """How torch computes; what cannot be read has been changed in a way that torch itself mixes up."""
    return tuple(_read(read) for _, read in _COUNTED)


def _read(read: Callable[[], object]) -> object:
    try:
        return read()
    except (RuntimeError, AttributeError) as error:
        return str(error)
