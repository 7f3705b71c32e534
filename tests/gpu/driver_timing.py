"""Times kernels of `gemm_allgather` on two GPUs against one another, and against both of their parts."""

from __future__ import annotations

import ctypes
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from driver_checks import relative_error
from driver_kernel import DriverFault, Shape, Spec
from driver_problem import SETS, Loaded, Problem
from driver_rank import RANKS, Rank

Report = Callable[[str, Any], None]
Enqueue = Callable[[int], None]


@dataclass(frozen=True)
class Contender:
    """Something that is timed: it enqueues so many calls."""

    name: str
    enqueue: Enqueue
    kernel: Loaded | None = None


def gemm_of(problem: Problem) -> Enqueue:
    """torch.mm of the own rows, over the sets in turn."""
    rank = problem.rank
    torch = rank.torch

    def enqueue(calls: int) -> None:
        with torch.cuda.stream(rank.stream):
            for i in range(calls):
                j = i % SETS
                rows = problem.c[j][problem.first : problem.first + problem.rows]
                torch.mm(problem.a[j], problem.b[j], out=rows)

    return enqueue


def gather_of(problem: Problem) -> Enqueue:
    """NCCL's all-gather of C in place, over the sets in turn."""
    rank, row = problem.rank, problem.shape[1] * 2
    pointer = ctypes.c_void_p

    def enqueue(calls: int) -> None:
        counts = (ctypes.c_uint64 * RANKS)(*(problem.rows * row for _ in range(RANKS)))
        for i in range(calls):
            window = problem.windows[i % SETS]
            own = window.local + problem.first * row
            rank.helper.kd_all_gather(
                *(pointer(rank.host.self), pointer(own), pointer(window.local), counts),
                pointer(rank.stream.cuda_stream),
            )

    return enqueue


def sample(
    rank: Rank, enqueue: Enqueue, calls: int, before: Callable[[], None], pause_s: float
) -> float:
    """Milliseconds per call of a batch, on this rank; both ranks start together.

    A pause before it lets clocks and power settle, so that no kernel pays for its predecessor. The gate
    opens when a few calls are enqueued: a stream holds about a thousand operations, then the host waits.
    """
    torch = rank.torch
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    time.sleep(pause_s)
    rank.meet()
    rank.close_gate()
    before()
    begin.record(rank.stream)
    ahead = min(calls, 6)
    enqueue(ahead)
    rank.open_gate()
    enqueue(calls - ahead)
    end.record(rank.stream)
    rank.stream.synchronize()
    return begin.elapsed_time(end) / calls


def time_kernels(rank: Rank, report: Report, specs: list[Spec], job: dict[str, Any]) -> None:
    """Times all kernels on every shape of the job."""
    for number, shape in enumerate(job["time"]):
        time_shape(rank, report, specs, job=job, number=number, shape=shape)
        rank.torch.cuda.empty_cache()


def time_shape(
    rank: Rank,
    report: Report,
    specs: list[Spec],
    *,
    job: dict[str, Any],
    number: int,
    shape: Shape,
) -> None:
    """Kernel by kernel, in an order of its own each round; the slowest rank of each sample counts."""
    problem = Problem(rank, shape, SETS)
    problem.fill(1000 + number, False)
    problem.poison()
    parts = {"gemm": gemm_of(problem), "gather": gather_of(problem)}
    contenders = [
        Contender("gemm alone", parts["gemm"]),
        Contender("all-gather", parts["gather"]),
    ]
    for spec in specs:
        report("begin", f"time {spec.text} {shape}")
        try:
            loaded = Loaded(rank, problem, spec)
            contenders.append(Contender(spec.text, loaded.call, loaded))
        except DriverFault as fault:
            report("timing_failed", (spec.text, shape, str(fault)))
    plan: dict[str, int] = {}
    for one in contenders:
        report("begin", f"time {one.name} {shape}")
        plan[one.name] = calls_of(rank, one, job)
    times: dict[str, list[float]] = {one.name: [] for one in contenders}
    for turn in range(job["rounds"]):
        order = list(contenders)
        random.Random(number * 1000 + turn).shuffle(order)  # the same on both ranks
        for one in order:
            report("begin", f"time {one.name} {shape}")
            first = {"self": one.enqueue, **parts}.get(job["before"])
            before = nothing if first is None else partial(first, 1)
            own = sample(rank, one.enqueue, plan[one.name], before, job["pause_s"])
            times[one.name].append(max(own, rank.swap(own)))
    errors = errors_of(problem, report, contenders, 1000 + number)
    report("timed", (shape, times, errors, plan))
    problem.close()


def nothing() -> None:
    """What comes before a batch that nothing comes before."""


def calls_of(rank: Rank, one: Contender, job: dict[str, Any]) -> int:
    """How many calls make a batch of the asked length, the same on both ranks."""
    one.enqueue(2)
    ms = sample(rank, one.enqueue, 3, partial(one.enqueue, 1), job["pause_s"])
    ms = max(ms, rank.swap(ms))
    return max(job["min_calls"], min(job["max_calls"], math.ceil(job["batch_ms"] / ms)))


def errors_of(
    problem: Problem, report: Report, contenders: list[Contender], seed: int
) -> dict[str, float]:
    """The worst error of each kernel after it was timed; ends the kernels."""
    rank, torch = problem.rank, problem.rank.torch
    errors: dict[str, float] = {}
    references = [torch.mm(problem.full_a(seed, False, i), problem.b[i]) for i in range(SETS)]
    for one in contenders:
        if one.kernel is None:
            continue
        report("begin", f"check {one.name} {problem.shape}")
        problem.poison()
        rank.meet()
        one.kernel.call(SETS)
        rank.stream.synchronize()
        found = [relative_error(torch, problem.c[i], references[i]) for i in range(SETS)]
        errors[one.name] = math.inf if any(map(math.isnan, found)) else max(found)
        one.kernel.close()
    return errors
