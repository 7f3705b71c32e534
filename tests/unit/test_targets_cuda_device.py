"""GPUs as the management library shows them, played by a list."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest
from fake_nvml import FakeNvml

from kerneltui.targets.cuda import device as module
from kerneltui.targets.cuda.device import DeviceUse, Gpus, MemoryWatch, device_environment
from kerneltui.targets.cuda.policy import DEFAULT_POLICY
from kerneltui.targets.errors import TargetError

GIB = 1 << 30


class Fake:
    """One GPU whose use goes through a list; the last entry stays."""

    def __init__(self, *uses: tuple[int, Mapping[int, int | None]]) -> None:
        self.uses = [DeviceUse(used, processes) for used, processes in uses]
        self.asked = 0

    def use(self, index: int) -> DeviceUse:
        self.asked += 1
        return self.uses.pop(0) if len(self.uses) > 1 else self.uses[0]


def watch(fake: Fake, *, names_ours: bool = True) -> MemoryWatch:
    made = MemoryWatch(fake, [0])  # pyright: ignore[reportArgumentType]
    made.names_ours = names_ours
    return made


@pytest.fixture
def living() -> Iterator[int]:
    """A process that does not end."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process.pid
    process.kill()
    process.wait()


def test_a_group_that_has_left_leaves_nothing_to_say() -> None:
    fake = Fake((GIB, {}), (9 * GIB, {7: 8 * GIB}), (GIB, {}))
    assert watch(fake).wait_gone({7}, [0], [0]) == {}
    assert fake.asked == 3  # it waited for the second look


def test_a_process_that_stays_is_named() -> None:
    found = watch(Fake((GIB, {}), (9 * GIB, {7: 8 * GIB}))).wait_gone({7}, [0], [0], patience_s=0.0)
    assert found == {0: "processes 7 are still on it"}


def test_memory_that_belongs_to_nobody_is_told() -> None:
    found = watch(Fake((GIB, {}), (5 * GIB, {}))).wait_gone({7}, [0], [0], patience_s=0.0)
    assert found == {0: "4096 MiB are in use that belong to no process"}


def test_memory_of_other_processes_and_buffers_is_none_of_the_groups_business() -> None:
    fake = Fake((GIB, {}), (9 * GIB, {8: 4 * GIB}))
    assert watch(fake).wait_gone({7}, [0], [4 * GIB], patience_s=0.0) == {}


def test_memory_is_no_sign_where_the_driver_does_not_name_us() -> None:
    fake = Fake((GIB, {}), (5 * GIB, {}))  # the judge came, and is not listed
    assert watch(fake, names_ours=False).wait_gone({7}, [0], [0], patience_s=0.0) == {}


def test_ranks_that_are_there_show_whether_the_driver_names_us() -> None:
    made = MemoryWatch(
        Fake((GIB, {}), (9 * GIB, {900_007: 8 * GIB}), (9 * GIB, {7: 8 * GIB}), (GIB, {})),  # pyright: ignore[reportArgumentType]
        [0],
    )
    assert made.names_ours is None
    made.know([7])
    assert made.names_ours is False
    made.know([7])
    assert made.names_ours is True
    made.know([8])  # once is enough
    assert made.names_ours is True


def test_a_process_that_proc_still_shows_and_the_driver_does_not_may_be_on_each_gpu(
    living: int,
) -> None:
    made = watch(Fake((GIB, {})), names_ours=False)
    found = made.wait_gone({living}, [0], [0], living=(living,), patience_s=0.0)
    assert found == {0: f"processes {living} of its group do not end, and may be on it"}


def test_a_process_that_has_ended_meanwhile_is_on_none() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    made = watch(Fake((GIB, {})), names_ours=False)
    assert made.wait_gone({ended.pid}, [0], [0], living=(ended.pid,), patience_s=0.0) == {}


def test_where_the_driver_does_not_say_how_much_processes_count_alone() -> None:
    fake = Fake((GIB, {}), (9 * GIB, {8: None}))
    assert watch(fake).wait_gone({7}, [0], [0], patience_s=0.0) == {}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, ["a", "b", "c"]),
        ("", []),
        ("2,0", ["c", "a"]),
        ("GPU-12", ["b"]),
    ],
)
def test_the_users_choice_of_devices_is_kept(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, expected: list[str]
) -> None:
    monkeypatch.delenv(module.VISIBLE, raising=False)
    if chosen is not None:
        monkeypatch.setenv(module.VISIBLE, chosen)
    assert module._chosen(["a", "b", "c"], ["GPU-01", "GPU-12", "GPU-23"]) == (expected, "")
    assert device_environment(DEFAULT_POLICY).get(module.VISIBLE) == chosen


@pytest.mark.parametrize(
    ("chosen", "unknown"),
    [("1,9,0", "9"), ("1,GPU-9", "GPU-9"), ("1,GPU-", "GPU-"), ("1,MIG-4a", "MIG-4a")],
)
def test_the_list_ends_at_a_word_that_names_no_gpu_or_several(
    monkeypatch: pytest.MonkeyPatch, chosen: str, unknown: str
) -> None:
    monkeypatch.setenv(module.VISIBLE, chosen)
    found = module._chosen(["a", "b", "c"], ["GPU-01", "GPU-12", "GPU-23"])
    assert found == (["b"], unknown)


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ("GPU-77,0", "CUDA_VISIBLE_DEVICES names 'GPU-77', which is not one GPU of this machine"),
        ("-1", "CUDA_VISIBLE_DEVICES names '-1', which is not one GPU of this machine"),
        ("MIG-GPU-0001/1/0", "names 'MIG-GPU-0001/1/0': MIG instances are not supported"),
        ("", "CUDA_VISIBLE_DEVICES is empty"),
    ],
)
def test_a_choice_of_no_gpu_is_told_by_its_word(
    monkeypatch: pytest.MonkeyPatch, chosen: str, reason: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(2))
    monkeypatch.setenv(module.VISIBLE, chosen)
    with pytest.raises(TargetError) as caught:
        Gpus()
    assert reason in str(caught.value)


def test_a_machine_without_a_gpu_says_so_whatever_was_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(0))
    monkeypatch.setenv(module.VISIBLE, "GPU-77")
    with pytest.raises(TargetError, match="this machine has no NVIDIA GPU"):
        Gpus()
