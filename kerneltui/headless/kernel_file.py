"""Kernels that are named on the command line."""

from __future__ import annotations

from pathlib import Path

from kerneltui.model.errors import DefinitionError
from kerneltui.model.kernel import Kernel, parse_kernel

__all__ = ["read_kernel_file"]


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
