"""A Python kernel in a rank: how its functions become those of the contract."""

from __future__ import annotations

import gc
import importlib.util
import io
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.worker_guard import Guard, use_plain_arithmetic
from kerneltui.evaluation.worker_kernel import KernelError, Machine, address_of
from kerneltui.evaluation.worker_loaded import (
    KernelCall,
    LoadableKernel,
    LoadedKernel,
    output_dtype,
)
from kerneltui.evaluation.worker_memory import RankMemory, build_context
from kerneltui.evaluation.worker_python_context import (
    Context,
    Problem,
    PythonFace,
    frozen,
    make_context,
)
from kerneltui.targets.errors import FailureKind
from kerneltui.targets.python import extension_file, is_python

__all__ = ["PythonKernel", "load_kernel"]

_NAME = "kerneltui_kernel"
_FIELDS = {
    "signal_words",
    "scratch_bytes",
    "window_bytes",
    "side_streams",
    "host_collectives",
    "graph_safe",
}
_LONGEST_REASON = 320  # with the words around it, one line of a failure


def load_kernel(path: str, machine: Machine) -> LoadableKernel:
    """Loads a build: a library, or a Python kernel.

    Raises:
        KernelError: If it cannot be loaded.
    """
    if is_python(Path(path)):
        return PythonKernel(path, machine.compiling)
    return LoadedKernel(path)


class PythonKernel:
    """The functions of a Python kernel.

    Args:
        path: The file.
        compiling: Within it, compilers may run.

    Raises:
        KernelError: If it cannot be imported, or has no `run`.
    """

    def __init__(self, path: str, compiling: Callable[[], AbstractContextManager[None]]) -> None:
        self._path = path
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # a rank may end without a farewell
        use_plain_arithmetic()
        self._guard = Guard()
        self._extended = self._load_extension()
        with compiling():
            self._module = self._imported()
        if not callable(getattr(self._module, "run", None)):
            raise KernelError("the kernel has no function run(context, state, set, epoch)")
        self._face: PythonFace | None = None
        self._context: Context | None = None
        self._state: Any = None

    def requirements(
        self, dimensions: Mapping[str, int], runtime: Mapping[str, int], rank: int, ranks: int
    ) -> abi.Requirements:
        """Asks what the kernel needs for a shape.

        Raises:
            KernelError: If it refuses, or asks for what there is not.
        """
        problem = Problem(frozen(dimensions), frozen(runtime), rank, ranks)
        asked = self._call("requirements", problem) or {}
        if not isinstance(asked, Mapping):
            raise KernelError("requirements returned something that is no dict")
        unknown = [str(name) for name in asked if name not in _FIELDS]
        if unknown:
            known = ", ".join(sorted(_FIELDS))
            raise KernelError(f"requirements asks for '{unknown[0]}'; there are {known}")
        wanted = abi.Requirements(abi_version=abi.ABI_VERSION)
        for name, value in asked.items():
            if isinstance(value, float) or not 0 <= int(value) < 1 << 48:
                raise KernelError(f"requirements: {name} is {value}")
            setattr(wanted, name, int(value))
        return wanted

    def set_up(
        self,
        machine: Machine,
        memory: RankMemory,
        runtime: Mapping[str, int],
        needs: abi.Requirements,
    ) -> KernelCall:
        """Gives it its buffers and calls its `setup`.

        Raises:
            KernelError: If it fails.
        """
        native, keep = build_context(memory, runtime, machine.threads)
        keep += [native, machine.equip(native, output_dtype(memory), needs)]
        face = machine.python_face(native, needs)
        self._face = face
        self._context = make_context(
            memory, runtime, machine.threads, face, extended=self._extended
        )
        with face.setting_up(), torch.no_grad():
            self._state = self._call("setup", self._context)
        gc.collect()
        gc.freeze()  # a sweep over all of torch would take longer than a sample
        face.before_calls()
        self.check()
        function = abi.RunFunction(self._as_run(machine))
        return KernelCall(address_of(function), None, [*keep, function])

    def check(self) -> None:
        """Looks whether the kernel changed what is not its own.

        Raises:
            KernelError: If it did.
        """
        stream = self._face.stream if self._face is not None else None
        changed = self._guard.changed(stream)
        if changed:
            raise KernelError(f"the kernel changed {changed}")

    def tear_down(self, machine: Machine, state: int | None) -> None:
        """Calls its `teardown` and forgets its tensors."""
        face, context = self._face, self._context
        self._face = self._context = None
        mine, self._state = self._state, None
        if face is not None and context is not None:
            face.after_calls()
            if hasattr(self._module, "teardown"):
                self._call("teardown", context, mine)
        gc.unfreeze()

    def _load_extension(self) -> bool:
        """Loads the library of the kernel's extension, if it has one."""
        library = extension_file(Path(self._path))
        if not library.exists():
            return False
        try:
            torch.ops.load_library(str(library))
        except BaseException as error:
            raise KernelError(f"cannot load the extension: {self._reason(error)}") from error
        return True

    def _imported(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location(_NAME, self._path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_NAME] = module  # where Triton looks for the text of a function
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            raise KernelError(f"cannot load the kernel: {self._reason(error)}") from error
        return module

    def _call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._module, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except BaseException as error:
            kind = _kind(error)
            raise KernelError(f"{name} raised {self._reason(error)}", kind) from error

    def _as_run(self, machine: Machine) -> Callable[[int | None, int, int, int | None], int]:
        run, context, state = self._module.run, self._context, self._state
        fail = machine.harness.fail

        def call(_state: int | None, set_index: int, epoch: int, _stream: int | None) -> int:
            try:
                run(context, state, set_index, epoch)
            except BaseException as error:
                # The caller is C: whatever it is, SystemExit too, becomes a code.
                fail(self._reason(error))
                return 1
            return 0

        return call

    def _reason(self, error: BaseException) -> str:
        """An exception as one line, with the line of the kernel that it came from."""
        text = " ".join(str(error).split())
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame.lineno for frame in frames if frame.filename == self._path and frame.lineno]
        where = f" (line {own[-1]})" if own else ""
        name = type(error).__name__
        return f"{name}: {text[:_LONGEST_REASON]}{where}" if text else f"{name}{where}"


def _kind(error: BaseException) -> FailureKind:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate" in str(error):
        return FailureKind.OUT_OF_MEMORY
    return FailureKind.ERROR
