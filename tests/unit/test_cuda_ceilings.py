"""Rates of GPUs are kept for the same devices, and measured again for others."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nvml import FakeNvml

from kerneltui.targets.cuda import ceilings as module
from kerneltui.targets.cuda import packages, runtime
from kerneltui.targets.cuda.ceilings import (
    best_of,
    read_ceilings,
    stored_ceilings,
    write_ceilings,
)
from kerneltui.targets.cuda.device import Gpus
from kerneltui.targets.cuda.runtime import CudaTarget
from kerneltui.targets.keeping import keep
from kerneltui.targets.locks import MachineLock

RATES = [
    {
        "flops": 7e14,
        "sustained_flops": 6e14,
        "memory_bytes": 4e12,
        "links": {"copy engine": 3.6e11, "stores of 32 CTAs": 2e11},
        "flag_ns": 1300.0,
    },
    {
        "flops": 7.5e14,
        "sustained_flops": 5e14,
        "memory_bytes": 4.1e12,
        "links": {"copy engine": 3.5e11, "stores of 32 CTAs": 3.7e11},
        "flag_ns": 1300.0,
    },
]


def place(folder: Path, driver: str = "580.1") -> Any:
    device = SimpleNamespace(items=lambda: {"gpu 0": "H200", "driver": driver}.items())
    described = SimpleNamespace(items=lambda: dict(device.items()))
    gpus = SimpleNamespace(describe=lambda index: described, identity=lambda index: {})
    return SimpleNamespace(cache=folder, gpus=gpus)


def test_each_rate_is_the_best_of_all_ranks() -> None:
    found = best_of(2, RATES)
    assert (found.flops, found.sustained_flops) == (7.5e14, 6e14)
    assert (found.memory_bytes, found.latency_ns) == (4.1e12, 1300.0)
    assert found.links == {"copy engine": 3.6e11, "stores of 32 CTAs": 3.7e11}
    assert found.peak_flops > found.flops


def test_the_link_is_as_fast_as_its_best_way() -> None:
    assert best_of(2, RATES).link_bytes == 3.7e11
    alone = best_of(1, [{**RATES[0], "links": {}, "flag_ns": 0.0}])
    assert alone.link_bytes == float("inf")
    assert alone.latency_ns > 0


def test_rates_in_words_name_every_way_to_a_peer() -> None:
    words = best_of(2, RATES).words()
    assert words["to a peer, copy engine"] == "360 GB/s"
    assert words["to a peer, stores of 32 CTAs"] == "370 GB/s"
    assert words["flag to a peer"] == "1.30 us"
    assert words["GEMM"] == "750.0 TFLOP/s in bursts, 600.0 without a pause"
    assert not any("peer" in name for name in best_of(1, RATES[:1]).words())


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_written_is_read_again(tmp_path: Path, ranks: int) -> None:
    rates = [{**rate, "links": {} if ranks == 1 else rate["links"]} for rate in RATES[:ranks]]
    stored = stored_ceilings(place(tmp_path), ranks, "bfloat16")
    assert read_ceilings(stored) is None
    write_ceilings(stored, best_of(ranks, rates))
    assert read_ceilings(stored) == best_of(ranks, rates)
    assert [file.name for file in stored.parent.iterdir()] == [stored.name]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ranks": 2}', '{"other": 1}'])
def test_a_damaged_file_is_measured_anew(tmp_path: Path, text: str) -> None:
    stored = stored_ceilings(place(tmp_path), 2, "bfloat16")
    stored.parent.mkdir(parents=True)
    stored.write_text(text)
    assert read_ceilings(stored) is None


def test_another_driver_dtype_or_number_of_ranks_is_another_file(tmp_path: Path) -> None:
    names = {
        stored_ceilings(place(tmp_path), 2, "bfloat16").name,
        stored_ceilings(place(tmp_path), 1, "bfloat16").name,
        stored_ceilings(place(tmp_path), 2, "float16").name,
        stored_ceilings(place(tmp_path, driver="590"), 2, "bfloat16").name,
    }
    assert len(names) == 4


def test_hosts_that_look_alike_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml(3)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    libraries = {"torch": "2.11.0", "cuBLAS": "13.1.0.3"}
    monkeypatch.setattr(module, "math_libraries", lambda: libraries)

    def name() -> str:
        made: Any = SimpleNamespace(cache=tmp_path, gpus=Gpus())
        return stored_ceilings(made, 2, "bfloat16").name

    first = name()
    assert name() == first
    nvml.uuids[2] = "GPU-of-nobody"  # no rank is on it
    assert name() == first
    names = {first}
    nvml.uuids[1] = "GPU-of-another-host"
    names.add(name())
    nvml.power_w[0] = 500
    names.add(name())
    libraries["torch"] = "2.12.0"
    names.add(name())
    libraries["cuBLAS"] = "13.2.0.9"
    names.add(name())
    assert len(names) == 5


def test_a_gpu_without_a_limit_of_power_is_known_by_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = FakeNvml(1)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert Gpus().identity(0) == {"uuid": "GPU-0000", "power limit": "700 W"}

    def refused(handle: int) -> int:
        raise nvml.NVMLError("Not Supported")

    nvml.nvmlDeviceGetPowerManagementLimit = refused
    assert Gpus().identity(0) == {"uuid": "GPU-0000", "power limit": "unknown"}


def test_the_libraries_that_are_measured_with_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    versions = {"torch": "2.11.0", "nvidia-cublas": "13.1.0.3"}
    monkeypatch.setattr(packages, "_version_of", versions.get)
    assert packages.math_libraries() == {"torch": "2.11.0", "cuBLAS": "13.1.0.3"}
    del versions["nvidia-cublas"]
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libcublas.so.13.0.2.14").touch()
    toolkit = packages.CudaToolkit(tmp_path / "bin" / "nvcc", tmp_path, "13.0.88")
    monkeypatch.setattr(packages, "find_toolkit", lambda: toolkit)
    assert packages.math_libraries()["cuBLAS"] == "libcublas.so.13.0.2.14"


def test_a_cache_that_cannot_be_written_costs_no_rates(tmp_path: Path) -> None:
    """A file stands where the folder must be: this stops root too."""
    (tmp_path / "ceilings").write_text("")
    stored = stored_ceilings(place(tmp_path), 2, "bfloat16")
    trouble = write_ceilings(stored, best_of(2, RATES))
    assert str(stored.parent) in trouble and "measured each time" in trouble
    assert "\n" not in trouble


def test_a_full_disk_leaves_no_half_of_a_file(tmp_path: Path) -> None:
    stored = tmp_path / "ceilings" / "rates.json"
    stored.mkdir(parents=True)  # it cannot be replaced by a file
    assert keep(stored, "{}")
    assert [file.name for file in stored.parent.iterdir()] == [stored.name]
    assert keep(tmp_path / "ceilings" / "others.json", "{}") == ""


@pytest.mark.parametrize("others", [(), ("process 4242, which is not ours, is on GPU 0",)])
def test_rates_beside_others_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(2))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(runtime, "installed_nccl", lambda: None)
    monkeypatch.setattr(runtime, "_toolkit_environment", dict)
    monkeypatch.setattr(runtime.device_memory, "granularity", lambda index: 2 << 20)
    toolchain: Any = SimpleNamespace()
    target = CudaTarget(tmp_path, lock=MachineLock(tmp_path), toolchain=toolchain)
    group = SimpleNamespace(measure=lambda dtype: RATES)
    monkeypatch.setattr(target, "open_group", lambda role, ranks: nullcontext(group))
    monkeypatch.setattr(target, "look", lambda ranks: others)
    said: list[str] = []
    target.notices.listen(lambda notice: said.append(notice.text))
    assert target.measure_ceilings(2) == best_of(2, RATES)
    kept = [*(tmp_path / "ceilings").glob("*.json")]
    assert bool(kept) is not bool(others)
    assert any("not kept" in text for text in said) is bool(others)
