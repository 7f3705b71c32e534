"""Kernels on real GPUs: what passes, what fails and why, and that nothing is left behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gpus import check_nothing_left, skip_unless, two_gpus

skip_unless(1)
pytestmark = [pytest.mark.slow, pytest.mark.alone]

import gpu_kernels as kernels  # noqa: E402
from smoke import ALONE, Bench  # noqa: E402

from kerneltui.evaluation.lane import MASKED  # noqa: E402
from kerneltui.evaluation.outcome import KernelFault  # noqa: E402
from kerneltui.evaluation.timing import WrongOutput  # noqa: E402
from kerneltui.evaluation.values import ValueClass  # noqa: E402
from kerneltui.evaluation.verify import Tally, VerifyPlan, verify_shape  # noqa: E402
from kerneltui.model.measurement import FailureKind  # noqa: E402
from kerneltui.targets.errors import ServerFailure  # noqa: E402
from kerneltui.targets.port import GroupRole, Limits  # noqa: E402

DELAY_NS = 5_000_000
PLAIN = VerifyPlan(classes=(ValueClass.EXACT,), edit=False, repeats=0, late_ranks=False)
HANG = Limits(first_call_s=1.0, sample_s=1.0)


@pytest.fixture(autouse=True)
def nothing_is_left(bench: Bench) -> Iterator[None]:
    """After every test no rank lives, no GPU is quarantined, and a right kernel passes."""
    yield
    check_nothing_left(bench.target)
    lane = bench.lane(kernels.kernel())
    try:
        verify(bench, lane, plan=PLAIN)
    finally:
        lane.close()
    check_nothing_left(bench.target)


def verify(bench: Bench, lane, m: int = 127, plan: VerifyPlan | None = None) -> Tally:
    shape, tally = bench.shape(m), Tally()
    verify_shape(lane, shape, plan or VerifyPlan.for_shape(shape), tally, lambda: None)
    lane.teardown()
    return tally


def refused(bench: Bench, source: str, limits: Limits | None = None) -> KernelFault:
    """The fault that a kernel is found to have."""
    lane = bench.lane(source, limits=limits)
    try:
        with pytest.raises(KernelFault) as caught:
            verify(bench, lane)
    finally:
        lane.close()
    return caught.value


@pytest.mark.parametrize("m", [127, 257, 3, 513, 4096])
def test_a_right_kernel_passes(bench: Bench, m: int) -> None:
    lane = bench.lane(kernels.kernel())
    try:
        assert verify(bench, lane, m).repeatable
    finally:
        lane.close()


def test_one_rank_needs_no_peer(bench: Bench) -> None:
    lane = bench.lane(kernels.kernel(), ranks=1)
    try:
        assert verify(bench, lane, ALONE).repeatable
    finally:
        lane.close()


def test_the_processes_of_this_engine_are_not_foreign(bench: Bench) -> None:
    lane = bench.lane(kernels.kernel())
    try:
        lane.setup(bench.shape(127), 3)
        mine = {pid for pids in bench.target.foreign_load().values() for pid in pids}
        assert not mine & {bench.stand.judge.pid, *lane.group.pids}
    finally:
        lane.close()


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        (kernels.kernel(kernels.WRONG), FailureKind.MISMATCH, "is wrong"),
        (kernels.kernel(kernels.FAULT), FailureKind.KERNEL_ERROR, "illegal address"),
        (kernels.kernel(kernels.SHARED_MEMORY), FailureKind.KERNEL_ERROR, "invalid argument"),
        (kernels.kernel(kernels.OWN_STREAM), FailureKind.KERNEL_ERROR, "stream is not joined"),
        (kernels.kernel(setup=kernels.ALL_MEMORY), FailureKind.OUT_OF_MEMORY, "beyond its buffers"),
        (kernels.kernel(setup=kernels.TOO_MUCH_MEMORY), FailureKind.KERNEL_ERROR, "out of memory"),
        (
            kernels.kernel(kernels.RIGHT + kernels.ALL_MEMORY),
            FailureKind.OUT_OF_MEMORY,
            "kerneltui_run took",
        ),
    ],
    ids=[
        "wrong",
        "fault",
        "shared memory",
        "own stream",
        "all memory",
        "too much memory",
        "all memory in run",
    ],
)
def test_a_bad_kernel_is_refused_with_its_reason(
    bench: Bench, source: str, kind: FailureKind, words: str
) -> None:
    fault = refused(bench, source)
    assert fault.kind is kind
    assert words in fault.reason


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(kernels.HANG, id="all"),
        pytest.param(kernels.ONE_RANK_HANGS, id="one rank", marks=two_gpus),
    ],
)
def test_a_hang_is_ended_and_says_how_far_the_ranks_came(bench: Bench, body: str) -> None:
    fault = refused(bench, kernels.kernel(body), HANG)
    assert fault.kind is FailureKind.HANG
    assert "in epoch" in fault.reason


def test_an_unjoined_side_stream_is_refused(bench: Bench) -> None:
    fault = refused(bench, kernels.kernel(kernels.UNJOINED))
    assert fault.kind in (FailureKind.MISMATCH, FailureKind.KERNEL_ERROR)


def test_a_sample_has_one_end_and_a_verifying_one_has_all(bench: Bench) -> None:
    lane = bench.lane(kernels.kernel())
    try:
        lane.setup(bench.shape(513), 4)
        lane.fill([0, 1, 2, 3])
        assert [len(r.call_ends_ns) for r in lane.run().ranks] == [1] * bench.ranks
        assert [len(r.call_ends_ns) for r in lane.sample(4).ranks] == [1] * bench.ranks
        seen = lane.sample(4, verifying=True)
        for rank in seen.ranks:
            assert len(rank.call_ends_ns) == 4
            assert list(rank.call_ends_ns) == sorted(rank.call_ends_ns)
            assert rank.start_ns < rank.call_ends_ns[0]
        assert lane.check([0, 1, 2, 3]).passed
    finally:
        lane.close()


@two_gpus
def test_a_delay_moves_the_start_of_one_rank(bench: Bench) -> None:
    lane = bench.lane(kernels.kernel())
    try:
        lane.setup(bench.shape(127), 3)
        seen = lane.run([0, DELAY_NS])
        first, second = seen.ranks
        assert second.start_ns - first.start_ns >= DELAY_NS - seen.slack_ns
    finally:
        lane.close()


def test_ranks_make_calls_without_a_pause(bench: Bench) -> None:
    lane = bench.lane(kernels.kernel())
    try:
        lane.setup(bench.shape(513), 3)
        lane.fill([0, 1, 2])
        lane.run()  # the first launch loads the code
        burst = lane.sample(64).elapsed_ns / 64
        found = lane.sustain(2000, 16, 20.0)
        assert burst / 4 < found.elapsed_ns / 2000 < burst * 4
        assert 0 < found.enqueue_ns < 2 * found.elapsed_ns
        lane.fill(lane.next_sets(3))
        lane.sample(3)  # gates, sets and epochs go on behind it
        assert lane.check([0, 1, 2]).passed
    finally:
        lane.close()


def test_a_kernel_that_waits_for_the_device_is_timed_too(bench: Bench) -> None:
    lane = bench.lane(kernels.kernel(kernels.SYNCHRONISES))
    try:
        lane.setup(bench.shape(513), 4)
        lane.fill([0, 1, 2, 3])
        lane.run()
        seen = lane.sample(4)
        assert seen.elapsed_ns > 0
        assert [r.ticks_ns for r in seen.ranks] == [0] * bench.ranks  # the gate could not be held
        assert lane.check([0]).passed
        lane.sample(4)
        assert not lane.enqueues
        lane.fill([0, 1, 2, 3])
        seen = lane.sample(4)  # it opens first from here on, and both clocks see the same
        assert not seen.held and not seen.clock_conflict
        assert all(r.ticks_ns > 0 for r in seen.ranks)
        assert seen.wall_ns - seen.elapsed_ns < 4_000_000  # less than a gate's patience
        assert lane.check([0, 1, 2, 3]).passed
    finally:
        lane.close()


@two_gpus
def test_a_rank_that_waits_alone_is_not_waited_for_in_vain(bench: Bench) -> None:
    lane = bench.lane(kernels.kernel(kernels.ONE_RANK_SYNCHRONISES))
    try:
        lane.setup(bench.shape(513), 4)
        lane.fill([0, 1, 2, 3])
        lane.run()
        for _ in range(3):
            assert not lane.sample(4).held
        assert lane.check([0, 1, 2, 3]).passed
    finally:
        lane.close()


@pytest.mark.parametrize("m", [513, 4096])
def test_inputs_can_be_written_while_the_gate_holds_everything_back(bench: Bench, m: int) -> None:
    lane = bench.lane(kernels.kernel())
    try:
        lane.setup(bench.shape(m), 4)
        lane.run()  # code is loaded in the first call, which waits for the device
        for _ in range(6):
            sets = lane.next_sets(3)
            seen = lane.sample(3, late_fill=True)
            assert seen.held
            assert seen.enqueue_ns > 0
            assert lane.check(sets).passed
    finally:
        lane.close()


def test_work_before_the_gate_opens_is_work_on_old_inputs(bench: Bench) -> None:
    lane = bench.lane(kernels.kernel(kernels.EARLY))
    try:
        verify(bench, lane, 513, replace(PLAIN, masked=False))
        with pytest.raises(KernelFault) as caught:
            verify(bench, lane, 513, PLAIN)
        assert caught.value.reason.endswith(MASKED)
        lane.teardown()
        lane.setup(bench.shape(513), 4)
        with pytest.raises(WrongOutput, match="written after its calls were enqueued"):
            for _ in range(4):
                bench.stand.timer.burst(lane, 3, check=True)
    finally:
        lane.close()


def test_the_baseline_is_right(bench: Bench) -> None:
    lane = bench.stand.open_baseline("torch_nccl", bench.ranks)
    try:
        for m in (127, 3, 513):
            verify(bench, lane, m)
    finally:
        bench.stand.release(lane)


@two_gpus
def test_rates_are_measured(bench: Bench) -> None:
    found = bench.target.measure_ceilings(2)
    assert found.peak_flops > found.flops > 1e12
    assert found.memory_bytes > found.link_bytes > 1e10
    assert found.link_bytes == max(found.links.values())
    assert {"copy engine", "stores of 8 CTAs", "stores of 132 CTAs"} <= found.links.keys()
    assert ("bulk stores of 32 CTAs" in found.links) is (int(bench.target.arch.strip("sm_a")) >= 90)
    assert min(found.links.values()) > 1e9
    assert 100 < found.latency_ns < 50_000  # a flag that goes by way of the host takes longer


def test_more_ranks_than_gpus_are_refused(bench: Bench) -> None:
    ranks = bench.target.gpus.count + 1
    with pytest.raises(ServerFailure, match=f"{ranks} ranks need {ranks} GPUs"):
        bench.target.open_group(GroupRole.CANDIDATE, ranks)
