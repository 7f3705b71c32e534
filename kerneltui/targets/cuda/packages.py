"""What a CUDA build needs from this machine, and where it is: nvcc, NCCL, CUTLASS, a disassembler.

Packages are found by their lists of files, so that nothing has to be imported.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kerneltui.targets.environment import child_environment
from kerneltui.targets.errors import TargetError

__all__ = [
    "CudaToolkit",
    "Cutlass",
    "Nccl",
    "find_cutlass",
    "find_disassembler",
    "find_nccl",
    "find_toolkit",
    "installed_nccl",
    "math_libraries",
    "refuse_other_nccl",
]

_RELEASE = re.compile(r"release (\d+)\.(\d+)(?:, V([\d.]+))?")
_TOP = re.compile(r"^#\$ TOP=(.+)$", re.MULTILINE)
_NCCL_CODE = re.compile(r"^\s*#\s*define\s+NCCL_VERSION_CODE\s+(\d+)", re.MULTILINE)
_CUTLASS_PART = re.compile(r"^\s*#\s*define\s+CUTLASS_(MAJOR|MINOR|PATCH)\s+(\d+)", re.MULTILINE)
_NCCL_PACKAGES = {13: "nvidia-nccl-cu13", 12: "nvidia-nccl-cu12"}
_CUBLAS_PACKAGES = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12")
_SYSTEM_INCLUDES = (Path("/usr/include"), Path("/usr/local/include"))


@dataclass(frozen=True, slots=True)
class CudaToolkit:
    """An nvcc and its surroundings.

    Attributes:
        nvcc: The command.
        root: Folder of the toolkit, with headers and the programs that nvcc starts.
        version: Such as "13.0.88".
    """

    nvcc: Path
    root: Path
    version: str

    @property
    def major(self) -> int:
        """Major version, which NCCL must share."""
        return int(self.version.partition(".")[0])


@dataclass(frozen=True, slots=True)
class Nccl:
    """NCCL's headers, and its library where there is one.

    Attributes:
        include: Folder of nccl.h.
        library: libnccl.so.2, or None if only headers are there.
        code: NCCL_VERSION_CODE of the header, such as 22809.
        cuda_major: The CUDA major that it is made for, or None if nobody says so.
        origin: The package's name and version, or "system".
    """

    include: Path
    library: Path | None
    code: int
    cuda_major: int | None
    origin: str

    @property
    def version(self) -> str:
        """Such as "2.28.9"."""
        return _nccl_version(self.code)


@dataclass(frozen=True, slots=True)
class Cutlass:
    """CUTLASS's headers: their folder and version."""

    include: Path
    version: str


def find_toolkit(nvcc: str | None = None) -> CudaToolkit:
    """Finds nvcc: by argument, CUDA_HOME, CUDA_PATH, PATH, the usual folders, or a package.

    Raises:
        TargetError: There is none, or it does not work.
    """
    for candidate in _nvcc_candidates(nvcc):
        found = shutil.which(candidate)
        if found:
            return _toolkit(Path(found))
    if nvcc is not None:
        raise TargetError(f"no nvcc at {nvcc}; name the nvcc of a CUDA toolkit")
    raise TargetError(
        "no nvcc: not in CUDA_HOME, PATH or /usr/local/cuda; install the CUDA toolkit "
        "(13.0 fits the extra cuda13) or set CUDA_HOME"
    )


def installed_nccl() -> Nccl | None:
    """The NCCL that kernels are compiled against here, or None without one or without a toolkit."""
    try:
        return find_nccl(find_toolkit().major)
    except TargetError:
        return None


def find_nccl(cuda_major: int, home: Path | None = None) -> Nccl:
    """Finds NCCL for a CUDA major: in NCCL_HOME, the installed package, or the system.

    Raises:
        TargetError: There is none, only one for another CUDA, or two packages in each other's way.
    """
    named = home or _folder(os.environ.get("NCCL_HOME"))
    if named is not None:
        found = _nccl_at(named / "include", [named / "lib", named / "lib64"], None, str(named))
        if found is None:
            raise TargetError(f"no include/nccl.h in {named}; correct or unset NCCL_HOME")
        return found
    packages = {major: name for major, name in _NCCL_PACKAGES.items() if _version_of(name)}
    if len(packages) > 1:
        # both put their files into the same folder, so nobody can say which is there
        raise TargetError(
            f"{' and '.join(packages.values())} overwrite each other; "
            f"pip uninstall both, then install nvidia-nccl-cu{cuda_major}"
        )
    if cuda_major in packages:
        found = _nccl_in_package(packages[cuda_major], cuda_major)
        if found is not None:
            return found
    for include in _SYSTEM_INCLUDES:
        found = _nccl_at(include, _system_libraries(), None, "system")
        if found is not None:
            return found
    other = next(iter(packages.values()), None)
    if other is not None:
        raise TargetError(
            f"nvcc is of CUDA {cuda_major}, but NCCL is {other}; "
            f"pip uninstall {other}, then pip install nvidia-nccl-cu{cuda_major}"
        )
    raise TargetError(
        f"no NCCL headers for CUDA {cuda_major}: pip install nvidia-nccl-cu{cuda_major}, or set NCCL_HOME"
    )


def math_libraries() -> dict[str, str]:
    """Versions of torch and cuBLAS, in whose products GPUs are measured."""
    cublas = next((v for name in _CUBLAS_PACKAGES if (v := _version_of(name))), None)
    return {
        "torch": _version_of("torch") or "unknown",
        "cuBLAS": cublas or _system_cublas() or "unknown",
    }


