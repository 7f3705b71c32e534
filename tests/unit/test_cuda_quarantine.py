"""GPUs that a group did not leave: over a management library that is played."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nvml import GIB, FakeNvml

from kerneltui.targets.cuda import device, runtime
from kerneltui.targets.cuda.device import Gpus, MemoryWatch
from kerneltui.targets.cuda.quarantine import Quarantine
from kerneltui.targets.cuda.runtime import CudaTarget
from kerneltui.targets.device_lock import DEVICE_LOCK
from kerneltui.targets.errors import ServerFailure
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.notices import Notice
from kerneltui.targets.port import GroupRole, KillProof, RankExit


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml(2)
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device, "_PATIENCE_S", 0.0)
    return made


def proof(*pids: int, left: tuple[int, ...] = ()) -> KillProof:
    exits = tuple(RankExit(rank, pid, None, 9, 0, False) for rank, pid in enumerate(pids))
    return KillProof("candidate-1", exits, (), 0.1, not left, left)


def layout(*private: int) -> Any:
    parts = [SimpleNamespace(private_bytes=each, symmetric_bytes=0) for each in private]
    return SimpleNamespace(ranks=parts, signal_bytes=0)


def quarantine(said: list[str], *, names_ours: bool | None = True) -> Quarantine:
    watch = MemoryWatch(Gpus(), range(2))
    watch.names_ours = names_ours
    return Quarantine(2, watch, said.append, Gpus().why_no_more)


@pytest.fixture
def stuck() -> Iterator[int]:
    """A process that does not end."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process.pid
    process.kill()
    process.wait()


def test_a_group_that_left_leaves_the_gpus_free(nvml: FakeNvml) -> None:
    said: list[str] = []
    made = quarantine(said)
    assert made.settle(proof(7, 8), []) == ""
    assert (made.choose(2), made.devices, said) == ([0, 1], {}, [])


def test_a_process_that_stays_puts_its_gpu_out_of_use_and_that_is_said_at_once(
    nvml: FakeNvml,
) -> None:
    said: list[str] = []
    made = quarantine(said)
    nvml.processes[1] = {8: GIB}
    assert made.settle(proof(7, 8), []) == ("GPU 1 is quarantined: processes 8 are still on it")
    assert made.choose(1) == [0]
    with pytest.raises(ServerFailure, match=r"GPU 1 is quarantined: processes 8 .* start again"):
        made.choose(2)
    (text,) = said
    assert "GPU 1 is quarantined, nothing runs on it any more: processes 8 are still on it" in text
    assert text.endswith("end what holds it, then start again")
    made.settle(proof(7, 8), [])
    assert len(said) == 1  # once


def test_memory_that_stays_without_a_process_counts_but_for_buffers_of_the_judge(
    nvml: FakeNvml,
) -> None:
    made = quarantine([])
    nvml.unowned[0] += 3 * GIB
    assert made.settle(proof(7), [layout(GIB), layout(2 * GIB, GIB)]) == ""
    assert "1024 MiB are in use that belong to no process" in made.settle(
        proof(7), [layout(2 * GIB)]
    )
    assert list(made.devices) == [0]


def test_a_group_that_had_no_rank_yet_is_held_against_all_gpus(nvml: FakeNvml) -> None:
    made = quarantine([])
    nvml.unowned[1] += GIB
    assert "GPU 1" in made.settle(proof(), [])


def test_the_gpu_of_a_rank_that_does_not_end_is_looked_at_too(nvml: FakeNvml, stuck: int) -> None:
    made = quarantine([])
    nvml.processes[1] = {stuck: GIB}
    made.settle(proof(7, left=(stuck,)), [])
    assert dict(made.devices) == {1: f"processes {stuck} are still on it"}


def test_a_rank_that_does_not_end_and_is_not_listed_may_be_on_all_gpus_of_its_group(
    nvml: FakeNvml, stuck: int
) -> None:
    made = quarantine([], names_ours=False)
    made.settle(proof(7, left=(stuck,)), [])
    assert list(made.devices) == [0, 1]
    with pytest.raises(ServerFailure, match=f"processes {stuck} of its group do not end"):
        made.choose(2)


