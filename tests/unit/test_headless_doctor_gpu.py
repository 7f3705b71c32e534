"""What doctor says of GPUs and their libraries, over machines that are made up."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kerneltui.headless import doctor_gpu, doctor_libraries
from kerneltui.headless.doctor_libraries import Loaded
from kerneltui.headless.finding import Finding
from kerneltui.targets.cuda import driver
from kerneltui.targets.cuda.packages import CudaToolkit, Cutlass, Nccl
from kerneltui.targets.errors import TargetError


class Machine:
    """Two H200s with everything that there is; tests take parts away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.patch = monkeypatch
        self.folder = tmp_path
        self.toolkit = CudaToolkit(Path("/cuda/bin/nvcc"), Path("/cuda"), "13.0.88")
        self.nccl = Nccl(Path("/i"), Path("/l/libnccl.so.2"), 22809, 13, "nvidia-nccl-cu13 2.28.9")
        self.beside: int | None = 22809
        self.ranks = Loaded("2.11.0+cu130", "13.0", 22809, "/site/nvidia/nccl/lib/libnccl.so.2")
        self.packages = {"cupy-cuda13x": "14.2.0"}
        self.cutlass: Cutlass | None = Cutlass(Path("/c/include"), "4.2.1")
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
        self.set("loaded", lambda: self.ranks)
        libraries: dict[str, Any] = {
            "find_toolkit": lambda: self.toolkit,
            "find_nccl": lambda major: self.nccl,
            "find_cutlass": lambda: self.cutlass,
            "_code_of": lambda library: self.beside,
            "_version": lambda package: self.packages.get(package),
        }
        for name, value in libraries.items():
            monkeypatch.setattr(doctor_libraries, name, value)
        self.set("find_disassembler", lambda toolkit: Path("/cuda/bin/nvdisasm"))
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
    names = ["gpu", "nvcc", "torch cuda", "nccl", "cupy", "cutlass", "lsa", "gin", "ncu", "nvmath"]
    assert list(found) == names
    assert found["gpu"].text == "2x NVIDIA H200, driver 580.65.06, CUDA up to 13.0"
    assert found["torch cuda"].text == "2.11.0+cu130 is of CUDA 13.0"
    assert found["nccl"].text.endswith("and ranks load the same")
    assert found["cupy"].text == "cupy-cuda13x 14.2.0"
    assert found["cutlass"].text == "headers 4.2.1, /c/include"
    assert found["lsa"].text == "2 GPUs reach each other's memory"
    assert found["ncu"].text == "Version 2025.3, counters are permitted"
    assert [name for name, finding in found.items() if finding.state != "ok"] == ["gin"]
    assert "no RDMA adapter" in found["gin"].text and found["gin"].remedy


def test_a_machine_without_gpus_says_so_and_asks_no_more(machine: Machine) -> None:
    machine.patch.setattr(doctor_gpu.shutil, "which", lambda name: None)
    machine.patch.setattr(doctor_gpu.Path, "exists", lambda self: False)
    machine.set("loaded", None)  # nothing is started for it
    names = [finding.name for finding in doctor_gpu.gpu_findings()]
    assert names == ["gpu", "nvcc", "nccl", "cutlass"]
    assert machine["gpu"].text == "none"
    assert machine["nccl"].text.endswith("library the same")
    machine.beside = 22703
    assert machine["nccl"].text.endswith("another library")
    machine.cutlass = None
    assert (machine["cutlass"].text, machine["cutlass"].remedy) == ("no headers", "")


def test_a_gpu_that_cannot_be_seen_has_the_reason(machine: Machine) -> None:
    def broken() -> None:
        raise TargetError("no GPU to be seen: Driver/library version mismatch")

    machine.set("Gpus", broken)
    assert machine["gpu"].remedy == "no GPU to be seen: Driver/library version mismatch"


def test_a_toolkit_that_is_newer_than_the_driver(machine: Machine) -> None:
    machine.cuda = (12, 8)
    assert machine["nvcc"].state == "off"
    assert "the driver runs CUDA 12 at most" in machine["nvcc"].remedy


def test_the_nccl_that_ranks_load_counts_and_not_the_one_beside_the_header(
    machine: Machine,
) -> None:
    machine.ranks = replace(machine.ranks, nccl=22703, nccl_file="/old/libnccl.so.2")
    found = machine["nccl"]
    assert found.state == "off" and found.text.endswith("ranks load another")
    assert "NCCL 2.27.3 is loaded, but kernels are built for 2.28.9" in found.remedy
    assert "/old/libnccl.so.2" in found.remedy
    machine.beside = 22703
    machine.ranks = replace(machine.ranks, nccl=22809)
    assert machine["nccl"].state == "ok"


