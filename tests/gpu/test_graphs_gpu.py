"""Short calls as one graph for each sample, on a GPU: right, made once each, refused with a reason.

And calls out of turn, one by one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gpus import check_nothing_left, skip_unless

skip_unless(1)
pytestmark = [pytest.mark.slow, pytest.mark.alone]

from test_python_gpu import stand_of  # noqa: E402

from kerneltui.evaluation.lane import Lane  # noqa: E402
from kerneltui.evaluation.stand import Stand  # noqa: E402
from kerneltui.model.kernel import parse_kernel  # noqa: E402
from kerneltui.model.measurement import Stage  # noqa: E402
from kerneltui.targets.cuda.runtime import CudaTarget  # noqa: E402
from kerneltui.targets.errors import RankFailure  # noqa: E402
from kerneltui.targets.port import GroupRole  # noqa: E402

SIZE = "256x256x256"
CALLS, SETS = 64, 16
LAUNCH_FAILED = 'return error ? fail(s.ctx, "launch of the GEMM", error) : 0;'
WAITS = "cudaStreamSynchronize(stream);"
COUNTS = """
    static uint64_t made = 0;
    if (epoch <= made) return fail(s.ctx, "an epoch comes twice");
    made = epoch;
"""
EVENT = "static cudaEvent_t {0} = [] {{ cudaEvent_t e; cudaEventCreate(&e); return e; }}();"
OTHER = "const cudaStream_t other = static_cast<cudaStream_t>(s.ctx->side_streams[{0}]);"
ON_OTHER = "nothing<<<1, 1, 0, other>>>();"
LEFT_OPEN = f"""
    {EVENT.format("event")} {OTHER.format(0)}
    cudaEventRecord(event, stream);
    cudaStreamWaitEvent(other, event, 0);
    {ON_OTHER}
"""
JOINED = f"""{LEFT_OPEN}
    cudaEventRecord(event, other);
    cudaStreamWaitEvent(stream, event, 0);
"""
# A call before the sample is made one by one: number -1.
NUMBERED = f"static int calls = -1; const int call = calls++ % {CALLS};"
# Behind the first call of a sample, not behind the call before.
SIDE_BY_SIDE = f"""
    {NUMBERED} {EVENT.format("first")} {EVENT.format("event")}
    if (call >= 0) {{
        {OTHER.format("call % 2")}
        if (call == 0) cudaEventRecord(first, stream);
        cudaStreamWaitEvent(other, first, 0);
        {ON_OTHER}
        cudaEventRecord(event, other);
        cudaStreamWaitEvent(stream, event, 0);
    }}
"""
JOINED_LATE = f"""
    {NUMBERED} {EVENT.format("begun")} {EVENT.format("event")}
    if (call >= 0) {{
        {OTHER.format(0)}
        if (call > 0) cudaStreamWaitEvent(stream, event, 0);
        cudaEventRecord(begun, stream);
        cudaStreamWaitEvent(other, begun, 0);
        {ON_OTHER}
        cudaEventRecord(event, other);
        if (call == {CALLS - 1}) cudaStreamWaitEvent(stream, event, 0);
    }}
"""
# All calls of a sample but the first wait for nothing but its first one; each output is right.
STREAM = "cudaStream_t stream = static_cast<cudaStream_t>(opaque_stream);"
AHEAD = f"""
    {STREAM}
    const cudaStream_t callers = stream;
    static int calls = -1; const int call = calls++ % {SETS};
    {EVENT.format("first")} {EVENT.format("event")}
    if (call == 0) cudaEventRecord(first, stream);
    if (call > 0) {{
        stream = static_cast<cudaStream_t>(s.ctx->side_streams[call % 2]);
        cudaStreamWaitEvent(stream, first, 0);
    }}
