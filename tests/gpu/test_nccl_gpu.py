"""Kernels by NCCL's device API on two GPUs: windows, device communicators, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


def missing() -> str:
    """Why these tests cannot run here, or nothing."""
    try:
        import pynvml
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return f"no GPU: {error}"
    return "" if count >= 2 else f"needs two GPUs, there are {count}"


REASON = missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(REASON), reason=REASON or "none")]
if REASON:
    pytest.skip(REASON, allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent))

from test_python_gpu import ROOT, stand_of, verify  # noqa: E402

from kerneltui.evaluation.outcome import KernelFault  # noqa: E402
from kerneltui.evaluation.stand import Stand, lint  # noqa: E402
from kerneltui.model.kernel import parse_kernel  # noqa: E402
from kerneltui.model.measurement import FailureKind  # noqa: E402
from kerneltui.targets.cuda.network import gin_missing  # noqa: E402
from kerneltui.targets.cuda.runtime import CudaTarget  # noqa: E402
from kerneltui.targets.processes import descendants, is_alive  # noqa: E402

KERNELS = ROOT / "kernels" / "gemm_allgather"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    made = stand_of("gemm_allgather", tmp_path_factory.mktemp("cache"))
    made.start()
    made.ready()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def nothing_is_left(pair: Stand) -> Iterator[None]:
    """After every test no rank lives, and no GPU is quarantined."""
    yield
    target = pair.target
    assert isinstance(target, CudaTarget)
    assert not [pid for pid in descendants([target.server_pid]) if is_alive(pid)]
    assert not target.quarantined


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


def test_gin_is_refused_in_one_line_where_there_is_none(pair: Stand) -> None:
    if not gin_missing():
        pytest.skip("this machine has a network for GIN")
    text = (KERNELS / "gin_put.cu").read_text(encoding="utf-8")
    with pytest.raises(KernelFault, match="needs NCCL with GIN: there is no RDMA"):
        lint(parse_kernel(text, "gin_put.cu"), "cuda")
    # and where nobody looked at the text before: by NCCL itself
    with pytest.raises(KernelFault, match="needs NCCL with GIN"):
        verify(pair, text, file="gin_put.cu")
