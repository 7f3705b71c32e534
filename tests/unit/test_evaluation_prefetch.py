"""Kernels are built ahead of need; a failure is met again by whoever needs the kernel."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from evaluation_fakes import workload

from kerneltui.evaluation.outcome import KernelFault
from kerneltui.evaluation.pipeline import Evaluator
from kerneltui.evaluation.prefetch import Prefetch
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.targets.cpu.runtime import CpuTarget
from kerneltui.targets.cuda.runtime import CudaTarget
from kerneltui.targets.port import Build, JudgePlace


class Text(str):
    """A kernel that is its text."""

    def build_text(self) -> str:
        return str(self)


def kernels(*texts: str) -> Any:
    return [Text(text) for text in texts]


def test_all_are_built_beside_each_other_and_a_failure_stops_none() -> None:
    together = threading.Barrier(3, timeout=60)
    built: list[str] = []
    done = threading.Event()

    def build(kernel: Any) -> None:
        together.wait()
        if kernel == "bad":
            raise KernelFault(Stage.COMPILE, FailureKind.COMPILE_ERROR, "no")
        built.append(kernel)
        if len(built) == 2:
            done.set()

    prefetch = Prefetch(build, 3)
    prefetch.ask(kernels("a", "bad", "b"))
    assert done.wait(60)
    assert sorted(built) == ["a", "b"]
    prefetch.close()


def test_nothing_new_begins_after_the_end() -> None:
    begun, release = threading.Event(), threading.Event()
    built: list[str] = []

    def build(kernel: Any) -> None:
        begun.set()
        release.wait(60)
        built.append(kernel)

    prefetch = Prefetch(build, 1)
    prefetch.ask(kernels("a", "b", "c"))
    assert begun.wait(60)
    prefetch.close()
    release.set()
    for thread in threading.enumerate():
        if thread.name.startswith("prefetch"):
            thread.join(60)
    assert built == ["a"]


class Compiler:
    """Builds when it is let go; a text that holds "bad" does not build."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.built: list[str] = []

    def __call__(self, kernel: Any) -> None:
        self.begun.set()
        assert self.go.wait(60)
        if "bad" in kernel:
            raise KernelFault(Stage.COMPILE, FailureKind.COMPILE_ERROR, "no")
        self.built.append(kernel)


def test_a_kernel_is_asked_for_once() -> None:
    compiler = Compiler()
    prefetch = Prefetch(compiler, 1)
    prefetch.ask(kernels("a"))
    prefetch.ask(kernels("a", "b", "a"))
    compiler.go.set()
    prefetch.join(kernels("a")[0], lambda: None)
    prefetch.join(kernels("b")[0], lambda: None)  # built here, or left to the caller
    assert compiler.built in (["a"], ["a", "b"])
    prefetch.close()


def test_who_needs_a_kernel_that_is_being_built_waits_for_it_and_can_be_interrupted() -> None:
    compiler = Compiler()
    prefetch = Prefetch(compiler, 1)
    prefetch.ask(kernels("bad", "later"))
    assert compiler.begun.wait(60)
    looks: list[int] = []

    def checkpoint() -> None:
        looks.append(1)
        if len(looks) == 2:
            raise InterruptedError
        if len(looks) == 4:
            compiler.go.set()

    with pytest.raises(InterruptedError):
        prefetch.join(kernels("bad")[0], checkpoint)
    prefetch.join(kernels("later")[0], checkpoint)  # has not been begun: the caller builds it
    assert len(looks) == 2
    prefetch.join(kernels("bad")[0], checkpoint)  # its error is met by the caller's own build
    assert len(looks) >= 4
    prefetch.join(kernels("unknown")[0], checkpoint)
    prefetch.close()
    assert compiler.built == []


class Toolchain:
    """Builds a library that has its text in it, and says how it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[dict[str, Any]] = []
        self.built = threading.Event()

    def compile(self, text: str, *, defines: Any, limit_s: float, **how: Any) -> Build:
        self.asked.append(how)
        library = self.folder / f"{len(self.asked)}.so"
        library.write_text(text)
        self.built.set()
        return Build(library, "key", False, 1.0, "")


def evaluator_on(folder: Path, spare_cores: int) -> tuple[Evaluator, Toolchain]:
    toolchain = Toolchain(folder)
    target = SimpleNamespace(
        name="cpu", cores=2, spare_cores=spare_cores, toolchain=toolchain, judge_place=JudgePlace(),
        readings=lambda oldest_s=0.0: (), close=lambda: None, cache=folder,
    )  # fmt: skip
    made = Evaluator(workload(), cast(Any, target), ceilings=cast(Any, None), cache=folder)
    return made, toolchain


KERNEL = parse_kernel("int a;\n", "kernel.cpp")


def test_a_waiting_kernel_is_built_beside_what_is_timed_where_there_are_cores(
    tmp_path: Path,
) -> None:
    evaluator, toolchain = evaluator_on(tmp_path, 2)
    evaluator.build_ahead([KERNEL])
    assert toolchain.built.wait(60)
    evaluator.stand.build(KERNEL)  # from the cache, in earnest
    ahead, needed = toolchain.asked
    assert ahead["needs_lock"] is False and not ahead["stop"]()
    assert needed == {}
    evaluator.close()
    assert ahead["stop"](), "what is still being compiled is ended with the engine"


def test_nothing_is_compiled_ahead_on_the_cores_that_are_timed(tmp_path: Path) -> None:
    evaluator, toolchain = evaluator_on(tmp_path, 0)
    evaluator.build_ahead([KERNEL])
    assert not toolchain.built.wait(0.3)
    evaluator.close()
    assert CpuTarget(tmp_path).spare_cores == 0


@pytest.mark.parametrize(
    ("cores", "gpus", "spare"), [(16, 1, 4), (32, 2, 8), (8, 1, 0), (2, 1, 0), (192, 8, 8)]
)
def test_ranks_judge_and_engine_keep_their_cores(cores: int, gpus: int, spare: int) -> None:
    target = CudaTarget.__new__(CudaTarget)
    target._cpus, target.gpus = cores, cast(Any, SimpleNamespace(count=gpus))
    assert target.spare_cores == spare
