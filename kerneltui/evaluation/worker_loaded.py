"""What a rank loads: a library with the four functions of the contract, or something that acts like one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.worker_kernel import KernelError, Machine, address_of
from kerneltui.evaluation.worker_memory import RankMemory, build_context
from kerneltui.targets.windows import DType

__all__ = ["KernelCall", "LoadableKernel", "LoadedKernel", "output_dtype"]

_SYMBOLS = (
    "kerneltui_requirements",
    "kerneltui_setup",
    "kerneltui_run",
    "kerneltui_teardown",
)


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel that is set up.

    Attributes:
        run: Address of its function.
        state: What the function gets.
        keep: What must live until it is torn down.
    """

    run: int
    state: int | None
    keep: list[Any]


class LoadableKernel(Protocol):
    """A kernel in a rank, whatever it is written in. Every method may raise `KernelError`."""

    def requirements(
        self, dimensions: Mapping[str, int], runtime: Mapping[str, int], rank: int, ranks: int
    ) -> abi.Requirements:
        """Asks what it needs for a shape."""
        ...

    def set_up(
        self,
        machine: Machine,
        memory: RankMemory,
        runtime: Mapping[str, int],
        needs: abi.Requirements,
    ) -> KernelCall:
        """Sets it up on its buffers."""
        ...

    def check(self) -> None:
        """Looks whether it left alone what is not its own."""
        ...

    def tear_down(self, machine: Machine, state: int | None) -> None:
        """Tears it down."""
        ...


class LoadedKernel:
    """The four functions of a kernel's library.

    Args:
        path: The library.

    Raises:
        KernelError: If it cannot be loaded, or lacks one of the functions.
    """

    def __init__(self, path: str) -> None:
        try:
            self._library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise KernelError(f"cannot load the kernel: {error}") from error
        missing = [name for name in _SYMBOLS if not hasattr(self._library, name)]
        if missing:
            raise KernelError(
                f"the kernel has no {missing[0]}; define it with C linkage as kernel.h says"
            )
        self.setup, self.run, self.teardown = (
            address_of(getattr(self._library, name)) for name in _SYMBOLS[1:]
        )

    def requirements(
        self, dimensions: Mapping[str, int], runtime: Mapping[str, int], rank: int, ranks: int
    ) -> abi.Requirements:
        """Asks what the kernel needs for a shape.

        Raises:
            KernelError: If it refuses, or was built for another version of the contract.
        """
        wanted = abi.Requirements()
        code = self._library.kerneltui_requirements(
            abi.named_values(dimensions),
            ctypes.c_uint32(len(dimensions)),
            abi.named_values(runtime),
            ctypes.c_uint32(len(runtime)),
            ctypes.c_uint32(rank),
            ctypes.c_uint32(ranks),
            ctypes.byref(wanted),
        )
        if code:
            raise KernelError(f"kerneltui_requirements returned {code}")
        if wanted.abi_version != abi.ABI_VERSION:
            raise KernelError(
                f"the kernel states ABI version {wanted.abi_version}, not {abi.ABI_VERSION}; "
                "set abi_version to KERNELTUI_ABI_VERSION in kerneltui_requirements"
            )
        return wanted

    def set_up(
        self,
        machine: Machine,
        memory: RankMemory,
        runtime: Mapping[str, int],
        needs: abi.Requirements,
    ) -> KernelCall:
        """Builds its context and calls its setup."""
        context, keep = build_context(memory, runtime, machine.threads)
        keep += [context, machine.equip(context, output_dtype(memory), needs)]
        return KernelCall(self.run, machine.harness.setup(self.setup, context), keep)

    def check(self) -> None:
        """Its address space is its own."""

    def tear_down(self, machine: Machine, state: int | None) -> None:
        """Calls its teardown."""
        machine.harness.teardown(self.teardown, state)


def output_dtype(memory: RankMemory) -> DType:
    """The element type of the first output of a rank."""
    row = memory.layout.ranks[memory.rank].sets[0]
    return next((tensor.dtype for tensor in row if tensor.role != "input"), DType.FLOAT32)
