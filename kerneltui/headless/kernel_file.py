"""Kernels that are named on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kerneltui.model.errors import DefinitionError
from kerneltui.model.kernel import Kernel, parse_kernel
from kerneltui.model.workload_file import load_workload

__all__ = ["read_kernel_file", "target_of"]


def read_kernel_file(file: Path) -> Kernel:
    """Reads and parses a kernel.

    Raises:
        DefinitionError: The file cannot be read, or its declarations are wrong.
    """
    try:
        return parse_kernel(file.read_text(encoding="utf-8"), file.name)
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise DefinitionError(str(file), "kernel", f"cannot be read ({problem})") from error


def target_of(folder: Path, kernels: Sequence[Path]) -> str | None:
    """Returns the workload's first target whose seed is written as a kernel is; None if that says nothing.

    A CUDA kernel is no kernel of the CPU, which is the first target of most workloads.

    Raises:
        DefinitionError: The definition is wrong.
    """
    endings = {file.suffix for file in kernels} - {".py"}
    targets = load_workload(folder).targets.values() if endings else ()
    return next((spec.name for spec in targets if Path(spec.seed).suffix in endings), None)
