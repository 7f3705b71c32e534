"""What the processes of the CUDA target find in their environment: real ones, without a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from evaluation_fakes import WORKLOAD_FOLDER

from kerneltui.evaluation.judge_client import JudgeClient
from kerneltui.targets.cuda import runtime
from kerneltui.targets.cuda.policy import DEFAULT_POLICY, MachinePolicy, load_policy
from kerneltui.targets.cuda.runtime import CudaTarget
from kerneltui.targets.cuda.toolchain import CudaToolchain

MULTICAST = ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS")


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A management library that knows one GPU; processes start without it."""
    gpu = SimpleNamespace(
        count=1,
        numbers=(0,),
        why_no_more="",
        describe=lambda index: SimpleNamespace(arch="sm_90a"),
        telemetry=lambda: None,
        use=lambda index: SimpleNamespace(unaccounted_bytes=0),
    )
    monkeypatch.setattr(runtime, "Gpus", lambda: gpu)
    monkeypatch.setattr(runtime.device_memory, "granularity", lambda device: 1 << 21)
    for name in MULTICAST:
        monkeypatch.setenv(name, "of the user")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")


def target(folder: Path, policy: MachinePolicy, *, vendors: bool = False) -> CudaTarget:
    toolchain = CudaToolchain(folder / "builds", arch="sm_90a", policy=policy)
    return CudaTarget(folder, toolchain=toolchain, policy=policy, vendors=vendors)


def environment_of(pid: int) -> dict[str, str]:
    file, until = Path(f"/proc/{pid}/environ"), time.monotonic() + 20.0
    while not (block := file.read_bytes().decode()):  # its program is being loaded just now
        assert time.monotonic() < until
        time.sleep(0.01)
    return dict(item.split("=", 1) for item in block.split("\0") if item)


def children(made: CudaTarget) -> Iterator[dict[str, str]]:
    """The server, of which all ranks are forked, and the judge."""
    with made:
        yield environment_of(made.server_pid)
    judge = JudgeClient(WORKLOAD_FOLDER, 1, "cuda", made.judge_place)
    judge.start()
    try:
        yield environment_of(judge.pid)
    finally:
        judge.close()


@pytest.mark.parametrize("vendors", [False, True], ids=["kernels", "baselines"])
def test_multicast_is_off_in_every_child(vendors: bool, tmp_path: Path) -> None:
    for found in children(target(tmp_path, DEFAULT_POLICY, vendors=vendors)):
        assert [found[name] for name in MULTICAST] == ["0", "1", "1"]
        assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert found["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_machine_that_allows_multicast_has_it(tmp_path: Path) -> None:
    file = tmp_path / "machine-wide.toml"
    file.write_text(
        'version = 1\nallow = ["nvlink_multicast"]\n[environment]\nNCCL_DEBUG = "WARN"\n'
    )
    for found in children(target(tmp_path, load_policy(tmp_path, file))):
        assert not found.keys() & set(MULTICAST), "what is allowed is left to the libraries"
        assert found["NCCL_DEBUG"] == "WARN"
