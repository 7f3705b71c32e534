"""Python kernels on a GPU: CuPy and torch in confined ranks, and what kernels are refused for."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gpus import check_nothing_left, skip_unless

skip_unless(1)
pytestmark = [pytest.mark.slow, pytest.mark.alone]

import python_kernels as kernels  # noqa: E402

from kerneltui.evaluation.outcome import KernelFault  # noqa: E402
from kerneltui.evaluation.stand import Stand  # noqa: E402
from kerneltui.evaluation.timing import TimingProtocol  # noqa: E402
from kerneltui.evaluation.verify import Tally, VerifyPlan, verify_shape  # noqa: E402
from kerneltui.model.kernel import parse_kernel  # noqa: E402
from kerneltui.model.measurement import FailureKind, Stage  # noqa: E402
from kerneltui.model.workload import Shape  # noqa: E402
from kerneltui.model.workload_file import load_workload  # noqa: E402
from kerneltui.targets.cuda.runtime import CudaTarget  # noqa: E402
from kerneltui.targets.port import GroupRole  # noqa: E402

ROOT = Path(__file__).parents[2]
ODD, ALIGNED = (127, 61, 89), (776, 328, 200)


def stand_of(workload: str, folder: Path) -> Stand:
    made = load_workload(ROOT / "workloads" / workload, "cuda")
    return Stand(made, CudaTarget(folder), TimingProtocol())


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    made = stand_of("gemm", tmp_path_factory.mktemp("cache"))
    made.start()
    made.ready()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def nothing_is_left(stand: Stand) -> Iterator[None]:
    """After every test no rank and no compiler lives, and no GPU is quarantined."""
    yield
    check_nothing_left(stand.target)


def _shapes(stand: Stand, sizes: Sequence[tuple[int, int, int]]) -> list[Shape]:
    """Shapes of the workload with these M, N and K; without any, all of them."""
    ranks = stand.workload.shapes[0].ranks
    by_size = {
        tuple(shape.dimensions[name] for name in ("M", "N", "K")): shape
        for shape in stand.workload.shapes
        if shape.ranks == ranks
    }
    return [by_size[size] for size in sizes or by_size]


def verify(
    stand: Stand, source: str, *sizes: tuple[int, int, int], file: str = "kernel.py"
) -> Tally:
    kernel = parse_kernel(source, file)
    tally = Tally()
    ranks = stand.workload.shapes[0].ranks
    build = stand.build(kernel)
    lane = stand.open_kernel(GroupRole.CANDIDATE, build, kernel.runtime, ranks, Stage.VERIFY)
    try:
        for shape in _shapes(stand, sizes):
            verify_shape(lane, shape, VerifyPlan.for_shape(shape), tally, stand.checkpoint)
            lane.teardown()
    finally:
        stand.release(lane)
    return tally


@pytest.mark.parametrize(
    "source",
    [kernels.kernel(kernels.TORCH), kernels.CUPY, kernels.EXTENSION],
    ids=["torch", "cupy", "extension"],
)
def test_torch_cupy_and_extensions_are_right(stand: Stand, source: str) -> None:
    if source == kernels.CUPY:
        pytest.importorskip("cupy")
    assert verify(stand, source, ODD, ALIGNED).shapes == 2


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (kernels.kernel(kernels.WAITS), "synchroniz"),
        (kernels.COMPILES_IN_RUN, "a kernel compiles in setup alone"),
        (kernels.kernel(kernels.NOT_JOINED), "stream is not joined"),
        (kernels.kernel(kernels.REDUCED), "sums in bfloat16"),
        (kernels.kernel(kernels.FILE), "PermissionError"),
        (kernels.kernel(kernels.PROGRAM), "PermissionError"),
    ],
    ids=["waits", "compiles in run", "stream", "reduced precision", "file", "program"],
)
def test_a_bad_kernel_is_refused_with_its_reason(stand: Stand, source: str, words: str) -> None:
    with pytest.raises(KernelFault) as caught:
        verify(stand, source, ALIGNED)
    assert caught.value.kind in (FailureKind.KERNEL_ERROR, FailureKind.MISMATCH)
    assert words in caught.value.reason


def test_chunks_by_the_copy_engine_reach_the_peer(
    stand: Stand, tmp_path_factory: pytest.TempPathFactory
) -> None:
    target = stand.target
    assert isinstance(target, CudaTarget)
    if target.gpus.count < 2:
        pytest.skip(f"needs two GPUs, there are {target.gpus.count}")
    pair = stand_of("gemm_allgather", tmp_path_factory.mktemp("pair"))
    pair.start()
    try:
        pair.ready()
        file = ROOT / "kernels" / "gemm_allgather" / "torch_window.py"
        assert verify(pair, file.read_text(encoding="utf-8")).repeatable
    finally:
        pair.close()
