"""What ranks say of a sample, by the clock of the host or of a device."""

from __future__ import annotations

from typing import Any

import pytest

from kerneltui.targets.diagnosis import clock_conflict, rank_samples


def answer(start: int, ends: list[int], **more: int) -> dict[str, Any]:
    names = ("ticks_ns", "cpu_ns", "minor_faults", "involuntary_switches")
    told = dict.fromkeys((*names, "threads_before", "threads_after"), 0)
    return {**told, "start_ns": start, "ends_ns": ends, **more}


def test_times_of_the_host_stay_as_they_are() -> None:
    (seen,) = rank_samples([answer(10, [20, 30])], 2)
    assert (seen.start_ns, seen.call_ends_ns) == (10, (20, 30))


def test_the_gates_of_two_devices_lie_at_one_moment() -> None:
    told = [
        answer(1_000_100, [1_000_900], gate_ns=1_000_000, go_ns=70),
        answer(5_005_000, [5_009_000], gate_ns=5_000_000, go_ns=90),
    ]
    first, second = rank_samples(told, 3)
    # After the later of the two hosts gave its word, at 90.
    assert (first.start_ns, first.end_ns) == (190, 990)
    assert (second.start_ns, second.end_ns) == (5_090, 9_090)


def test_a_host_must_say_when_every_call_ended() -> None:
    with pytest.raises(ValueError, match="1 times for 3 calls"):
        rank_samples([answer(10, [20])], 3)


def test_a_device_says_when_all_calls_ended_or_each() -> None:
    told = answer(1, [2, 3], gate_ns=1, go_ns=5)
    with pytest.raises(ValueError, match="2 times for 3 calls"):
        rank_samples([told], 3)


def test_the_clock_of_the_host_contradicts_a_device_that_claims_less() -> None:
    told = [answer(0, [1_000_000], gate_ns=0, go_ns=10, ticks_ns=3_000_000)]
    text = clock_conflict(rank_samples(told, 1), 0, 10_000_000)
    assert text == "clocks of rank 0 disagree: 1000000 ns by the one, 3000000 ns by the other"


@pytest.mark.parametrize("ticks", [20_000, 1_000_000, 1_240_000])
def test_a_host_that_comes_late_to_the_begin_contradicts_nothing(ticks: int) -> None:
    told = [answer(0, [1_000_000], gate_ns=0, go_ns=10, ticks_ns=ticks)]
    ranks = rank_samples(told, 1)
    assert clock_conflict(ranks, 0, 10_000_000, slack_ns=200_000, may_be_late=True) is None


def test_a_host_that_may_come_late_still_sees_what_was_not_claimed() -> None:
    told = [answer(0, [1_000_000], gate_ns=0, go_ns=10, ticks_ns=1_300_000)]
    found = clock_conflict(rank_samples(told, 1), 0, 10_000_000, slack_ns=200_000, may_be_late=True)
    assert found is not None
