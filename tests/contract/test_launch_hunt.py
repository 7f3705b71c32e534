"""The run after a fault, with real ranks: a kernel whose second build says where it fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kerneltui.evaluation.launches import explain_fault, traced_lines
from kerneltui.evaluation.outcome import Interrupted, KernelFault, fault_of
from kerneltui.evaluation.stand import Stand
from kerneltui.evaluation.timing import TimingProtocol
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.model.workload_file import load_workload
from kerneltui.targets.cpu.runtime import CpuTarget
from kerneltui.targets.errors import FailureKind as RankFailureKind
from kerneltui.targets.errors import RankFailure
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.port import Build
from kerneltui.targets.processes import descendants

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HOST = (ROOT / "kernels" / "gemm_allgather" / "host.cpp").read_text()
RUN = "int kerneltui_run("
SAYS = """
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
static void trace_says(const char *line) { std::fprintf(stderr, "[launch] %s\\n", line); }
"""


class Tracing:
    """A toolchain with traced builds, as that of GPUs is: macros tell the kernel that it is one."""

    def __init__(self, target: CpuTarget) -> None:
        self._plain = target.toolchain
        self.traced = 0

    @property
    def version(self) -> str:
        return self._plain.version

    def compile(self, *given, **named) -> Build:
        return self._plain.compile(*given, **named)

    def compile_traced(
        self, source_text: str, *, defines: Mapping[str, str] | None = None, limit_s: float = 120.0
    ) -> Build:
        self.traced += 1
        names = {"TRACED": "1", **(defines or {})}
        return self._plain.compile(source_text, defines=names, limit_s=limit_s)


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("cache")
    target = CpuTarget(folder, lock=MachineLock(folder))
    target.toolchain = Tracing(target)
    workload = load_workload(ROOT / "workloads" / "gemm_allgather", "cpu")
    made = Stand(workload, target, TimingProtocol())
    made.start()
    made.ready()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def nothing_is_left(stand: Stand) -> Iterator[None]:
    stand.begin()
    yield
    assert not stand.lanes
    assert not descendants([stand.target.server_pid])


def kernel(in_run: str):
    """The library kernel, in whose traced build something is done before each call."""
    head, _, rest = HOST.partition(RUN)
    begin = rest.index("{") + 1
    body = f"{rest[:begin]}\n#ifdef TRACED\n{in_run}\n#endif\n{rest[begin:]}"
    return parse_kernel(f"{SAYS}{head}{RUN}{body}", "kernel.cpp")


def explained(stand: Stand, in_run: str, kind: FailureKind = FailureKind.KERNEL_ERROR):
    shape = min(stand.workload.shapes_for("test"), key=lambda s: s.dimensions["M"])
    fault = KernelFault(Stage.VERIFY, kind, "the device: an error", "before", in_launch=True)
    return explain_fault(stand, kernel(in_run), shape, fault)


def test_the_launch_is_in_the_reason_and_all_that_was_said_in_the_log(stand: Stand) -> None:
    fault = explained(
        stand,
        'trace_says("rank 0: launch 2 of run: waits: has not ended after 2000 ms");'
        'trace_says("rank 0: launch 3 of run: epilogue: illegal address"); return 7;',
    )
    assert fault.reason.startswith(
        "the device: an error; rank 0: launch 3 of run: epilogue: illegal address; "
    )
    assert fault.log.startswith("before\n")
    assert "launch 2 of run: waits: has not ended" in fault.log
    assert (fault.stage, fault.kind) == (Stage.VERIFY, FailureKind.KERNEL_ERROR)


def test_both_builds_are_for_the_element_type_of_the_workload(stand: Stand) -> None:
    says = (
        '#define WORDS(x) #x\n#define TEXT(x) WORDS(x)\ntrace_says("built for " TEXT(KT_ELEMENT));'
    )
    fault = explained(stand, f"{says} return 7;")
    assert fault.reason.endswith("built for 0")
    other = "#if KT_ELEMENT != KT_ELEMENT_FLOAT32\n#error not float32\n#endif\n"
    assert stand.workload.dtype == "float32"
    assert stand.build(parse_kernel(f"#include <kerneltui/kernel.h>\n{other}{HOST}", "kernel.cpp"))


def test_a_rank_that_dies_has_said_it_before(stand: Stand) -> None:
    fault = explained(stand, 'trace_says("rank 1: launch 1 of run: spins"); abort();')
    assert fault.reason == "the device: an error; rank 1: launch 1 of run: spins"


def test_what_does_not_come_again_is_said(stand: Stand) -> None:
    fault = explained(stand, "")
    assert "did not fail again with launches made one at a time" in fault.reason


def test_another_failure_is_told_as_it_is(stand: Stand) -> None:
    fault = explained(stand, "return 7;")
    assert "kerneltui_run, epoch" in fault.reason
    assert "returned 7" in fault.reason


def test_a_build_that_fails_leaves_the_fault_as_it_was(stand: Stand) -> None:
    fault = explained(stand, "this is no C++;")
    assert fault.reason.startswith("the device: an error; not told which launch: kernel.cpp:")


def test_faults_of_another_kind_cost_no_second_run(stand: Stand) -> None:
    toolchain = stand.target.toolchain
    before = toolchain.traced
    shape = stand.workload.shapes_for("test")[0]
    fault = KernelFault(Stage.VERIFY, FailureKind.MISMATCH, "C[0, 0] is wrong")
    assert explain_fault(stand, kernel(""), shape, fault) is fault
    assert toolchain.traced == before


def test_an_interrupt_ends_it(stand: Stand) -> None:
    stand.interrupt()
    with pytest.raises(Interrupted):
        explained(stand, "")


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (RankFailureKind.DEVICE, (FailureKind.KERNEL_ERROR, True)),
        (RankFailureKind.HANG, (FailureKind.HANG, True)),
        (RankFailureKind.ERROR, (FailureKind.KERNEL_ERROR, False)),
        (RankFailureKind.CRASH, (FailureKind.CRASH, False)),
    ],
)
def test_which_failures_are_of_a_launch(kind: RankFailureKind, found: tuple) -> None:
    fault = fault_of(RankFailure(kind, 0, "it failed"), Stage.VERIFY)
    assert isinstance(fault, KernelFault)
    assert (fault.kind, fault.in_launch) == found


def test_lines_of_a_trace_are_taken_once_and_errors_first() -> None:
    written = (
        "hello\n[launch] a: has not ended after 2 ms\n[launch] b: broke\n"
        "[launch] b: broke\n [launch] no\n[launch] c\x1b[31m\n"
    )
    assert traced_lines(written) == ["b: broke", "c [31m", "a: has not ended after 2 ms"]
