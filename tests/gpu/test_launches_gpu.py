"""Which launch failed, on real GPUs: broken kernels, hung ones, launches that wait for each other, Python."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gpus import check_nothing_left, skip_unless, two_gpus

skip_unless(1)
pytestmark = [pytest.mark.slow, pytest.mark.alone]

import gpu_kernels as kernels  # noqa: E402
import python_kernels  # noqa: E402
from smoke import Bench  # noqa: E402

from kerneltui.evaluation.launch_shapes import launches_on  # noqa: E402
from kerneltui.evaluation.launches import explain_fault  # noqa: E402
from kerneltui.evaluation.outcome import KernelFault  # noqa: E402
from kerneltui.evaluation.stand import Stand  # noqa: E402
from kerneltui.evaluation.timing import TimingProtocol  # noqa: E402
from kerneltui.evaluation.values import ValueClass  # noqa: E402
from kerneltui.evaluation.verify import Tally, VerifyPlan, verify_shape  # noqa: E402
from kerneltui.model.kernel import parse_kernel  # noqa: E402
from kerneltui.model.measurement import FailureKind, Stage  # noqa: E402
from kerneltui.model.workload_file import load_workload  # noqa: E402
from kerneltui.targets.cuda.runtime import CudaTarget  # noqa: E402
from kerneltui.targets.port import GroupRole, Limits  # noqa: E402

ROOT = Path(__file__).parents[2]
PLAIN = VerifyPlan(classes=(ValueClass.EXACT,), edit=False, repeats=0, late_ranks=False)
SHORT = Limits(first_call_s=2.0, sample_s=2.0)
PAUSE = "delay<<<1, 1, 0, st>>>(1000);"
BREAKS = "write_far<<<1, 32, 0, st>>>(static_cast<char *>(c->local));"
SPINS = "spin_for_ever<<<1, 1, 0, st>>>(ctx->signals[ctx->rank]);"
SIDE = "cudaStream_t side = static_cast<cudaStream_t>(ctx->side_streams[0]);"
# What waits on the side stream ends when the caller's stream comes to its second launch.
WAITS_FOR_LATER = (
    SIDE + "cudaMemsetAsync(ctx->signals[ctx->rank], 0, 8, st);"
    "spin_for_ever<<<1, 1, 0, side>>>(ctx->signals[ctx->rank]);"
    "cudaMemsetAsync(ctx->signals[ctx->rank], 0xff, 6, st);"
)


@pytest.fixture(autouse=True)
def nothing_is_left(bench: Bench) -> Iterator[None]:
    yield
    check_nothing_left(bench.target)


def fault_of(bench: Bench, source: str) -> KernelFault:
    """What an ordinary verification finds."""
    shape = bench.shape(127)
    lane = bench.lane(source, limits=SHORT)
    try:
        with pytest.raises(KernelFault) as caught:
            verify_shape(lane, shape, PLAIN, Tally(), lambda: None)
    finally:
        lane.close()
    return caught.value


def explained(bench: Bench, source: str) -> KernelFault:
    fault = fault_of(bench, source)
    assert fault.in_launch
    assert "[launch]" not in fault.log
    return explain_fault(bench.stand, parse_kernel(source, "kernel.cu"), bench.shape(127), fault)


def test_a_fault_in_the_second_of_three_launches_is_named(bench: Bench) -> None:
    fault = explained(bench, kernels.kernel(PAUSE + BREAKS + PAUSE))
    assert fault.kind is FailureKind.KERNEL_ERROR
    assert "launch 2 of run: write_far: an illegal memory access" in fault.reason
    assert "illegal address" in fault.reason, "what was known before is kept"


def test_vendor_functions_and_collectives_count_as_launches(bench: Bench) -> None:
    fault = explained(bench, kernels.kernel(kernels.RIGHT + BREAKS + PAUSE))
    assert re.search(r"launch [23] of run: write_far: an illegal memory access", fault.reason)
    # One rank alone has nothing to gather.
    assert bench.ranks == 1 or "launch 3" in fault.reason


def test_a_fault_in_setup_is_named(bench: Bench) -> None:
    setup = "write_far<<<1, 32>>>(reinterpret_cast<char *>(ctx->signals[ctx->rank])); "
    fault = explained(bench, kernels.kernel(kernels.RIGHT, setup))
    assert "launch 1 of setup: write_far: an illegal memory access" in fault.reason


def test_a_launch_that_never_ends_is_named(bench: Bench) -> None:
    fault = explained(bench, kernels.kernel(PAUSE + SPINS + PAUSE))
    assert fault.kind is FailureKind.HANG
    assert "launch 2 of run: spin_for_ever: has not ended after 2000 ms" in fault.reason


def test_launches_that_wait_for_later_ones_hang_nothing(bench: Bench) -> None:
    fault = explained(bench, kernels.kernel(WAITS_FOR_LATER + BREAKS + PAUSE))
    assert fault.kind is FailureKind.KERNEL_ERROR
    assert "launch 2 of run: spin_for_ever" in fault.log
    assert "write_far" in fault.log


@two_gpus
def test_a_right_kernel_is_still_right_when_it_is_traced(bench: Bench) -> None:
    """The library's fused kernel, whose launches wait for peers."""
    text = (ROOT / "kernels" / "gemm_allgather" / "lsa_fused_sm90.cu").read_text()
    kernel = parse_kernel(text, "lsa_fused_sm90.cu")
    build = bench.target.toolchain.compile_traced(text)
    shape = bench.shape(4096)
    lane = bench.stand.open_kernel(GroupRole.CANDIDATE, build, kernel.runtime, 2, Stage.VERIFY)
    try:
        verify_shape(lane, shape, PLAIN, Tally(), lambda: None)
        lane.teardown()
    finally:
        bench.stand.release(lane)
    assert "[launch]" not in "".join(part.text for part in lane.group.output())


