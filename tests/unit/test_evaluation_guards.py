import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import pytest
from evaluation_fakes import sample, shape, workload

from kerneltui.evaluation import guards
from kerneltui.evaluation.guards import causality_broken, cpu_time_ns, left_running, producers


def test_every_rank_with_rows_is_needed() -> None:
    assert producers(workload(), shape()) == (0, 1)


def test_a_rank_without_rows_is_not_needed() -> None:
    assert producers(workload(), shape("1x300x64")) == (1,)


def test_a_rank_that_ends_before_another_begins_breaks_causality() -> None:
    text = causality_broken(sample((0, [100]), (5_000_000, [5_000_100])), (0, 1))
    assert text.startswith("rank 0 returned from run 5.00 ms before rank 1 began the same call")


def test_overlapping_calls_are_fine() -> None:
    assert causality_broken(sample((0, [200]), (100, [300])), (0, 1)) == ""


def test_a_later_call_of_a_sample_is_looked_at_too() -> None:
    assert causality_broken(sample((0, [50, 60]), (10, [100, 150])), (0, 1)) != ""


def test_nobody_waits_for_a_rank_that_gives_nothing() -> None:
    assert causality_broken(sample((5000, [5100]), (0, [100])), (1,)) == ""


def test_processor_time_of_this_process_grows_with_work() -> None:
    before = cpu_time_ns([os.getpid()])
    begin = time.thread_time_ns()
    while time.thread_time_ns() - begin < 100_000_000:
        sum(range(10_000))
    assert cpu_time_ns([os.getpid()]) - before >= 50_000_000


def test_clocks_that_lie_apart_a_little_break_no_causality() -> None:
    seen = replace(sample((0, [100]), (3_000, [3_100])), slack_ns=5_000)
    assert causality_broken(seen, (0, 1)) == ""
    assert causality_broken(replace(seen, slack_ns=0), (0, 1)) != ""


def test_calls_without_an_end_of_their_own_are_looked_at_together() -> None:
    seen = replace(sample((0, [100]), (5_000, [5_100])), calls=8)
    assert "before rank 1 began" in causality_broken(seen, (0, 1))


@contextmanager
def process(code: str) -> Iterator[int]:
    """A process that has begun the code, which may say `ready()` itself: it comes first otherwise."""
    start = "import os, threading, time\ndef ready(): os.write(1, b'.')\n"
    with subprocess.Popen([sys.executable, "-c", start + code], stdout=subprocess.PIPE) as made:
        assert made.stdout is not None
        assert made.stdout.read(1) == b".", "it did not start"
        try:
            yield made.pid
        finally:
            made.kill()


SPIN = """
def spin(seconds):
    while time.thread_time() < seconds: pass
threading.Thread(target=spin, args=({seconds},)).start()
ready()
time.sleep(100)
"""


def test_a_process_that_sleeps_is_not_left_running() -> None:
    with process("ready(); time.sleep(100)") as sleeping:
        assert left_running([sleeping]) == 0.0


def test_what_spins_for_a_moment_is_not_left_running() -> None:
    with process(SPIN.format(seconds=0.06)) as spinning:
        assert left_running([spinning]) == 0.0


def test_a_thread_that_spins_on_is_left_running() -> None:
    with process("ready(); time.sleep(100)") as quiet, process(SPIN.format(seconds=100)) as busy:
        assert left_running([quiet, busy]) > 0.0


def test_what_works_and_rests_in_turn_is_left_running(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = count()

    def used(pids: Sequence[int]) -> int:
        # Two looks make a window: every other one has ten seconds of work in it.
        return 10_000_000_000 * ((next(looks) + 2) // 4)

    monkeypatch.setattr(guards, "cpu_time_ns", used)
    assert left_running([]) > 0.0


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system has no idle priority")
def test_a_thread_that_waits_for_a_processor_is_left_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guards, "_LONGEST_S", 1.0)
    cpu = min(os.sched_getaffinity(0))
    there = f"os.sched_setaffinity(0, [{cpu}]); "
    idle = "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); "
    with (
        process(there + idle + "ready()\nwhile True: pass") as starved,
        process(there + "ready()\nwhile True: pass"),
    ):
        before = cpu_time_ns([starved])
        assert left_running([starved]) > 0.0
        assert cpu_time_ns([starved]) - before < 250_000_000, "it had a processor for itself"
