"""Kernels by NCCL's device API on two GPUs: windows, device communicators, and what is refused."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gpus import check_nothing_left, skip_unless

skip_unless(2)
pytestmark = [pytest.mark.slow, pytest.mark.alone]

from test_python_gpu import ROOT, verify  # noqa: E402

from kerneltui.evaluation.baseline_kernels import baseline_kernel  # noqa: E402
from kerneltui.evaluation.calibration import open_baseline  # noqa: E402
from kerneltui.evaluation.kernel_lint import lint  # noqa: E402
from kerneltui.evaluation.outcome import KernelFault  # noqa: E402
from kerneltui.evaluation.stand import Stand  # noqa: E402
from kerneltui.evaluation.timing import TimingProtocol  # noqa: E402
from kerneltui.model.kernel import parse_kernel  # noqa: E402
from kerneltui.model.measurement import FailureKind, Stage  # noqa: E402
from kerneltui.model.workload_file import load_workload  # noqa: E402
from kerneltui.targets.cuda import driver  # noqa: E402
from kerneltui.targets.cuda.network import gin_missing  # noqa: E402
from kerneltui.targets.cuda.runtime import CudaTarget  # noqa: E402
from kerneltui.targets.errors import RankFailure  # noqa: E402
from kerneltui.targets.port import GroupRole  # noqa: E402

KERNELS = ROOT / "kernels" / "gemm_allgather"


# Equal shards, and those of rank 1 begin on an odd multiple of 2 bytes.
ODD_SHARDS = """
[[shape]]
M = 126
N = 61
K = 89
tags = ["test"]
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """The workload with one more shape."""
    root = tmp_path_factory.mktemp("root")
    (root / "kernels").symlink_to(ROOT / "kernels")
    folder = root / "workloads" / "gemm_allgather"
    shutil.copytree(ROOT / "workloads" / "gemm_allgather", folder)
    with (folder / "workload.toml").open("a", encoding="utf-8") as file:
        file.write(ODD_SHARDS)
    made = Stand(load_workload(folder, "cuda"), CudaTarget(root / "cache"), TimingProtocol())
    made.start()
    made.ready()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def nothing_is_left(pair: Stand) -> Iterator[None]:
    """After every test no rank lives, and no GPU is quarantined."""
    yield
    check_nothing_left(pair.target)


@pytest.mark.parametrize("placement", ["stream_overlap", "split_put_wait"])
def test_stores_into_windows_of_peers_are_right(pair: Stand, placement: str) -> None:
    text = (KERNELS / "nccl_lsa.cu").read_text(encoding="utf-8")
    text = parse_kernel(text, "nccl_lsa.cu").render({"PLACEMENT": placement})
    tally = verify(pair, text, file="nccl_lsa.cu")
    assert tally.shapes > 3
    assert tally.repeatable


def test_a_store_that_is_not_waited_for_is_found(pair: Stand) -> None:
    text = (KERNELS / "nccl_lsa.cu").read_text(encoding="utf-8")
    line = "meet<<<1, 128, 0, side>>>(s.comm);"
    assert line in text
    with pytest.raises(KernelFault) as caught:
        verify(pair, text.replace(line, ""), file="nccl_lsa.cu")
    assert caught.value.kind in (FailureKind.MISMATCH, FailureKind.KERNEL_ERROR)
    assert "NCCL" not in caught.value.reason  # it got its windows, and was found by its outputs


@pytest.mark.parametrize(("windows", "chunks"), [(1, 1), (0, 1), (0, 4), (1, 4)])
def test_products_gathered_by_nccl_are_right(pair: Stand, windows: int, chunks: int) -> None:
    name = f"host_nccl_chunks(WINDOWS={windows}, CHUNKS={chunks})"
    kernel = baseline_kernel(pair.workload.kernels, name)
    assert kernel is not None
    assert kernel.runtime["CHUNKS"] == chunks
    places = ((127, 61, 89), (126, 61, 89), (1, 300, 64), (776, 328, 200), (4096, 4096, 4096))
    tally = verify(pair, kernel.source, *places, file="host_nccl_chunks.cu")
    assert tally.shapes == 5


