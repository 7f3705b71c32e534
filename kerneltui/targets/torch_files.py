"""Headers and libraries of the installed torch, for kernels that extend it. Torch is not imported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from kerneltui.targets.errors import TargetError

__all__ = ["TorchFiles", "torch_files", "uses_torch"]

_INCLUDE = re.compile(r"^\s*#\s*include\s*[<\"](?:torch|ATen|c10)/", re.MULTILINE)
_LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libtorch_cuda.so", "libtorch.so")


@dataclass(frozen=True, slots=True)
class TorchFiles:
    """Where they are.

    Attributes:
        root: Folder of the package, with `include` and `lib`.
        version: Of the package.
    """

    root: Path
    version: str

    @property
    def compile_flags(self) -> list[str]:
        """For a compiler; without warnings about what is not the kernel's."""
        return ["-isystem", str(self.root / "include")]

    @property
    def link_flags(self) -> list[str]:
        """For the linker: the libraries that are there. A rank has loaded them already."""
        folder = self.root / "lib"
        names = [name for name in _LIBRARIES if (folder / name).exists()]
        return [f"-L{folder}", *(f"-l:{name}" for name in names)]


def uses_torch(source_text: str) -> bool:
    """Whether a C++ or CUDA text includes headers of torch."""
    return _INCLUDE.search(source_text) is not None


def torch_files() -> TorchFiles:
    """Finds the torch that ranks import.

    Raises:
        TargetError: There is none, or it has no headers.
    """
    spec = util.find_spec("torch")
    root = Path(spec.origin).parent if spec is not None and spec.origin else None
    if root is None or not (root / "include" / "torch").is_dir():
        raise TargetError("no headers of torch, which this kernel includes: pip install torch")
    return TorchFiles(root, metadata.version("torch"))
