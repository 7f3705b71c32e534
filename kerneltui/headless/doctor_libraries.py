"""What `kerneltui doctor` says of libraries that must fit each other: torch, NCCL, CuPy, CUTLASS."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerneltui.headless.finding import OFF, OK, Finding
from kerneltui.targets.cuda.packages import (
    CudaToolkit,
    Nccl,
    find_cutlass,
    find_nccl,
    find_toolkit,
    refuse_other_nccl,
)
from kerneltui.targets.environment import child_environment
from kerneltui.targets.errors import TargetError

__all__ = [
    "Loaded",
    "cupy_finding",
    "cutlass_finding",
    "found_nccl",
    "loaded",
    "nccl_finding",
    "torch_finding",
]

_LIMIT_S = 180.0  # importing torch from a cold disk
_MODULE = "kerneltui.evaluation.worker_versions"
_USUAL_MAJOR = 13


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a process gets that loads its libraries as a rank does.

    Attributes:
        torch: Its version; empty if it cannot be imported.
        cuda: The CUDA that it is made for, such as "13.0"; empty for a build without.
        nccl: NCCL_VERSION_CODE of the NCCL that is loaded behind it, or None.
        nccl_file: Where that lies, or why it cannot be loaded.
        problem: Why torch cannot be imported.
    """

    torch: str = ""
    cuda: str = ""
    nccl: int | None = None
    nccl_file: str = ""
    problem: str = ""

    @property
    def major(self) -> int | None:
        """CUDA major of torch."""
        return int(self.cuda.partition(".")[0]) if self.cuda else None


def loaded() -> Loaded:
    """Starts such a process and asks it; takes the seconds of importing torch."""
    try:
        result = subprocess.run(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
            env=child_environment({}),  # no device is touched
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Loaded(problem=f"torch was not imported: {error}")
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        return Loaded(problem=f"torch cannot be imported: {lines[-1]}")
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return Loaded(found["torch"], found["cuda"] or "", found["nccl"], found["nccl_file"])


def torch_finding(ranks: Loaded) -> Finding:
    """Whether torch is one for GPUs, and of the CUDA that nvcc is of."""
    name = "torch cuda"
    if ranks.problem:
        return Finding(name, OFF, "not usable", ranks.problem)
    toolkit = _toolkit()
    wanted = _another_torch(toolkit.major if toolkit else _USUAL_MAJOR)
    if ranks.major is None:
        text = f"{ranks.torch} is for CPUs only; the cuda target needs one for GPUs"
        return Finding(name, OFF, text, wanted)
    text = f"{ranks.torch} is of CUDA {ranks.cuda}"
    if toolkit is not None and ranks.major != toolkit.major:
        remedy = (
            f"{wanted}; or install the CUDA {ranks.major} toolkit and kerneltui[cuda{ranks.major}]"
        )
        return Finding(name, OFF, f"{text}, nvcc of {toolkit.version}", remedy)
    return Finding(name, OK, text)


def nccl_finding(ranks: Loaded | None) -> Finding:
    """Whether the NCCL that kernels are compiled against is the one that ranks load.

    Args:
        ranks: What they load; None on a machine without a GPU, where only the files are looked at.
    """
    try:
        nccl = found_nccl()
    except TargetError as error:
        return Finding("nccl", OFF, "none that fits", str(error) if ranks else "")
    text = f"headers {nccl.version}, {nccl.origin}"
    if nccl.library is None:
        remedy = "kernels that call NCCL do not link: install its library of the same version"
        return Finding("nccl", OFF, f"{text}, no library", remedy)
    if ranks is None:
        return _beside(nccl, text)
    if ranks.problem:
        return Finding("nccl", OFF, f"{text}, library not loaded", ranks.problem)
    if ranks.nccl is None:
        why = f": {ranks.nccl_file}" if ranks.nccl_file else ""
        remedy = f"ranks load none{why}; pip install {nccl.origin.partition(' ')[0]}"
        if nccl.origin.partition(" ")[0] == "system":
            remedy = f"ranks load none{why}; put {nccl.library.parent} into LD_LIBRARY_PATH"
        return Finding("nccl", OFF, f"{text}, library not loaded", remedy)
    try:
        refuse_other_nccl(nccl, ranks.nccl)
    except TargetError as error:
        remedy = f"{error} (loaded: {ranks.nccl_file})" if ranks.nccl_file else str(error)
        return Finding("nccl", OFF, f"{text}, ranks load another", remedy)
    return Finding("nccl", OK, f"{text}, and ranks load the same")


def _beside(nccl: Nccl, text: str) -> Finding:
    """Header and the library beside it, where no rank can run."""
    assert nccl.library is not None
    code = _code_of(nccl.library)
    if code is None:
        # the library needs the driver; without a GPU there is nothing to compare
        return Finding("nccl", OK, f"{text}, library not loaded")
    try:
        refuse_other_nccl(nccl, code)
    except TargetError as error:
        return Finding("nccl", OFF, f"{text}, another library", str(error))
    return Finding("nccl", OK, f"{text}, library the same")


def cupy_finding() -> Finding:
    """Whether CuPy is there for the CUDA that nvcc is of; only kernels in Python ask for it."""
    toolkit = _toolkit()
    major = toolkit.major if toolkit else _USUAL_MAJOR
    made = {name: version for name in _cupy_names() if (version := _version(name))}
    remedy = f"for Python kernels that import it: pip install cupy-cuda{major}x"
    if not made:
        return Finding("cupy", OFF, "not found", remedy)
    text = ", ".join(f"{name} {version}" for name, version in made.items())
    if len(made) > 1:
        remedy = f"pip uninstall {' '.join(made)}, then pip install cupy-cuda{major}x"
        return Finding("cupy", OFF, f"{text} overwrite each other", remedy)
    (name,) = made
    if name not in ("cupy", f"cupy-cuda{major}x"):
        remedy = f"pip uninstall {name}, then pip install cupy-cuda{major}x"
        return Finding("cupy", OFF, f"{text}, but nvcc is of CUDA {major}", remedy)
    return Finding("cupy", OK, text)


def cutlass_finding(has_gpu: bool) -> Finding:
    """Whether CUTLASS's headers are there; only kernels that include them need them."""
    found = find_cutlass()
    if found is not None:
        return Finding("cutlass", OK, f"headers {found.version}, {found.include}")
    remedy = "for kernels that include them: pip install nvidia-cutlass, or set CUTLASS_HOME"
    return Finding("cutlass", OFF, "no headers", remedy if has_gpu else "")


def found_nccl() -> Nccl:
    """NCCL for nvcc's CUDA.

    Raises:
        TargetError: There is none that fits.
    """
    toolkit = _toolkit()
    return find_nccl(toolkit.major if toolkit else _USUAL_MAJOR)


def _toolkit() -> CudaToolkit | None:
    try:
        return find_toolkit()
    except TargetError:
        return None


def _code_of(library: Path) -> int | None:
    """What a library says of itself; None if it cannot be loaded."""
    code = ctypes.c_int()
    try:
        if ctypes.CDLL(str(library)).ncclGetVersion(ctypes.byref(code)):
            return None
    except (OSError, AttributeError):
        return None
    return code.value


def _cupy_names() -> list[str]:
    return ["cupy", *(f"cupy-cuda{major}x" for major in (11, 12, 13))]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _another_torch(major: int) -> str:
    where = f"--index-url https://download.pytorch.org/whl/cu{major}0"
    if major != _USUAL_MAJOR:
        where = "as pytorch.org/get-started says"
    return f"install a torch for CUDA {major}: pip install --force-reinstall torch {where}"
