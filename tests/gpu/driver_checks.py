"""What the driver for two GPUs holds a kernel of `gemm_allgather` to: right products in every case."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

from driver_kernel import DriverFault, Shape, Spec
from driver_problem import Loaded, Problem
from driver_rank import Rank

CASES: tuple[tuple[bool, int | None], ...] = ((True, None), (False, 0), (False, 1))
"""0/1 values or normal ones, and the rank that comes late."""
LATE_NS = 3_000_000
NEAR = 4e-3
"""What a right product may be off, as a share of the RMS: its last digit."""


def relative_error(torch: Any, out: Any, reference: Any) -> float:
    """The relative Frobenius norm of the difference, block by block; NaN in the output gives NaN."""
    square = base = 0.0
    for i in range(0, out.shape[0], 2048):
        part, ref = out[i : i + 2048].float(), reference[i : i + 2048].float()
        square += (part - ref).square().sum(dtype=torch.float64).item()
        base += ref.square().sum(dtype=torch.float64).item()
    return math.sqrt(square / base) if base else math.sqrt(square)


def verify(
    rank: Rank,
    report: Callable[[str, Any], None],
    specs: list[Spec],
    shapes: list[Shape],
    sets: int,
) -> None:
    """Every kernel on every shape: several calls, fresh inputs, poison, 0/1 inputs, a late rank."""
    torch = rank.torch
    for number, shape in enumerate(shapes):
        problem = Problem(rank, shape, sets)
        for case, (integers, late) in enumerate(CASES):
            seed = 1 + number * 16 + case
            problem.fill(seed, integers)
            small = shape[0] * shape[1] * shape[2] <= 1 << 31
            wide = torch.float64 if small else torch.float32
            references = [
                (problem.full_a(seed, integers, i).to(wide) @ problem.b[i].to(wide)).float()
                for i in range(sets)
            ]
            torch.cuda.synchronize()
            for index, spec in enumerate(specs):
                report("begin", f"verify {spec.text} {shape}")
                problem.poison()
                rank.meet()
                error, worst = "", 0.0
                try:
                    kernel = Loaded(rank, problem, spec)
                    if late == rank.rank:
                        rank.helper.kd_sleep(
                            ctypes.c_uint64(LATE_NS), ctypes.c_void_p(rank.stream.cuda_stream)
                        )
                    kernel.call(sets + (2 if case == 0 else 0))
                    rank.stream.synchronize()
                    error, worst = compare(torch, problem.c, references, integers)
                    kernel.close()
                except DriverFault as fault:
                    error = str(fault)
                report("verified", (index, spec.text, shape, case, error, worst))
        problem.close()


def compare(torch: Any, outs: list[Any], references: list[Any], exact: bool) -> tuple[str, float]:
    """What is wrong with the outputs ('' if nothing), and their worst error."""
    worst = 0.0
    for i, (out, reference) in enumerate(zip(outs, references, strict=True)):
        if exact and not torch.equal(out, reference.bfloat16()):
            wrong = (out != reference.bfloat16()).nonzero()
            count = f"{wrong.shape[0]} of {out.numel()}"
            return f"set {i}: {count} wrong on 0/1, first {wrong[0].tolist()}", worst
        error = relative_error(torch, out, reference)
        if not error < NEAR:  # before max(), which would lose a NaN
            return f"set {i}: relative error {error:.3g}", error
        worst = max(worst, error)
    return "", worst
