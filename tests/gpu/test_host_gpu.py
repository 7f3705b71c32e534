"""What the target sees of the host around it: other processes on the GPUs, and locks of the site."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gpus import check_nothing_left, skip_unless, two_gpus

skip_unless(1)
pytestmark = [pytest.mark.slow, pytest.mark.alone]

import gpu_kernels as kernels  # noqa: E402
from smoke import Bench  # noqa: E402

from kerneltui.targets.cuda.ceilings import stored_ceilings  # noqa: E402
from kerneltui.targets.notices import Notice  # noqa: E402

_ENOUGH_S = 60.0
_CONTEXT = """
import ctypes, os, time
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print(os.getpid(), flush=True)
time.sleep(120)
"""


@pytest.fixture(autouse=True)
def nothing_is_left(bench: Bench) -> Iterator[None]:
    """After every test no rank lives, and no GPU is quarantined."""
    yield
    check_nothing_left(bench.target)


@contextmanager
def stranger() -> Iterator[int]:
    """A process with a context on GPU 0 that does not descend from this one."""
    shell = subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1" & exit', sys.executable, _CONTEXT],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert shell.stdout is not None
    shell.wait(_ENOUGH_S)
    pid = int(shell.stdout.readline())
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        shell.stdout.close()


def test_a_process_that_comes_is_told_once_and_ours_never(bench: Bench) -> None:
    heard: list[Notice] = []
    bench.target.notices.listen(heard.append)
    lane = bench.lane(kernels.kernel())
    try:
        lane.setup(bench.shape(127), 3)
        ours = {bench.stand.judge.pid, *lane.group.pids}
        assert not [
            text for text in bench.target.look(bench.ranks) for pid in ours if f" {pid}," in text
        ]
        if any("cannot be seen" in notice.text for notice in heard):
            pytest.skip("the driver does not name processes of this container")
        with stranger() as pid:
            deadline = time.monotonic() + _ENOUGH_S
            text = f"process {pid}, which is not ours, is on GPU 0: times may be wrong"
            while text not in bench.target.look(bench.ranks) and time.monotonic() < deadline:
                time.sleep(0.1)
            bench.target.look(bench.ranks)
            assert [notice.text for notice in heard].count(text) == 1
            assert pid in bench.target.foreign_load()[0]
    finally:
        lane.close()


@two_gpus
def test_rates_are_kept_for_these_very_gpus(bench: Bench) -> None:
    first, second = (bench.target.gpus.identity(index) for index in (0, 1))
    assert first["uuid"].startswith("GPU-") and first["uuid"] != second["uuid"]
    assert first["power limit"].endswith(" W") or first["power limit"] == "unknown"
    names = {stored_ceilings(bench.target, ranks, "bfloat16").name for ranks in (1, 2)}
    assert len(names) == 2


def test_numbers_of_the_gpus_are_those_of_the_machine(bench: Bench) -> None:
    numbers = bench.target.gpus.numbers
    assert len(set(numbers)) == bench.target.gpus.count and min(numbers) >= 0
