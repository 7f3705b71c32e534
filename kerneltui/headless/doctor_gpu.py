"""What `kerneltui doctor` says of GPUs: driver and toolkit, what NCCL can do here, profiler.

Nothing is set, and no kernel runs. A machine without a GPU gets a line that says so, and those of the
toolkit, since kernels can be compiled on it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from kerneltui.headless.doctor_libraries import (
    cupy_finding,
    cutlass_finding,
    found_nccl,
    loaded,
    nccl_finding,
    torch_finding,
)
from kerneltui.headless.finding import OFF, OK, Finding, first_line
from kerneltui.targets.cuda import driver
from kerneltui.targets.cuda.device import Gpus
from kerneltui.targets.cuda.packages import find_disassembler, find_toolkit
from kerneltui.targets.errors import TargetError

__all__ = ["gpu_findings"]

_LSA_SINCE, _GIN_SINCE = 22800, 22807
_ADAPTERS = Path("/sys/class/infiniband")
_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
_ADMIN_ONLY = re.compile(r"^RmProfilingAdminOnly:\s*1\b", re.MULTILINE)


def gpu_findings() -> Iterator[Finding]:
    """Looks at everything that the CUDA target needs or can use."""
    gpus = _gpus()
    yield gpus
    yield _nvcc(bool(_driver_cuda()))
    if gpus.state != OK:
        yield nccl_finding(None)
        yield cutlass_finding(False)
        return
    ranks = loaded()
    yield torch_finding(ranks)
    yield nccl_finding(ranks)
    yield cupy_finding()
    yield cutlass_finding(True)
    checks: list[Callable[[], Finding]] = [_lsa, _gin, _ncu, _nvmath]
    for check in checks:
        yield check()


def _gpus() -> Finding:
    if shutil.which("nvidia-smi") is None and not Path("/dev/nvidia0").exists():
        return Finding("gpu", OFF, "none", "the cpu target works without one")
    try:
        gpus = Gpus()
        names = [gpus.describe(index).name for index in range(gpus.count)]
    except TargetError as error:
        return Finding("gpu", OFF, "cannot be used", str(error))
    kinds = ", ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names))
    newest = _driver_cuda()
    up_to = f", CUDA up to {newest[0]}.{newest[1]}" if newest else ""
    return Finding("gpu", OK, f"{kinds}, driver {gpus.driver}{up_to}")


def _driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA that the driver runs; None without a driver."""
    try:
        return driver.cuda_version()
    except driver.DriverError:
        return None


def _nvcc(has_driver: bool) -> Finding:
    try:
        toolkit = find_toolkit()
    except TargetError as error:
        return Finding("nvcc", OFF, "not found", str(error) if has_driver else "")
    disassembler = find_disassembler(toolkit)
    text = f"{toolkit.version}, {toolkit.nvcc}" + (", nvdisasm" if disassembler else "")
    newest = _driver_cuda()
    if newest and toolkit.major > newest[0]:
        remedy = (
            f"the driver runs CUDA {newest[0]} at most: install a newer driver, or the CUDA "
            f"{newest[0]} toolkit with kerneltui[cuda{newest[0]}]"
        )
        return Finding("nvcc", OFF, f"{text}: too new for the driver", remedy)
    remedy = "" if disassembler else "to count instructions: pip install nvidia-cuda-nvdisasm"
    return Finding("nvcc", OK, text, remedy)


def _lsa() -> Finding:
    count = driver.device_count()
    if count < 2:
        text = "one GPU: there is no peer to load from or store to"
        return Finding("lsa", OFF, text, "a second GPU on NVLink, for kernels of several ranks")
    apart = [
        (first, second)
        for first in range(count)
        for second in range(count)
        if first != second and not driver.can_access_peer(first, second)
    ]
    if apart:
        pairs = ", ".join(f"{a} and {b}" for a, b in apart if a < b)
        remedy = (
            "choose GPUs that reach each other with CUDA_VISIBLE_DEVICES; see nvidia-smi topo -m"
        )
        return Finding("lsa", OFF, f"no peer access between GPUs {pairs}", remedy)
    text = f"{count} GPUs reach each other's memory"
    try:
        code = found_nccl().code
    except TargetError:
        code = 0
    if code < _LSA_SINCE:
        remedy = "for NCCL's own device communicator: NCCL 2.28 or newer"
        return Finding("lsa", OK, f"{text}, by kerneltui's windows", remedy)
    return Finding("lsa", OK, text)


def _gin() -> Finding:
    adapters = sorted(path.name for path in _ADAPTERS.iterdir()) if _ADAPTERS.is_dir() else []
    try:
        code = found_nccl().code
    except TargetError:
        code = 0
    if code < _GIN_SINCE:
        text = "not possible: it needs NCCL 2.28.7 or newer"
        return Finding("gin", OFF, text, "pip install a newer nvidia-nccl")
    if not adapters:
        remedy = "GIN kernels compile here, but run only on a host with an RDMA adapter"
        return Finding("gin", OFF, f"not possible: no RDMA adapter in {_ADAPTERS}", remedy)
    if _has_library("libdoca_gpunetio.so"):
        return Finding("gin", OK, f"{', '.join(adapters)}, with DOCA GPUNetIO")
    remedy = "for transfers without the host: install DOCA GPUNetIO; else NCCL_GIN_TYPE=2 (proxy)"
    return Finding("gin", OK, f"{', '.join(adapters)}, through the host's proxy", remedy)


def _has_library(name: str) -> bool:
    folders = (Path("/opt/mellanox/doca/lib"), Path("/usr/lib"), Path("/usr/local/lib"))
    return any(True for folder in folders for _ in folder.rglob(f"{name}*"))


def _ncu() -> Finding:
    line = first_line("ncu", "--version")
    if line is None:
        remedy = "install Nsight Compute (part of the CUDA toolkit) and put ncu into PATH"
        return Finding("ncu", OFF, "not found", remedy)
    version = first_line("sh", "-c", "ncu --version | tail -1") or line
    try:
        admin_only = bool(_ADMIN_ONLY.search(_DRIVER_PARAMETERS.read_text(encoding="utf-8")))
    except OSError:
        admin_only = False
    if admin_only and os.geteuid() != 0:
        remedy = (
            "the administrator can allow it: options nvidia NVreg_RestrictProfilingToAdminUsers=0 in "
            "/etc/modprobe.d, then load the driver again"
        )
        return Finding("ncu", OFF, f"{version}: counters are for administrators only", remedy)
    return Finding("ncu", OK, f"{version}, counters are permitted")


def _nvmath() -> Finding:
    if importlib.util.find_spec("nvmath") is None:
        remedy = "pip install nvmath-python[cu13]"
        return Finding("nvmath", OFF, "not found: no autotuned cuBLASLt baseline", remedy)
    try:
        version = importlib.metadata.version("nvmath-python")
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    return Finding("nvmath", OK, version)
