"""What doctor says of GPUs, over machines that are made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kerneltui.headless import doctor_gpu
from kerneltui.headless.finding import Finding
from kerneltui.targets.cuda import driver
from kerneltui.targets.cuda.packages import CudaToolkit, Nccl
from kerneltui.targets.errors import TargetError


class Machine:
    """Two H200s with everything that there is; tests take parts away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.patch = monkeypatch
        self.folder = tmp_path
        self.toolkit = CudaToolkit(Path("/cuda/bin/nvcc"), Path("/cuda"), "13.0.88")
        self.nccl = Nccl(Path("/i"), Path("/l/libnccl.so.2"), 22809, 13, "nvidia-nccl-cu13 2.28.9")
        self.loaded: int | None = 22809
        self.cuda = (13, 0)
        self.count = 2
        self.peers = True
        self.ncu: dict[str, str | None] = {
            "ncu": "NVIDIA (R) Nsight Compute",
            "sh": "Version 2025.3",
        }
        (tmp_path / "infiniband").mkdir()
        fake = SimpleNamespace(
            count=2, driver="580.65.06", describe=lambda index: SimpleNamespace(name="NVIDIA H200")
        )
        self.set("Gpus", lambda: fake)
        self.set("find_toolkit", lambda: self.toolkit)
        self.set("find_disassembler", lambda toolkit: Path("/cuda/bin/nvdisasm"))
        self.set("find_nccl", lambda major: self.nccl)
        self.set("_loaded_code", lambda library: self.loaded)
        self.set("_ADAPTERS", tmp_path / "infiniband")
        self.set("_DRIVER_PARAMETERS", tmp_path / "params")
        self.set("_has_library", lambda name: False)
        self.set("first_line", lambda *command: self.ncu[command[0]])
        monkeypatch.setattr(doctor_gpu.shutil, "which", lambda name: f"/usr/bin/{name}")
        monkeypatch.setattr(doctor_gpu.importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(driver, "cuda_version", lambda: self.cuda)
        monkeypatch.setattr(driver, "device_count", lambda: self.count)
        monkeypatch.setattr(driver, "can_access_peer", lambda a, b: self.peers)

    def set(self, name: str, value: Any) -> None:
        self.patch.setattr(doctor_gpu, name, value)

    def __getitem__(self, name: str) -> Finding:
        return next(finding for finding in doctor_gpu.gpu_findings() if finding.name == name)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def test_a_whole_host_needs_nothing_but_an_adapter(machine: Machine) -> None:
    found = {finding.name: finding for finding in doctor_gpu.gpu_findings()}
    assert list(found) == ["gpu", "nvcc", "nccl", "lsa", "gin", "ncu", "nvmath"]
    assert found["gpu"].text == "2x NVIDIA H200, driver 580.65.06, CUDA up to 13.0"
    assert found["nccl"].text.endswith("library the same")
    assert found["lsa"].text == "2 GPUs reach each other's memory"
    assert found["ncu"].text == "Version 2025.3, counters are permitted"
    assert [name for name, finding in found.items() if finding.state != "ok"] == ["gin"]
    assert "no RDMA adapter" in found["gin"].text and found["gin"].remedy


def test_a_machine_without_gpus_says_so_and_asks_no_more(machine: Machine) -> None:
    machine.patch.setattr(doctor_gpu.shutil, "which", lambda name: None)
    machine.patch.setattr(doctor_gpu.Path, "exists", lambda self: False)
    assert [finding.name for finding in doctor_gpu.gpu_findings()] == ["gpu", "nvcc", "nccl"]
    assert machine["gpu"].text == "none"


def test_a_gpu_that_cannot_be_seen_has_the_reason(machine: Machine) -> None:
    def broken() -> None:
        raise TargetError("no GPU to be seen: Driver/library version mismatch")

    machine.set("Gpus", broken)
    assert machine["gpu"].remedy == "no GPU to be seen: Driver/library version mismatch"


def test_a_toolkit_that_is_newer_than_the_driver(machine: Machine) -> None:
    machine.cuda = (12, 8)
    assert machine["nvcc"].state == "off"
    assert "the driver runs CUDA 12 at most" in machine["nvcc"].remedy


def test_nccl_whose_library_is_another_one(machine: Machine) -> None:
    machine.loaded = 22703
    assert machine["nccl"].state == "off"
    assert "NCCL 2.27.3 is loaded, but kernels are built for 2.28.9" in machine["nccl"].remedy


@pytest.mark.parametrize(("library", "state"), [(None, "off"), (Path("/l"), "ok")])
def test_nccl_without_a_library_that_loads(
    machine: Machine, library: Path | None, state: str
) -> None:
    machine.nccl = Nccl(Path("/i"), library, 22809, 13, "system")
    machine.loaded = None
    assert machine["nccl"].state == state


def test_loads_and_stores_need_two_gpus_that_reach_each_other(machine: Machine) -> None:
    machine.peers = False
    assert machine["lsa"].text == "no peer access between GPUs 0 and 1"
    machine.count = 1
    assert machine["lsa"].text.startswith("one GPU")


def test_an_older_nccl_has_neither_device_communicator_nor_gin(machine: Machine) -> None:
    machine.nccl = Nccl(Path("/i"), Path("/l"), 22703, 13, "system")
    machine.loaded = 22703
    assert machine["lsa"].state == "ok" and "NCCL 2.28" in machine["lsa"].remedy
    assert machine["gin"].text == "not possible: it needs NCCL 2.28.7 or newer"


def test_gin_with_an_adapter_goes_through_the_proxy_or_without_it(machine: Machine) -> None:
    (machine.folder / "infiniband" / "mlx5_0").mkdir()
    assert machine["gin"].text == "mlx5_0, through the host's proxy"
    machine.set("_has_library", lambda name: name == "libdoca_gpunetio.so")
    assert machine["gin"].text == "mlx5_0, with DOCA GPUNetIO"


def test_counters_that_are_for_administrators(machine: Machine) -> None:
    (machine.folder / "params").write_text("RmProfilingAdminOnly: 1\n")
    machine.patch.setattr(doctor_gpu.os, "geteuid", lambda: 1000)
    assert "administrators only" in machine["ncu"].text
    assert "NVreg_RestrictProfilingToAdminUsers=0" in machine["ncu"].remedy
    machine.patch.setattr(doctor_gpu.os, "geteuid", lambda: 0)
    assert machine["ncu"].state == "ok"


def test_what_is_not_installed_has_a_remedy(machine: Machine) -> None:
    machine.ncu["ncu"] = None
    machine.patch.setattr(doctor_gpu.importlib.util, "find_spec", lambda name: None)
    assert machine["ncu"].remedy.startswith("install Nsight Compute")
    assert machine["nvmath"].remedy == "pip install nvmath-python[cu13]"
