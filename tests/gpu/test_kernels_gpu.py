"""The kernels of the library on real GPUs: products in bf16 and in fp16, and a fused one on two GPUs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gpus import check_nothing_left, skip_unless

skip_unless(1)
pytestmark = [pytest.mark.slow, pytest.mark.alone]

from test_python_gpu import ALIGNED, ODD, ROOT, stand_of, verify  # noqa: E402

from kerneltui.evaluation.baseline_kernels import baseline_kernel  # noqa: E402
from kerneltui.evaluation.kernel_text import element_define, kernel_text  # noqa: E402
from kerneltui.evaluation.outcome import KernelFault  # noqa: E402
from kerneltui.evaluation.stand import Stand  # noqa: E402
from kerneltui.evaluation.values import ValueClass  # noqa: E402
from kerneltui.evaluation.verify import Tally, VerifyPlan, verify_shape  # noqa: E402
from kerneltui.model.kernel import parse_kernel  # noqa: E402
from kerneltui.model.measurement import Stage  # noqa: E402
from kerneltui.targets.cuda.runtime import CudaTarget  # noqa: E402
from kerneltui.targets.port import GroupRole  # noqa: E402

LARGE = (4096, 4096, 4096)
PLACES = (
    ODD,
    ALIGNED,
    (257, 129, 1),
    (511, 513, 509),
    (1, 300, 64),
    (16, 1032, 1032),
    (72, 136, 16376),
    (1416, 1048, 4104),
    (64, 8192, 8192),
    (512, 512, 8192),
    LARGE,
)
TRITON_PLACES = (ODD, ALIGNED, (1, 300, 64), (72, 136, 16376), LARGE)
PAIR_PLACES = (
    ODD,
    ALIGNED,
    (257, 129, 1),
    (3, 1, 33),
    (1, 300, 64),
    (511, 513, 509),
    (1408, 1048, 520),
    LARGE,
)


@pytest.fixture(scope="module", params=["gemm", "gemm_fp16"])
def stand(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stand]:
    made = stand_of(request.param, tmp_path_factory.mktemp("cache"))
    made.start()
    made.ready()
    yield made
    check_nothing_left(made.target)
    made.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    made = stand_of("gemm_allgather", tmp_path_factory.mktemp("pair"))
    if target_of(made).gpus.count < 2:
        pytest.skip("needs two GPUs")
    made.start()
    made.ready()
    yield made
    check_nothing_left(made.target)
    made.close()


def target_of(stand: Stand) -> CudaTarget:
    assert isinstance(stand.target, CudaTarget)
    return stand.target


@pytest.mark.parametrize("file", ["gemm_sm80.cu", "gemm_sm90.cu"])
def test_a_product_is_right_in_the_element_type_of_its_workload(stand: Stand, file: str) -> None:
    if "sm90" in file and target_of(stand).arch != "sm_90a":
        pytest.skip(f"it is for sm_90a, this GPU is {target_of(stand).arch}")
    text = (stand.workload.kernels / file).read_text(encoding="utf-8")
    tally = verify(stand, text, *PLACES, file=file)
    assert tally.shapes == len(PLACES)
    assert tally.repeatable


@pytest.mark.parametrize("loads", ["descriptors", "pointers"])
def test_the_triton_kernel_is_right(stand: Stand, loads: str) -> None:
    text = (stand.workload.kernels / "triton_gemm.py").read_text(encoding="utf-8")
    text = parse_kernel(text, "triton_gemm.py").render({"LOADS": loads})
    tally = verify(stand, text, *TRITON_PLACES, file="triton_gemm.py")
    assert tally.shapes == len(TRITON_PLACES)
    assert tally.repeatable


def test_a_build_for_the_other_type_refuses_to_multiply(stand: Stand) -> None:
    """Nobody gets products of bits that mean something else."""
    mine = stand.workload.dtype
    other = {"float16": "bfloat16", "bfloat16": "float16"}[mine]
    file = stand.workload.kernels / "gemm_sm80.cu"
    kernel = parse_kernel(file.read_text(encoding="utf-8"), file.name)
    build = target_of(stand).toolchain.compile(kernel_text(kernel), defines=element_define(other))
    lane = stand.open_kernel(GroupRole.CANDIDATE, build, kernel.runtime, 1, Stage.VERIFY)
    shape = next(s for s in stand.workload.shapes if s.name == "776x328x200")
    plan = VerifyPlan(classes=(ValueClass.EXACT,), edit=False, repeats=0, late_ranks=False)
    try:
        with pytest.raises(KernelFault, match=f"this build multiplies {other}"):
            verify_shape(lane, shape, plan, Tally(), stand.checkpoint)
    finally:
        stand.release(lane)


@pytest.mark.parametrize("settings", ["PEER_FIRST=1", "PEER_FIRST=0, STAGES=3, GROUP_M=4"])
def test_the_fused_kernel_without_tma_is_right_on_two_gpus(pair: Stand, settings: str) -> None:
    kernel = baseline_kernel(ROOT / "kernels" / "gemm_allgather", f"lsa_fused_sm80({settings})")
    assert kernel is not None
    tally = verify(pair, kernel.source, *PAIR_PLACES, file="lsa_fused_sm80.cu")
    assert tally.shapes == len(PAIR_PLACES)
    assert tally.repeatable