def test_ranks_that_load_no_nccl(machine: Machine) -> None:
    machine.ranks = Loaded("2.11.0+cu130", "13.0", None, "libnccl.so.2: cannot open")
    assert machine["nccl"].state == "off"
    assert machine["nccl"].remedy == (
        "ranks load none: libnccl.so.2: cannot open; pip install nvidia-nccl-cu13"
    )
    machine.nccl = replace(machine.nccl, origin="system")
    assert machine["nccl"].remedy.endswith("put /l into LD_LIBRARY_PATH")


def test_nccl_without_a_library_to_link_with(machine: Machine) -> None:
    machine.nccl = replace(machine.nccl, library=None)
    assert machine["nccl"].state == "off" and "do not link" in machine["nccl"].remedy


def test_a_torch_for_cpus_on_a_host_with_gpus(machine: Machine) -> None:
    machine.ranks = Loaded("2.11.0+cpu", "", None, "libnccl.so.2: cannot open")
    found = machine["torch cuda"]
    assert found.state == "off" and "2.11.0+cpu is for CPUs only" in found.text
    assert "install a torch for CUDA 13" in found.remedy and "whl/cu130" in found.remedy
    machine.toolkit = replace(machine.toolkit, version="12.8.93")
    assert "install a torch for CUDA 12" in machine["torch cuda"].remedy


def test_a_torch_of_another_cuda_than_nvcc(machine: Machine) -> None:
    machine.ranks = replace(machine.ranks, torch="2.11.0", cuda="12.8")
    found = machine["torch cuda"]
    assert (found.state, found.text) == ("off", "2.11.0 is of CUDA 12.8, nvcc of 13.0.88")
    assert "torch for CUDA 13" in found.remedy and "kerneltui[cuda12]" in found.remedy


def test_a_torch_that_does_not_load_has_the_reason(machine: Machine) -> None:
    machine.ranks = Loaded(problem="torch cannot be imported: ImportError: libcudart.so.13")
    assert "libcudart.so.13" in machine["torch cuda"].remedy
    assert machine["nccl"].state == "off"


@pytest.mark.parametrize(
    ("packages", "text", "remedy"),
    [
        ({}, "not found", "pip install cupy-cuda13x"),
        ({"cupy-cuda12x": "14.2.0"}, "nvcc is of CUDA 13", "pip uninstall cupy-cuda12x, then"),
        (
            {"cupy-cuda12x": "14.2.0", "cupy-cuda13x": "14.2.0"},
            "overwrite each other",
            "pip uninstall cupy-cuda12x cupy-cuda13x",
        ),
    ],
)
def test_a_cupy_that_does_not_fit(
    machine: Machine, packages: dict[str, str], text: str, remedy: str
) -> None:
    machine.packages = packages
    assert machine["cupy"].state == "off"
    assert text in machine["cupy"].text and remedy in machine["cupy"].remedy


def test_a_cupy_that_was_built_here_is_believed(machine: Machine) -> None:
    machine.packages = {"cupy": "14.2.0"}
    assert machine["cupy"].state == "ok"


def test_cutlass_is_asked_for_by_those_who_include_it(machine: Machine) -> None:
    machine.cutlass = None
    assert machine["cutlass"].state == "off"
    assert "pip install nvidia-cutlass" in machine["cutlass"].remedy


def test_what_ranks_load_is_asked_of_a_process_of_its_own() -> None:
    found = doctor_libraries.loaded()
    assert found.problem == ""
    assert found.torch == importlib.metadata.version("torch")


@pytest.mark.parametrize(
    ("code", "said", "problem"),
    [
        (1, "Traceback\nImportError: libcudart.so.13: no such file\n", "libcudart.so.13"),
        (-11, "", "exit code -11"),
    ],
)
def test_a_process_that_cannot_tell_has_the_reason(
    monkeypatch: pytest.MonkeyPatch, code: int, said: str, problem: str
) -> None:
    result = subprocess.CompletedProcess(["python"], code, "", said)
    monkeypatch.setattr(doctor_libraries.subprocess, "run", lambda *a, **k: result)
    assert problem in doctor_libraries.loaded().problem


def test_what_a_process_says_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"torch": "2.11.0", "cuda": None, "nccl": 22809, "nccl_file": "/l"}
    result = subprocess.CompletedProcess(["python"], 0, f"a warning\n{json.dumps(said)}\n", "")
    monkeypatch.setattr(doctor_libraries.subprocess, "run", lambda *a, **k: result)
    assert doctor_libraries.loaded() == Loaded("2.11.0", "", 22809, "/l")


def test_loads_and_stores_need_two_gpus_that_reach_each_other(machine: Machine) -> None:
    machine.peers = False
    assert machine["lsa"].text == "no peer access between GPUs 0 and 1"
    machine.count = 1
    assert machine["lsa"].text.startswith("one GPU")


def test_an_older_nccl_has_neither_device_communicator_nor_gin(machine: Machine) -> None:
    machine.nccl = Nccl(Path("/i"), Path("/l"), 22703, 13, "system")
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
