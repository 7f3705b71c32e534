"""What is compiled of a kernel: its text with its identity, for the element type of the workload."""

from __future__ import annotations

import hashlib

from kerneltui.model.kernel import Kernel, Language

__all__ = ["element_define", "identity_of", "kernel_text"]

_IDENTITY = "kerneltui-source:"


def identity_of(kernel: Kernel) -> str:
    """Returns the text that a library of this kernel must contain."""
    return _IDENTITY + hashlib.sha256(kernel.build_text().encode()).hexdigest()


def kernel_text(kernel: Kernel) -> str:
    """Returns the text that is compiled: the kernel, and its identity for reading back."""
    if kernel.language is Language.PYTHON:
        return f"{kernel.build_text()}\n# {identity_of(kernel)}\n"
    return (
        f"{kernel.build_text()}\n"
        'extern "C" __attribute__((used, visibility("default"))) const char kerneltui_identity[] =\n'
        f'    "{identity_of(kernel)}";\n'
    )


def element_define(dtype: str) -> dict[str, str]:
    """Returns the macro that tells a kernel for which element type it is built; see kernel.h."""
    return {"KT_ELEMENT": f"KT_ELEMENT_{dtype.upper()}"}
