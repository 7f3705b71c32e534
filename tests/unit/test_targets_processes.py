"""Locks, kept output, clean environments, channels: the small parts under the runtime."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kerneltui.targets.channel import Channel, ChannelClosed, ChannelTimeout
from kerneltui.targets.cpu.device import LoadMeter, describe_cpu
from kerneltui.targets.diagnosis import clock_conflict, one_line
from kerneltui.targets.environment import child_environment
from kerneltui.targets.locks import LockTimeout, MachineLock
from kerneltui.targets.output import OutputKeeper
from kerneltui.targets.processes import descendants, is_alive, kill_tree, start_time
from kerneltui.targets.sample import RankSample


def test_a_burst_excludes_everything(tmp_path: Path) -> None:
    lock, other = MachineLock(tmp_path), MachineLock(tmp_path)
    with lock.burst(), lock.compiling(timeout_s=0.01), lock.burst(timeout_s=0.01):
        for refused in (other.burst(timeout_s=0.01), other.compiling(timeout_s=0.01)):
            with pytest.raises(LockTimeout, match="another kerneltui holds"), refused:
                pass
    with other.burst(timeout_s=0.01):
        pass


def test_compiles_run_side_by_side_and_keep_bursts_away(tmp_path: Path) -> None:
    lock = MachineLock(tmp_path)
    with (
        lock.compiling(),
        lock.compiling(timeout_s=1.0),
        pytest.raises(LockTimeout),
        lock.burst(timeout_s=0.01),
    ):
        pass
    with lock.burst(timeout_s=0.01):
        pass


def test_a_waiting_burst_goes_before_later_compiles(tmp_path: Path) -> None:
    lock = MachineLock(tmp_path)
    waiting, got = threading.Event(), threading.Event()

    def burst() -> None:
        waiting.set()
        with lock.burst(timeout_s=20.0):
            got.set()

    with lock.compiling():
        thread = threading.Thread(target=burst)
        thread.start()
        waiting.wait()
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline:  # until the burst has the turnstile
            try:
                with lock.compiling(timeout_s=0.0):
                    pass
            except LockTimeout:
                break
        else:
            pytest.fail("a compile could always pass the waiting burst")
    thread.join(20.0)
    assert got.is_set()


def test_waiting_can_be_stopped(tmp_path: Path) -> None:
    lock, other = MachineLock(tmp_path), MachineLock(tmp_path)
    with (
        lock.burst(),
        pytest.raises(LockTimeout, match="stopped"),
        other.burst(stop=lambda: True),
    ):
        pass


def test_output_keeps_both_ends() -> None:
    keeper = OutputKeeper(10)
    for index in range(1000):
        keeper.add(f"{index:04}".encode())
    kept = keeper.kept()
    assert (kept.total, kept.head, kept.tail) == (4000, b"0000000100", b"9709980999")
    assert kept.text == "0000000100\n[3980 bytes left out]\n9709980999"


@pytest.mark.parametrize("size", [0, 5, 10, 11, 20])
def test_short_output_is_whole(size: int) -> None:
    keeper = OutputKeeper(10)
    text = "abcdefghijklmnopqrstuvwxyz"[:size]
    keeper.add(text.encode())
    assert keeper.kept().text == text


def test_the_environment_is_a_short_list_without_secrets() -> None:
    parent = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "LC_API_KEY": "x",
        "ANTHROPIC_API_KEY": "x",
        "HOME": "/home/u",
        "GITHUB_TOKEN": "x",
    }
    assert child_environment({"A": "1"}, parent) == {"PATH": "/bin", "LC_ALL": "C", "A": "1"}


def pair() -> tuple[Channel, Channel]:
    one, other = socket.socketpair()
    return Channel(one), Channel(other)


def test_messages_and_descriptors_go_through() -> None:
    one, other = pair()
    reader, writer = os.pipe()
    big = {"text": "x" * 3_000_000}
    sender = threading.Thread(target=lambda: (one.send({"n": 1}, [writer]), one.send(big)))
    sender.start()
    message, descriptors = other.receive_with_descriptors(time.monotonic() + 10)
    assert message == {"n": 1} and len(descriptors) == 1
    assert other.receive(time.monotonic() + 10) == big
    sender.join()
    os.write(descriptors[0], b"y")
    assert os.read(reader, 9) == b"y"
    for fd in (reader, writer, *descriptors):
        os.close(fd)
    one.close()
    other.close()


def test_no_answer_is_a_timeout_and_an_end_is_an_end() -> None:
    one, other = pair()
    with pytest.raises(ChannelTimeout):
        one.receive(time.monotonic() + 0.01)
    other.close()
    with pytest.raises(ChannelClosed):
        one.receive(time.monotonic() + 10)
    one.close()


@pytest.mark.parametrize(
    "garbage",
    [b"\xff\xff\xff\xff", b"\0\0\0\x03abc", b"\0\0\0\x02[]", b"\0\1\0\0" + b"[" * 65536],
    ids=["too long", "no JSON", "no object", "too deep"],
)
def test_garbage_is_an_end(garbage: bytes) -> None:
    one, other = socket.socketpair()
    channel = Channel(one)
    other.sendall(garbage)
    with pytest.raises(ChannelClosed):
        channel.receive(time.monotonic() + 10)
    channel.close()
    other.close()


def test_a_tree_of_processes_is_killed_to_the_last() -> None:
    script = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "print('ready', flush=True)\n"
        "time.sleep(1000)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout as out:
        assert out.readline() and out.readline()
    (child,) = descendants([process.pid])
    began = start_time(child)
    assert is_alive(child) and began is not None
    kill_tree(process.pid, grace_s=0.05)
    assert not is_alive(process.pid)
    assert start_time(child) != began
    process.wait()


def test_the_processor_has_a_name_and_cores() -> None:
    device = describe_cpu()
    assert device.model and device.cores == len(os.sched_getaffinity(0))
    assert device.threads_per_core >= 1 and device.memory_bytes > 0
    meter = LoadMeter()
    load = meter.read()
    assert 0 <= load.busy <= 1 and 0 <= load.steal <= 1
    assert set(load.items()) == {"load", "busy", "steal", "clock"}


def rank(start: int, ends: tuple[int, ...], ticks: int | None = None) -> RankSample:
    span = ends[-1] - start
    return RankSample(start, ends, span if ticks is None else ticks, 0, 0, 0, 1, 1)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([rank(10, (20, 30)), rank(11, (21, 29))], None),
        ([rank(10, (20, 15))], "ran backwards"),
        ([rank(10, (10,))], "stood still"),
        ([rank(1, (20,))], "outside"),
        ([rank(10, (2000,))], "outside"),
        ([rank(10, (900,), ticks=10_000_000)], "disagree"),
        ([rank(10, (900,), ticks=0)], None),
    ],
)
def test_clocks_are_held_against_each_other(ranks: list[RankSample], message: str | None) -> None:
    found = clock_conflict(ranks, 5, 1000)
    assert found is None if message is None else message in str(found)


def test_a_reason_is_one_printable_line() -> None:
    assert one_line("a\n\x1b[31m b\t\0c") == "a [31m b c"
    assert len(one_line("x" * 100_000)) == 500
