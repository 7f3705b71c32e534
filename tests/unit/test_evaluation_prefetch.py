"""Kernels are built ahead of need; a failure is met again by whoever needs the kernel."""

from __future__ import annotations

import threading
from typing import Any

from kerneltui.evaluation.outcome import KernelFault
from kerneltui.evaluation.prefetch import Prefetch
from kerneltui.model.measurement import FailureKind, Stage


def test_all_are_built_beside_each_other_and_a_failure_stops_none() -> None:
    together = threading.Barrier(3, timeout=10)
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
    prefetch.ask(["a", "bad", "b"])  # type: ignore[list-item]
    assert done.wait(10)
    assert sorted(built) == ["a", "b"]
    prefetch.close()


def test_nothing_new_begins_after_the_end() -> None:
    begun, release = threading.Event(), threading.Event()
    built: list[str] = []

    def build(kernel: Any) -> None:
        begun.set()
        release.wait(10)
        built.append(kernel)

    prefetch = Prefetch(build, 1)
    prefetch.ask(["a", "b", "c"])  # type: ignore[list-item]
    assert begun.wait(10)
    prefetch.close()
    release.set()
    for thread in threading.enumerate():
        if thread.name.startswith("prefetch"):
            thread.join(10)
    assert built == ["a"]