def test_of_a_server_that_is_gone_all_gpus_are_looked_at(nvml: FakeNvml, stuck: int) -> None:
    made = quarantine([])
    nvml.processes[1] = {stuck: GIB}
    made.settle(proof(left=(stuck,)), [])
    assert list(made.devices) == [1]


def test_in_a_container_memory_is_no_sign_and_that_is_said_once(nvml: FakeNvml) -> None:
    said: list[str] = []
    made = quarantine(said, names_ours=False)
    nvml.unowned[0] += 3 * GIB  # the judge, which is not listed
    assert made.settle(proof(7, 8), []) == made.settle(proof(9, 10), []) == ""
    assert (made.choose(2), made.devices) == ([0, 1], {})
    (text,) = said
    assert "by /proc alone" in text and "memory that it leaves behind is not seen" in text


def test_before_a_rank_was_on_a_gpu_nothing_is_said_of_the_driver(nvml: FakeNvml) -> None:
    said: list[str] = []
    made = quarantine(said, names_ours=None)
    nvml.unowned[0] += 3 * GIB
    assert made.settle(proof(7, 8), []) == "" and said == []


def test_a_gpu_that_does_not_answer_any_more_is_not_free(nvml: FakeNvml) -> None:
    said: list[str] = []
    made = quarantine(said)
    nvml.broken = True
    made.settle(proof(7), [])
    assert list(made.devices) == [0] and "GPU is lost" in said[0]


def test_more_ranks_than_gpus_are_refused(nvml: FakeNvml) -> None:
    with pytest.raises(ServerFailure, match="3 ranks need 3 GPUs, there are 2"):
        quarantine([]).choose(3)


def test_a_word_that_ended_the_list_of_gpus_is_told_where_they_are_too_few(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-77")
    gpus = Gpus()
    made = Quarantine(gpus.count, MemoryWatch(gpus, [0]), [].append, gpus.why_no_more)
    with pytest.raises(ServerFailure, match="need 2 GPUs, there are 1: CUDA_VISIBLE_DEVICES names"):
        made.choose(2)


@pytest.fixture
def target(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CudaTarget:
    """The whole target, never started: no driver is asked."""
    monkeypatch.setattr(runtime, "installed_nccl", lambda: None)
    monkeypatch.setattr(runtime, "_toolkit_environment", dict)
    monkeypatch.setattr(runtime.device_memory, "granularity", lambda index: 2 << 20)
    monkeypatch.setenv(DEVICE_LOCK, str(tmp_path / "gpu{gpu}.lock"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    toolchain: Any = SimpleNamespace()
    return CudaTarget(tmp_path, lock=MachineLock(tmp_path), toolchain=toolchain)


def test_the_target_tells_whoever_listens_and_opens_no_group_there(
    target: CudaTarget, nvml: FakeNvml
) -> None:
    heard: list[Notice] = []
    target.notices.listen(heard.append)
    nvml.processes[1] = {8: GIB}
    assert "GPU 0 is quarantined" in target._settle(proof(8), None)
    assert [notice.passing for notice in heard] == [False]
    assert heard[0].text.startswith("GPU 0 is quarantined, nothing runs on it any more")
    assert list(target.quarantined) == [0]
    with pytest.raises(ServerFailure, match="GPU 0 is quarantined"):
        target.open_group(GroupRole.CANDIDATE, 1)


def test_what_was_said_before_anybody_listened_is_not_lost(
    target: CudaTarget, nvml: FakeNvml
) -> None:
    nvml.processes[0] = {4242: GIB}  # a GPU that the user did not choose
    nvml.processes[1] = {4711: GIB}
    (text,) = target.look(2)
    heard: list[Notice] = []
    target.notices.listen(heard.append)
    assert [notice.text for notice in heard] == [text]
    assert "process 4711" in text and "GPU 0" in text
    assert target.describe()["others on gpu 0"] == "process 4711"


def test_the_named_lock_is_that_of_the_chosen_gpu(target: CudaTarget, tmp_path: Path) -> None:
    assert target.device_lock.paths(1) == (tmp_path / "gpu1.lock",)
