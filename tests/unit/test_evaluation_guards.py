import os
import time
from dataclasses import replace

from evaluation_fakes import sample, shape, workload

from kerneltui.evaluation.guards import causality_broken, cpu_time_ns, producers


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
