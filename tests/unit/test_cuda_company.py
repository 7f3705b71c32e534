"""Who else is on the GPUs: told once, and nobody is suspected who cannot be known."""

from __future__ import annotations

import sys

import pytest
from fake_nvml import GIB, FakeNvml

from kerneltui.targets.cuda import company as module
from kerneltui.targets.cuda.company import Company
from kerneltui.targets.cuda.device import Gpus
from kerneltui.targets.errors import TargetError


class Host:
    """Two GPUs, and the processes of this engine."""

    def __init__(self) -> None:
        self.nvml = FakeNvml(2)
        self.said: list[str] = []
        self.ours: set[int] = {100}
        self.company = Company(Gpus(), self.said.append, lambda: self.ours)

    def look(self, *, running: bool = True) -> tuple[str, ...]:
        return self.company.look(2, running=running)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(module, "_LEAVING_S", 0.0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = FakeNvml(2)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    made = Host()
    made.nvml = nvml
    return made


def stranger(pid: int, gpu: int) -> str:
    return f"process {pid}, which is not ours, is on GPU {gpu}: times may be wrong"


def test_an_idle_host_has_nothing_to_say(host: Host) -> None:
    assert host.company.first(2) == () and host.said == []


def test_whoever_is_there_before_us_is_told_at_the_start(host: Host) -> None:
    host.nvml.processes[1] = {4242: 8 * GIB, 4711: GIB}
    assert host.company.first(2) == (stranger(4242, 1), stranger(4711, 1))
    assert host.said == [stranger(4242, 1), stranger(4711, 1)]
    assert host.company.others() == {1: (4242, 4711)}


def test_gpus_that_are_not_used_do_not_count(host: Host) -> None:
    host.nvml.processes[1] = {4242: 8 * GIB}
    assert host.company.first(1) == ()


def test_memory_of_nobody_is_told_where_no_process_is_listed(host: Host) -> None:
    host.nvml.unowned[0] = 10 * GIB
    (text,) = host.company.first(2)
    assert text.startswith("10.0 GiB of GPU 0 are in use, by nobody who can be seen")


def test_who_comes_later_is_told_once_for_each_time_that_it_comes(host: Host) -> None:
    host.nvml.processes[0] = {100: GIB}
    assert host.look() == () and host.said == []
    host.nvml.processes[0] = {100: GIB, 4242: GIB}
    assert host.look() == host.look() == (stranger(4242, 0),)
    assert host.said == [stranger(4242, 0)]
    host.nvml.processes[0] = {100: GIB}
    assert host.look() == ()
    host.nvml.processes[0] = {100: GIB, 4242: GIB}
    host.look()
    assert host.said == [stranger(4242, 0)] * 2


def test_processes_of_ours_are_no_strangers_even_when_they_have_gone(host: Host) -> None:
    host.ours |= {101, 102}
    host.nvml.processes[0] = {100: GIB, 101: GIB}
    host.look()
    host.ours = {100}  # 101 was known; 102 was never seen on a GPU, and is told by its group's end
    host.company.know({103})
    host.nvml.processes[0] = {100: GIB, 101: GIB, 103: GIB}
    assert host.look() == () and host.said == []


def test_who_is_only_just_leaving_is_nobody(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.nvml.processes[0] = {100: GIB, 4242: GIB}
    monkeypatch.setattr(module.time, "sleep", lambda seconds: host.nvml.processes[0].pop(4242))
    assert host.look() == () and host.said == []


def test_where_our_own_processes_have_other_numbers_nobody_is_suspected(host: Host) -> None:
    host.nvml.processes[0] = {900_100: GIB}  # the judge, as it is called outside of the container
    assert host.look(running=False) == ()
    host.nvml.processes[0] = {900_100: GIB, 900_101: GIB}
    assert host.look() == host.look() == ()
    (text,) = host.said
    assert "does not name this engine's own processes" in text and "cannot be seen" in text
    assert host.company.others() == {}


def test_who_was_there_at_the_start_stays_in_the_record_where_numbers_are_others(
    host: Host,
) -> None:
    host.nvml.processes[0] = {900_001: GIB}
    host.company.first(2)
    host.nvml.processes[0] = {900_001: GIB, 900_100: GIB}
    host.look()
    assert host.company.others() == {0: (900_001,)}


def test_a_library_that_does_not_answer_is_an_error_of_the_target(host: Host) -> None:
    host.nvml.broken = True
    with pytest.raises(TargetError, match="who uses GPU 0 cannot be told: GPU is lost"):
        host.look()