def launched(bench: Bench, source: str) -> tuple[Any, str]:
    """What is captured of a kernel that was verified, and why not; its group ends with it."""
    lane = bench.lane(source)
    shape = bench.shape(127)
    try:
        verify_shape(lane, shape, PLAIN, Tally(), lambda: None)
        lane.teardown()
        build = bench.target.toolchain.compile(source)
        found = launches_on(bench.stand, build, {bench.ranks: lane}.get, [shape, bench.shape(4096)])
    finally:
        lane.close()
    return found["launches"], found.get("unread", "")


def test_launches_of_all_ranks_are_captured_and_not_made(bench: Bench) -> None:
    found, unread = launched(bench, kernels.kernel(kernels.RIGHT + PAUSE))
    assert not unread
    assert len(found) == 2, "shapes"
    for part in found:
        names = [row["name"] for row in part["kernels"]]
        assert "delay" in names and len(names) > bench.ranks, "libraries' launches are among them"
        delay = next(row for row in part["kernels"] if row["name"] == "delay")
        assert (delay["grid"], delay["threads"], delay["dynamic"]) == ([1, 1, 1], 1, 0)


def test_a_call_that_waits_for_the_device_is_no_fault(bench: Bench) -> None:
    waits = kernels.RIGHT + "if (cudaStreamSynchronize(st) != cudaSuccess) return 9;"
    found, unread = launched(bench, kernels.kernel(waits))
    assert found == []
    assert "captured" in unread


def test_a_python_kernel_is_told_by_its_line(tmp_path: Path) -> None:
    source = python_kernels.kernel(
        'far = torch.full((1,), 1 << 40, dtype=torch.int64, device=tensors["C"].device)\n'
        'tensors["C"].view(-1).index_copy_(0, far, tensors["C"].view(-1)[:1])\n'
        f"{python_kernels.TORCH}"
    )
    workload = load_workload(ROOT / "workloads" / "gemm", "cuda")
    stand = Stand(workload, CudaTarget(tmp_path), TimingProtocol())
    stand.start()
    try:
        stand.ready()
        shape = next(s for s in workload.shapes if s.dimensions["M"] == 127)
        kernel = parse_kernel(source, "kernel.py")
        lane = stand.open_kernel(
            GroupRole.CANDIDATE, stand.build(kernel), kernel.runtime, 1, Stage.VERIFY
        )
        try:
            with pytest.raises(KernelFault) as caught:
                verify_shape(lane, shape, PLAIN, Tally(), lambda: None)
        finally:
            stand.release(lane)
        known = caught.value
        fault = KernelFault(known.stage, known.kind, known.reason, known.log, in_launch=True)
        fault = explain_fault(stand, kernel, shape, fault)
    finally:
        stand.close()
    number = 1 + next(n for n, line in enumerate(source.splitlines()) if "index_copy_" in line)
    assert f"(line {number})" in fault.reason
