"""Python kernels in real ranks of the CPU target: what they are given, how they fail, what confines them."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_groups import check_gather

from kerneltui.model.workload import Role
from kerneltui.targets.cpu.runtime import CpuTarget
from kerneltui.targets.errors import CompileFailure, FailureKind, RankFailure, TargetError
from kerneltui.targets.group import RankGroup
from kerneltui.targets.locks import MachineLock
from kerneltui.targets.port import GroupRole, Limits
from kerneltui.targets.python import PythonBuilds, extension_file
from kerneltui.targets.windows import DType, GroupLayout, TensorSpec

pytestmark = pytest.mark.slow

OUTSIDE = Path("/tmp/kerneltui-was-here")
ROWS, COLUMNS = 101, 8  # does not divide by 2 or 3
LIMITS = Limits(first_call_s=60.0, sample_s=60.0, load_s=60.0, setup_s=60.0)  # for busy machines

GATHER = """
import torch

def requirements(problem):
    assert problem.dimensions["M"] == 101 and problem.tunables == {"STEP": 2}
    return {"signal_words": problem.ranks, "window_bytes": 1000, "scratch_bytes": 5000}

def setup(context):
    assert len(context.buffers) == 3 and context.outputs == ("C",)
    assert context.scratch.numel() >= 5000 and context.window[0].numel() >= 1000
    assert context.signals[context.rank].dtype == torch.int64
    assert context.peers[1]["C"][context.rank].data_ptr() == context.buffers[1]["C"].data_ptr()
    SETUP
    return {"calls": 0}

def run(context, state, set, epoch):
    first = context.offsets["A"][0]
    own = context.buffers[set]["A"]
    BODY
    for peer in range(context.ranks):
        context.peers[set]["C"][peer][first:first + len(own)].copy_(own)
        context.raise_flag(peer, context.rank, epoch + 1)
    for peer in range(context.ranks):
        context.wait_flag(peer, epoch + 1)

def teardown(context, state):
    print("torn down")