"""
BACK = "if (stream != callers) { cudaEventRecord(event, stream); cudaStreamWaitEvent(callers, event, 0); }"
STREAMS = ("out->graph_safe = 1;", "out->graph_safe = 1; out->side_streams = 2;")
NOTHING = ("}  // namespace\n", "__global__ void nothing() {}\n}  // namespace\n")


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    made = stand_of("gemm", tmp_path_factory.mktemp("cache"))
    made.start()
    made.ready()
    yield made
    check_nothing_left(made.target)
    made.close()


@pytest.fixture
def lanes(stand: Stand) -> Iterator[list[Lane]]:
    opened: list[Lane] = []
    yield opened
    for lane in opened:
        stand.release(lane)


def open_kernel(stand: Stand, file: str, *changes: tuple[str, str]) -> Lane:
    """A kernel of the library, changed, and set up with as many buffer sets as tell calls apart."""
    text = (stand.workload.kernels / file).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    kernel = parse_kernel(text, file)
    build = stand.build(kernel)
    return set_up(
        stand, stand.open_kernel(GroupRole.CANDIDATE, build, kernel.runtime, 1, Stage.BENCHMARK)
    )


def skip_if_for_others(stand: Stand, file: str) -> None:
    """Skips a test of a kernel that this GPU cannot run."""
    assert isinstance(stand.target, CudaTarget)
    if "sm90" in file and stand.target.arch != "sm_90a":
        pytest.skip(f"it is for sm_90a, this GPU is {stand.target.arch}")


def set_up(stand: Stand, lane: Lane) -> Lane:
    lane.setup(next(s for s in stand.workload.shapes if s.name == SIZE), SETS)
    sets = lane.next_sets(1)
    lane.fill(sets)
    lane.sample(1)  # code is loaded one call at a time
    return lane


def check_graphs(lane: Lane) -> None:
    """Samples as graphs and one by one in turn leave right outputs in every set."""
    for number in range(4):
        sets = lane.next_sets(CALLS)
        late = number == 3 and lane.enqueues
        if not late:
            lane.fill(sets)
        seen = lane.sample(CALLS, late_fill=late, graph=number != 1)
        assert seen.held and seen.clock_conflict is None
        assert seen.elapsed_ns > 0
        assert lane.check(sets).passed, number


@pytest.mark.parametrize(
    "name",
    ["torch_matmul", "cublas_nn", "cublas_tn", "cublaslt_heuristic", "cublaslt_autotuned"],
)
def test_every_vendor_baseline_can_be_captured(stand: Stand, lanes: list[Lane], name: str) -> None:
    lane = set_up(stand, stand.open_baseline(name, 1))
    lanes.append(lane)
    assert lane.graph_safe
    check_graphs(lane)


@pytest.mark.parametrize("file", ["gemm_sm80.cu", "gemm_sm90.cu", "triton_gemm.py"])
def test_kernels_of_the_library_can_be_captured(stand: Stand, lanes: list[Lane], file: str) -> None:
    skip_if_for_others(stand, file)
    lane = open_kernel(stand, file)
    lanes.append(lane)
    assert lane.graph_safe
    check_graphs(lane)


def test_each_call_is_made_once(stand: Stand, lanes: list[Lane]) -> None:
    """Nothing is captured twice or replayed: a kernel may count its calls."""
    head = "int kerneltui_run(void *opaque, uint32_t set, uint64_t, void *opaque_stream) {"
    named = head.replace("uint64_t,", "uint64_t epoch,")
    state = "const State &s = *static_cast<const State *>(opaque);"
    lane = open_kernel(
        stand,
        "gemm_sm80.cu",
        (head, named),
        (f"{named}\n    {state}", f"{named}\n    {state}{COUNTS}"),
    )
    lanes.append(lane)
    check_graphs(lane)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((LAUNCH_FAILED, WAITS + LAUNCH_FAILED), "clear graph_safe if run cannot be"),
        ((LAUNCH_FAILED, LEFT_OPEN + LAUNCH_FAILED), "must be joined again"),
        ((LAUNCH_FAILED, SIDE_BY_SIDE + LAUNCH_FAILED), "call 2 of a graph begins before call 1"),
        ((LAUNCH_FAILED, JOINED_LATE + LAUNCH_FAILED), "call 1 of a graph leaves work on a stream"),
    ],
    ids=["waits", "left open", "side by side", "joined late"],
)
def test_a_kernel_that_says_so_wrongly_fails_with_the_reason(
    stand: Stand, lanes: list[Lane], change: tuple[str, str], words: str
) -> None:
    lane = open_kernel(stand, "gemm_sm80.cu", change, STREAMS, NOTHING)
    lanes.append(lane)
    lane.fill(lane.next_sets(CALLS))
    with pytest.raises(RankFailure, match=words):
        lane.sample(CALLS, graph=True)


def test_a_stream_of_its_own_may_be_forked_and_joined(stand: Stand, lanes: list[Lane]) -> None:
    change = (LAUNCH_FAILED, JOINED + LAUNCH_FAILED)
    lane = open_kernel(stand, "gemm_sm80.cu", change, STREAMS, NOTHING)
    lanes.append(lane)
    check_graphs(lane)


def test_who_does_not_say_that_it_can_be_captured_is_not(stand: Stand, lanes: list[Lane]) -> None:
    lane = open_kernel(stand, "gemm_sm80.cu", ("out->graph_safe = 1;", ""))
    lanes.append(lane)
    assert not lane.graph_safe


def run_once(lane: Lane, *, masked: bool) -> bool:
    """Whether calls one by one on all sets, each once, leave right outputs in each."""
    assert lane.can_mask(SETS)
    sets = lane.next_sets(SETS)
    lane.fill(sets)
    assert lane.sample(SETS, masked=masked).held
    return lane.check(sets).passed


@pytest.mark.parametrize("file", ["gemm_sm80.cu", "gemm_sm90.cu", "triton_gemm.py"])
def test_who_waits_for_its_turn_is_right_with_masked_inputs(
    stand: Stand, lanes: list[Lane], file: str
) -> None:
    skip_if_for_others(stand, file)
    lane = open_kernel(stand, file)
    lanes.append(lane)
    assert [run_once(lane, masked=masked) for masked in (False, True, True, False)] == [True] * 4


def test_who_works_ahead_on_a_stream_of_its_own_is_wrong_with_masked_inputs(
    stand: Stand, lanes: list[Lane]
) -> None:
    changes = ((f"const {STREAM}", AHEAD), (LAUNCH_FAILED, BACK + LAUNCH_FAILED))
    lane = open_kernel(stand, "gemm_sm80.cu", *changes, STREAMS)
    lanes.append(lane)
    assert run_once(lane, masked=False), "nothing else shows it"
    assert not run_once(lane, masked=True)


def test_a_programmatic_launch_without_a_wait_is_wrong_with_masked_inputs(
    stand: Stand, lanes: list[Lane]
) -> None:
    skip_if_for_others(stand, "gemm_sm90.cu")
    lane = open_kernel(stand, "gemm_sm90.cu", ("griddepcontrol.wait;", ""))
    lanes.append(lane)
    assert not run_once(lane, masked=True)