def test_every_nccl_baseline_of_the_workload_can_be_timed(pair: Stand) -> None:
    shape = pair.workload.shapes_for("tune")[0]
    names = [n for n in pair.workload.targets["cuda"].baselines if n.startswith("host_nccl")]
    assert len(names) == 3
    for name in names:
        lane = open_baseline(pair, name, shape.ranks)
        try:
            lane.setup(shape, 3)
            assert pair.timer.burst(lane, 4, check=True).value_ns > 0
            lane.teardown()
        finally:
            pair.release(lane)


def test_links_that_slept_cost_a_sample_nothing(pair: Stand) -> None:
    """Stores from all SMs over links that slept took 14 % longer on 8192^3."""
    text = (KERNELS / "lsa_fused_sm90.cu").read_text(encoding="utf-8")
    kernel = parse_kernel(text, "lsa_fused_sm90.cu")
    (shape,) = [s for s in pair.workload.shapes if s.name == "8192x8192x8192"]
    lane = pair.open_kernel(
        GroupRole.CANDIDATE, pair.build(kernel), kernel.runtime, 2, Stage.VERIFY
    )
    rested, soon = [], []
    try:
        lane.setup(shape, 3)
        lane.fill([0, 1, 2])
        lane.run()
        for _ in range(7):
            time.sleep(0.1)  # they sleep after 50 ms
            rested.append(lane.sample(1).elapsed_ns)
            soon.append(lane.sample(1).elapsed_ns)
        lane.teardown()
    finally:
        pair.release(lane)
    assert median(rested) < 1.06 * median(soon)


def test_offered_memory_goes_when_its_rank_has_torn_down(pair: Stand) -> None:
    """A rank that owns the buffers gives them back at teardown, not only with its process."""
    target = pair.target
    assert isinstance(target, CudaTarget)
    kernel = parse_kernel((KERNELS / "nccl_lsa.cu").read_text(encoding="utf-8"), "nccl_lsa.cu")
    small, large = pair.workload.shapes_for("tune")[0], pair.workload.shapes_for("tune")[1]
    lane = pair.open_kernel(
        GroupRole.CANDIDATE, pair.build(kernel), kernel.runtime, 2, Stage.VERIFY
    )
    try:
        lane.setup(small, 2)  # connections and windows of NCCL stand
        lane.teardown()
        idle = [target.gpus.use(index).used_bytes for index in range(2)]
        lane.setup(large, 2)
        assert all(
            target.gpus.use(index).used_bytes > before + (256 << 20)
            for index, before in enumerate(idle)
        )
        lane.teardown()
        assert all(
            target.gpus.use(index).used_bytes < before + (64 << 20)
            for index, before in enumerate(idle)
        )
    finally:
        pair.release(lane)


def test_memory_on_another_gpu_than_the_ranks_is_refused(pair: Stand) -> None:
    """The judge looks where offered memory lies; here the two ranks' files are exchanged."""
    kernel = parse_kernel((KERNELS / "nccl_lsa.cu").read_text(encoding="utf-8"), "nccl_lsa.cu")
    lane = pair.open_kernel(
        GroupRole.CANDIDATE, pair.build(kernel), kernel.runtime, 2, Stage.VERIFY
    )
    offer = lane.group.offer
    lane.group.offer = lambda layout: offer(layout)[::-1]  # type: ignore[method-assign]
    try:
        with pytest.raises(RankFailure, match=r"rank 0 offered memory .* it lies on GPU 1, not on"):
            lane.setup(pair.workload.shapes_for("tune")[0], 2)
    finally:
        pair.release(lane)
    assert driver.device_count() >= 2


def test_gin_is_refused_in_one_line_where_there_is_none(pair: Stand) -> None:
    if not gin_missing():
        pytest.skip("this machine has a network for GIN")
    text = (KERNELS / "gin_put.cu").read_text(encoding="utf-8")
    with pytest.raises(KernelFault, match="needs NCCL with GIN: there is no RDMA"):
        lint(parse_kernel(text, "gin_put.cu"), "cuda")
    # and where nobody looked at the text before: by NCCL itself
    with pytest.raises(KernelFault, match="needs NCCL with GIN"):
        verify(pair, text, file="gin_put.cu")