"""


def kernel(run: str = "pass", setup: str = "pass", head: str = "") -> str:
    return head + GATHER.replace("SETUP", textwrap.indent(run and setup, "    ").lstrip()).replace(
        "BODY", textwrap.indent(run, "    ").lstrip()
    )


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuTarget]:
    folder = tmp_path_factory.mktemp("cache")
    with CpuTarget(folder, lock=MachineLock(folder)) as made:
        yield made


def opened(target: CpuTarget, source: str, ranks: int = 2, limits: Limits = LIMITS) -> RankGroup:
    build = builds_of(target).compile(source)
    group = target.open_group(GroupRole.CANDIDATE, ranks, limits=limits, compiles=True)
    try:
        group.load(build.library)
        wanted = group.requirements({"M": ROWS, "N": COLUMNS}, {"STEP": 2})
        group.setup(planned(ranks, wanted.signal_words, wanted.window_bytes, wanted.scratch_bytes),
                    {"STEP": 2})  # fmt: skip
    except BaseException:
        group.close()
        raise
    return group


def planned(ranks: int, words: int, window: int, scratch: int) -> GroupLayout:
    specs = [
        TensorSpec("A", DType.BFLOAT16, Role.INPUT, (ROWS, COLUMNS), shard=0),
        TensorSpec("C", DType.BFLOAT16, Role.OUTPUT, (ROWS, COLUMNS), symmetric=True),
    ]
    return GroupLayout.plan(
        specs,
        {"M": ROWS, "N": COLUMNS},
        ranks=ranks,
        sets=3,
        signal_words=words,
        window_bytes=window,
        scratch_bytes=scratch,
    )


def check(group: RankGroup, epoch: int, set_index: int) -> None:
    check_gather(group, epoch, set_index, numbers=120)


def failure(target: CpuTarget, source: str, limits: Limits = LIMITS) -> RankFailure:
    """What opening, setting up or calling a kernel raises."""
    with pytest.raises(RankFailure) as caught, opened(target, source, limits=limits) as group:
        group.run(0, 1)
    assert "\n" not in caught.value.reason
    return caught.value


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_rank_gets_every_shard(target: CpuTarget, ranks: int) -> None:
    with opened(target, kernel(), ranks) as group:
        for epoch in range(6):
            check(group, epoch, epoch % 3)
        sample = group.sample(20, 0, 100)
        assert sample.clock_conflict is None
        assert [len(rank.call_ends_ns) for rank in sample.ranks] == [20] * ranks
        group.teardown()
        # What a rank prints comes by a pipe of its own, maybe after its answer.
        deadline = time.monotonic() + 20
        while not all("torn down" in part.text for part in group.output()[:ranks]):
            assert time.monotonic() < deadline, [part.text for part in group.output()]
            time.sleep(0.01)


@pytest.mark.parametrize("ranks", [2, 3])
def test_host_collectives(target: CpuTarget, ranks: int) -> None:
    source = """
        def requirements(problem):
            return {"host_collectives": 1}

        def run(context, state, set, epoch):
            context.all_gather(context.buffers[set]["A"], context.buffers[set]["C"])
            context.barrier()
    """
    with opened(target, textwrap.dedent(source), ranks) as group:
        for epoch in range(3):
            check(group, epoch, epoch)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (kernel("raise ValueError('no such luck')"), "ValueError: no such luck (line "),
        (kernel("exit(0)"), "SystemExit: 0"),
        (kernel(setup="raise RuntimeError('not here')"), "setup raised RuntimeError: not here"),
        (kernel(setup="context.rank = 3"), "setup raised FrozenInstanceError"),
        (kernel(setup="context.buffers[0]['A'] = 3"), "setup raised TypeError"),
        ("def other(): pass", "no function run(context, state, set, epoch)"),
        ("import nowhere_to_be_found", "cannot load the kernel: ModuleNotFoundError"),
        (kernel("context.raise_flag(0, 99, 1)"), "IndexError: signal word 99 of 2"),
        (
            kernel().replace('return {"signal_words"', 'return {"colour": 1, "signal_words"'),
            "requirements asks for 'colour'",
        ),
        (kernel().replace('"window_bytes": 1000', '"window_bytes": -1'), "window_bytes is -1"),
    ],
)
def test_what_goes_wrong_is_one_line_with_its_reason(
    target: CpuTarget, source: str, words: str
) -> None:
    caught = failure(target, source)
    assert caught.kind is FailureKind.ERROR
    assert words in caught.reason


def test_a_hang_in_python_is_a_hang(target: CpuTarget) -> None:
    caught = failure(target, kernel("while True: pass"), limits=Limits(first_call_s=1.0))
    assert caught.kind is FailureKind.HANG
    caught = failure(target, kernel("context.wait_flag(0, 10 ** 9)"), Limits(first_call_s=1.0))
    assert caught.kind is FailureKind.HANG


def test_no_memory_is_said(target: CpuTarget) -> None:
    caught = failure(target, kernel(setup="torch.empty(1 << 40, dtype=torch.uint8)"))
    assert caught.kind is FailureKind.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("torch.set_float32_matmul_precision('medium')", "the precision of float32 products"),
        ("torch.set_num_threads(7)", "the number of threads of torch"),
        ("torch.set_default_dtype(torch.float64)", "the default dtype"),
        (
            "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True",
            "sums in bfloat16",
        ),
        (
            "import kerneltui.evaluation.worker_kernel as w; w.thread_count = lambda: 1",
            "kerneltui.evaluation.worker_kernel.thread_count, which is not its own",
        ),
        (
            "import kerneltui.evaluation.worker_cpu as w; w.CpuMachine.sample = None",
            "CpuMachine.sample, which is not its own",
        ),
        ("import time; time.monotonic_ns = lambda: 0", "time.monotonic_ns, which is not its own"),
        ("import builtins; builtins.pow = len", "builtins.pow, which is not its own"),
    ],
)
@pytest.mark.parametrize("place", ["setup", "run"])
def test_what_is_changed_behind_the_lint_is_found(
    target: CpuTarget, line: str, words: str, place: str
) -> None:
    caught = failure(target, kernel(line) if place == "run" else kernel(setup=line))
    assert "the kernel changed" in caught.reason
    assert words in caught.reason


@pytest.mark.parametrize(
    "line",
    [
        "import subprocess; subprocess.run(['/bin/true'])",
        "import os; os.fork()",
        "import socket; socket.socket()",
        f"open('{OUTSIDE}', 'w')",
        "import os; os.kill(os.getppid(), 0)",
    ],
)
def test_the_sandbox_holds_python_too(target: CpuTarget, line: str) -> None:
    OUTSIDE.unlink(missing_ok=True)
    reason = failure(target, kernel(setup=line)).reason
    assert "PermissionError" in reason or "Operation not permitted" in reason
    assert not OUTSIDE.exists()


def test_a_build_is_the_text_itself_and_is_found_again(tmp_path: Path) -> None:
    builds = PythonBuilds(tmp_path / "builds")
    first, second = builds.compile(GATHER), builds.compile(GATHER)
    assert (first.cached, second.cached) == (False, True)
    assert first.library == second.library
    first.library.write_text("damaged")
    assert not builds.compile(GATHER).cached
    assert first.library.read_text() == GATHER


@pytest.mark.parametrize("text", ["def run(:", "x = '\0'", "(" * 5000])
def test_what_is_no_python_does_not_build(tmp_path: Path, text: str) -> None:
    with pytest.raises(CompileFailure, match=r"kernel\.py.*error"):
        PythonBuilds(tmp_path).compile(text)


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError, match="cannot write the build cache"):
        PythonBuilds(tmp_path / "file").compile("x = 1")


# -- extensions of torch


ADD_INTO = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

static void copy_into(Tensor from, Tensor into) {
    const auto *source = static_cast<const char *>(from.data_ptr());
    auto *place = static_cast<char *>(into.mutable_data_ptr());
    for (int64_t i = 0; i < from.numel(); ++i) place[i] = source[i];
}

STABLE_TORCH_LIBRARY(kernel, m) { m.def("copy_into(Tensor source, Tensor(a!) place) -> ()"); }
STABLE_TORCH_LIBRARY_IMPL(kernel, CPU, m) { m.impl("copy_into", TORCH_BOX(&copy_into)); }
"""