def _system_cublas() -> str | None:
    """The full names of cuBLAS where it belongs to a toolkit; their ends are versions."""
    try:
        root = find_toolkit().root
    except TargetError:
        return None
    files = [*root.glob("lib64/libcublas.so.*.*"), *root.glob("targets/*/lib/libcublas.so.*.*")]
    return ", ".join(sorted({file.name for file in files})) or None


def refuse_other_nccl(header: Nccl, loaded_code: int) -> None:
    """Refuses a loaded NCCL that is not the one of the header.

    Its structures go to kernels by value, so a kernel that was built for another version reads
    garbage.

    Args:
        header: What kernels are compiled against.
        loaded_code: What ncclGetVersion says in the process.

    Raises:
        TargetError: They differ.
    """
    if header.code != loaded_code:
        raise TargetError(
            f"NCCL {_nccl_version(loaded_code)} is loaded, but kernels are built for {header.version} "
            f"({header.origin}); install the same version of both, and no older one in LD_LIBRARY_PATH"
        )


def find_cutlass() -> Cutlass | None:
    """Finds CUTLASS's headers: in CUTLASS_HOME, the installed package, or the system."""
    named = _folder(os.environ.get("CUTLASS_HOME"))
    folders = [named / "include"] if named else []
    folders += [file.parent.parent for file in _package_files("nvidia-cutlass", "cutlass.h")]
    for folder in (*folders, *_SYSTEM_INCLUDES):
        parts = dict(_CUTLASS_PART.findall(_read(folder / "cutlass" / "version.h")))
        if len(parts) == 3:
            return Cutlass(folder, f"{parts['MAJOR']}.{parts['MINOR']}.{parts['PATCH']}")
    return None


def find_disassembler(toolkit: CudaToolkit | None = None) -> Path | None:
    """Finds nvdisasm: in the toolkit, PATH, or an installed package."""
    folders = [toolkit.root / "bin"] if toolkit else []
    folders += _package_folders("nvidia-cuda-nvdisasm", "nvdisasm")
    folders += _package_folders("triton", "nvdisasm")
    path = os.pathsep.join(map(str, folders))
    found = shutil.which("nvdisasm", path=path) or shutil.which("nvdisasm")
    return Path(found) if found else None


def _nvcc_candidates(nvcc: str | None) -> Iterator[str]:
    if nvcc is not None:
        yield nvcc
        return
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = os.environ.get(variable)
        if home:
            yield f"{home}/bin/nvcc"
    yield "nvcc"
    yield "/usr/local/cuda/bin/nvcc"
    versioned = Path("/usr/local").glob("cuda-*/bin/nvcc")
    yield from sorted(map(str, versioned), key=_numbers, reverse=True)
    yield "/opt/cuda/bin/nvcc"
    for package in ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12"):
        yield from (str(folder / "nvcc") for folder in _package_folders(package, "nvcc"))


def _toolkit(nvcc: Path) -> CudaToolkit:
    match = _RELEASE.search(_output(nvcc, "--version"))
    if match is None:
        raise TargetError(
            f"{nvcc} --version does not work; install a CUDA toolkit or set CUDA_HOME"
        )
    # nvcc may be a script that calls the real one elsewhere; a dry run says where that is
    top = _TOP.search(_output(nvcc, "--dryrun", "-x", "cu", "/dev/null"))
    root = Path(top[1]).resolve() if top else nvcc.resolve().parent.parent
    return CudaToolkit(nvcc, root, match[3] or f"{match[1]}.{match[2]}")


def _output(program: Path, *arguments: str) -> str:
    try:
        result = subprocess.run(
            [str(program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
            env=child_environment({"LC_ALL": "C"}),
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout


def _nccl_in_package(package: str, cuda_major: int) -> Nccl | None:
    for header in _package_files(package, "nccl.h"):
        include = header.parent
        origin = f"{package} {_version_of(package)}"
        return _nccl_at(include, [include.parent / "lib"], cuda_major, origin)
    return None


def _nccl_at(
    include: Path, libraries: Iterable[Path], cuda_major: int | None, origin: str
) -> Nccl | None:
    match = _NCCL_CODE.search(_read(include / "nccl.h"))
    if match is None:
        return None
    files = [folder / "libnccl.so.2" for folder in libraries]
    library = next((file for file in files if file.exists()), None)
    return Nccl(include, library, int(match[1]), cuda_major, origin)


def _nccl_version(code: int) -> str:
    # 2.9 and later have two digits for the minor version: 22809 is 2.28.9, 2804 is 2.8.4
    if code >= 10000:
        return f"{code // 10000}.{code // 100 % 100}.{code % 100}"
    return f"{code // 1000}.{code // 100 % 10}.{code % 100}"


def _system_libraries() -> list[Path]:
    listed = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    machine = Path(f"/usr/lib/{os.uname().machine}-linux-gnu")
    usual = (machine, Path("/usr/lib64"), Path("/usr/lib"), Path("/usr/local/lib"))
    return [*(Path(folder) for folder in listed if folder), *usual]


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package_files(package: str, name: str) -> list[Path]:
    """The files of that name in an installed package."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = [Path(str(file.locate())) for file in files if file.name == name]
    return [file for file in found if file.exists()]


def _package_folders(package: str, name: str) -> list[Path]:
    return [file.parent for file in _package_files(package, name)]


def _folder(text: str | None) -> Path | None:
    return Path(text) if text else None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)]
