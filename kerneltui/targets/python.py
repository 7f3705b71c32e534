"""Builds of Python kernels: the text itself, once it is known to be Python, stored by content.

Nothing is run here. What a kernel compiles (Triton, CuPy), it compiles in its `setup`, in a confined rank.
"""

from __future__ import annotations

import ast
import secrets
import warnings
from pathlib import Path

from kerneltui.targets.building import content_key
from kerneltui.targets.errors import CompileFailure, TargetError
from kerneltui.targets.port import Build

__all__ = ["PythonBuilds", "is_python"]

_LONGEST_BYTES = 1 << 20


def is_python(library: Path) -> bool:
    """Whether a build is a Python kernel, which ranks load as a module and help to compile."""
    return library.suffix == ".py"


class PythonBuilds:
    """Stores Python kernels for the ranks to load. Any number of threads and processes may share it.

    Args:
        folder: Where they lie; made when needed. May be deleted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def compile(self, source_text: str) -> Build:
        """Checks that a text is Python and stores it, or gives the stored build of the same text.

        Raises:
            CompileFailure: It is not Python.
            TargetError: The folder cannot be written.
        """
        if len(source_text.encode()) > _LONGEST_BYTES:
            raise CompileFailure(f"kernel.py is longer than {_LONGEST_BYTES >> 20} MiB")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what the parser thinks of a backslash in a text
                ast.parse(source_text, "kernel.py")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            where = f"kernel.py({line}): " if line else "kernel.py: "
            text = getattr(error, "msg", None) or str(error) or type(error).__name__
            raise CompileFailure(f"{where}error: {text}", f"{where}error: {text}") from error
        key = content_key(("python kernel", source_text))
        library = self._folder / f"{key}.py"
        try:
            if library.exists() and library.read_text(encoding="utf-8") == source_text:
                return Build(library, key, True, 0.0, "")
            self._folder.mkdir(parents=True, exist_ok=True)
            part = library.with_suffix(f".{secrets.token_hex(4)}.tmp")
            part.write_text(source_text, encoding="utf-8")
            part.replace(library)
        except OSError as error:
            raise TargetError(
                f"cannot write the build cache {self._folder}: {error.strerror}"
            ) from error
        return Build(library, key, False, 0.0, "")