def extended(extension: str, **parts: str) -> str:
    return kernel(head=f'\n\nEXTENSION = r"""{extension}"""\n', **parts)


def builds_of(target: CpuTarget) -> PythonBuilds:
    return PythonBuilds(target.cache / "builds", target.toolchain.compile)


def test_an_extension_of_torch_computes_in_the_ranks(target: CpuTarget) -> None:
    bytes_of = ".view(torch.uint8).flatten()"
    source = extended(ADD_INTO).replace(
        "context.peers[set][\"C\"][peer][first:first + len(own)].copy_(own)",
        "place = context.peers[set][\"C\"][peer][first:first + len(own)]\n"
        f"        context.extension.copy_into(own{bytes_of}, place{bytes_of})",
    )  # fmt: skip
    builds = builds_of(target)
    first = builds.compile(source)
    again = builds.compile(source.replace('print("torn down")', "pass"))
    assert not first.cached and extension_file(first.library).exists()
    assert first.seconds > 0 and again.seconds == first.seconds  # the same extension, built once
    with opened(target, source) as group:
        for epoch in range(4):
            check(group, epoch, epoch % 3)


def test_a_kernel_without_one_has_none(target: CpuTarget) -> None:
    with opened(target, kernel(setup="assert context.extension is None")) as group:
        check(group, 0, 0)


def test_what_is_wrong_in_an_extension_has_the_line_of_the_kernel(target: CpuTarget) -> None:
    source = extended(ADD_INTO.replace("place[i] = source[i]", "place[i] = nowhere[i]"))
    line = next(i for i, text in enumerate(source.splitlines(), 1) if "nowhere" in text)
    with pytest.raises(CompileFailure) as caught:
        builds_of(target).compile(source)
    assert f"kernel.py:{line}:" in caught.value.reason and "nowhere" in caught.value.reason


@pytest.mark.parametrize(
    "head", ["EXTENSION = 'a' + 'b'", "EXTENSION = 'a'\nEXTENSION = 'b'", "EXTENSION: str = f'{1}'"]
)
def test_an_extension_is_one_text_written_out(target: CpuTarget, head: str) -> None:
    with pytest.raises(CompileFailure, match=r"kernel\.py\(\d\): error: EXTENSION is one text"):
        builds_of(target).compile(f"{head}\n{kernel()}")


def test_a_lost_extension_is_built_again(tmp_path: Path, target: CpuTarget) -> None:
    builds = PythonBuilds(tmp_path / "builds", target.toolchain.compile)
    build = builds.compile(extended(ADD_INTO))
    assert builds.compile(extended(ADD_INTO)).cached
    extension_file(build.library).unlink()
    assert not builds.compile(extended(ADD_INTO)).cached
    assert extension_file(build.library).exists()


def test_an_extension_that_cannot_be_loaded_says_why(target: CpuTarget) -> None:
    found = failure(target, extended(ADD_INTO.replace("Tensor source,", "Tensors source,")))
    assert "in load" in found.reason
    assert "Tensors" in found.detail
