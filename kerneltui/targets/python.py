"""Builds of Python kernels: the text itself, once it is known to be Python, stored by content.

Nothing is run here. What a kernel compiles (Triton, CuPy), it compiles in its `setup`, in a confined rank.
Its extension of torch is a text of C++ or CUDA, compiled as a kernel in that language is.
"""

from __future__ import annotations

import ast
import secrets
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

from kerneltui.targets.building import content_key
from kerneltui.targets.errors import CompileFailure, TargetError
from kerneltui.targets.port import Build

__all__ = ["EXTENSION", "PythonBuilds", "extension_file", "extension_text", "is_python"]

EXTENSION = "EXTENSION"
"""What a kernel calls the text of its extension."""

_LONGEST_BYTES = 1 << 20


def is_python(library: Path) -> bool:
    """Whether a build is a Python kernel, which ranks load as a module and help to compile."""
    return library.suffix == ".py"


def extension_file(library: Path) -> Path:
    """Where the library of a Python kernel's extension lies, if it has one."""
    return library.with_suffix(".so")


def extension_text(source_text: str) -> str:
    """The C++ or CUDA of a Python kernel, each line where it stands in the kernel; "" if there is none.

    Raises:
        CompileFailure: It is not one text, written out.
        SyntaxError: The kernel is not Python.
    """
    found: list[ast.expr | None] = []
    for node in ast.parse(source_text, "kernel.py").body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        if any(isinstance(t, ast.Name) and t.id == EXTENSION for t in targets):
            found.append(node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None)
    if not found:
        return ""
    value = found[-1]
    if len(found) > 1 or not (isinstance(value, ast.Constant) and isinstance(value.value, str)):
        line = getattr(value, "lineno", 1)
        error = f"kernel.py({line}): error: {EXTENSION} is one text, written out"
        raise CompileFailure(error, error)
    return "\n" * (value.lineno - 1) + value.value


class PythonBuilds:
    """Stores Python kernels for the ranks to load. Any number of threads and processes may share it.

    Args:
        folder: Where they lie; made when needed. May be deleted.
        native: Compiles the text of an extension; without it kernels have none.
    """

    def __init__(self, folder: Path, native: Callable[[str], Build] | None = None) -> None:
        self._folder = folder
        self._native = native

    def compile(self, source_text: str) -> Build:
        """Checks that a text is Python and stores it, or gives the stored build of the same text.

        Raises:
            CompileFailure: It is not Python, or its extension does not build.
            TargetError: The folder cannot be written.
        """
        if len(source_text.encode()) > _LONGEST_BYTES:
            raise CompileFailure(f"kernel.py is longer than {_LONGEST_BYTES >> 20} MiB")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what the parser thinks of a backslash in a text
                text = extension_text(source_text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            where = f"kernel.py({line}): " if line else "kernel.py: "
            what = getattr(error, "msg", None) or str(error) or type(error).__name__
            raise CompileFailure(f"{where}error: {what}", f"{where}error: {what}") from error
        native = self._extension(text) if text else None
        key = content_key(("python kernel", source_text, native.key if native else ""))
        library = self._folder / f"{key}.py"
        try:
            stored = library.exists() and library.read_text(encoding="utf-8") == source_text
            if not stored or (native and not extension_file(library).exists()):
                self._store(library, source_text, native)
                stored = False
        except OSError as error:
            raise TargetError(
                f"cannot write the build cache {self._folder}: {error.strerror}"
            ) from error
        if native is None:
            return Build(library, key, stored, 0.0, "")
        return Build(library, key, stored and native.cached, native.seconds, native.log)

    def _extension(self, text: str) -> Build:
        if self._native is None:
            raise CompileFailure("kernel.py: extensions of torch cannot be compiled here")
        try:
            return self._native(text)
        except CompileFailure as failure:
            failure.reason = _own_name(failure.reason)
            failure.log = _own_name(failure.log)
            raise

    def _store(self, library: Path, source_text: str, native: Build | None) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        part = library.with_suffix(f".{secrets.token_hex(4)}.tmp")
        if native is not None:  # first: a kernel that is there has its extension beside it
            shutil.copyfile(native.library, part)
            part.replace(extension_file(library))
        part.write_text(source_text, encoding="utf-8")
        part.replace(library)


def _own_name(text: str) -> str:
    """The compiler's words, with the file that the lines belong to."""
    return text.replace("kernel.cpp", "kernel.py").replace("kernel.cu", "kernel.py")
