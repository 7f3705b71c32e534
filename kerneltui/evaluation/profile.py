"""Counters of a kernel from the profiler of the GPU.

Two ranks that wait for one another hang under the profiler, which runs their kernels one after the
other. So a kernel of several ranks is profiled alone, as the only rank, on one rank's share of the rows:
what it computes is the same, and nothing of the link is in the counters.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kerneltui.evaluation.code_record import code_record
from kerneltui.evaluation.outcome import EvaluationError
from kerneltui.evaluation.stand import Stand
from kerneltui.model.kernel import Kernel, Language
from kerneltui.model.workload import Shape
from kerneltui.targets.cuda.device import device_environment
from kerneltui.targets.cuda.ncu import find_ncu, ncu_arguments, read_counters
from kerneltui.targets.environment import child_environment
from kerneltui.targets.errors import TargetError
from kerneltui.targets.processes import kill_tree

__all__ = ["profile", "profiled_shape"]

_LIMIT_S = 240.0
_LOOK_S = 0.5
# Where the user keeps what forbids features.
_KEPT = ("HOME", "XDG_CONFIG_HOME")
_MODULE = "kerneltui.evaluation.worker_profile"


def profile(stand: Stand, kernel: Kernel, cache: Path) -> dict[str, Any]:
    """Counts a kernel on the largest tune shape; takes up to a few minutes.

    Args:
        stand: Workload and target; nothing may run on it meanwhile.
        kernel: A kernel that was verified: it runs without the sandbox.
        cache: Folder of built kernels.

    Raises:
        EvaluationError: It cannot be profiled here; the text says why.
        KernelFault: It does not build.
    """
    if stand.target.name != "cuda":
        raise EvaluationError("counters are those of a GPU; this target has none")
    if kernel.language is Language.PYTHON:
        raise EvaluationError(
            f"{kernel.file} compiles in its ranks, so the names of its kernels are not known here; "
            "profile it with ncu by hand"
        )
    try:
        ncu = find_ncu()
    except TargetError as error:
        raise EvaluationError(str(error)) from error
    stand.begin()
    build = stand.build(kernel)
    largest = max(
        stand.workload.shapes_for("tune"),
        key=lambda shape: stand.workload.limit.flops.number(shape.values),
    )
    shape = profiled_shape(largest)
    with tempfile.TemporaryDirectory(prefix="kerneltui-profile-") as name:
        table = Path(name) / "counters.csv"
        request = {
            "workload": str(stand.workload.folder.resolve()),
            "shape": shape.name,
            "dimensions": dict(shape.dimensions),
            "element_bytes": shape.element_bytes,
            "runtime": dict(kernel.runtime),
            "library": str(build.library.resolve()),
            "cache": str(cache.resolve()),
        }
        names = _names(code_record(stand.target.toolchain, build))
        command = [
            *ncu_arguments(ncu, names, table),
            *(sys.executable, "-m", _MODULE, json.dumps(request)),
        ]
        # As a compiler does, it keeps bursts of timing away; the program may have to compile, too.
        with stand.target.lock.compiling():
            said = _run(command, device_environment(stand.target.policy), stand.checkpoint)
        text = table.read_text(errors="replace") if table.exists() else ""
    try:
        kernels = read_counters(text + said)
    except TargetError as error:
        last = [line for line in said.splitlines() if line.strip()][-1:]
        more = f" ({last[0].strip()[:200]})" if last else ""
        raise EvaluationError(f"no counters: {error}{more}") from error
    return {
        "shape": shape.name,
        "alone": largest.ranks > 1,
        "ranks": largest.ranks,
        "vendor": not names,
        "kernels": kernels,
        "schema": 1,
    }


def profiled_shape(shape: Shape) -> Shape:
    """A shape for one rank: its share of the rows, where several ranks share them."""
    if shape.ranks == 1:
        return shape
    dimensions = dict(shape.dimensions)
    if "M" in dimensions:  # the rows, which the ranks share out
        dimensions["M"] = max(1, dimensions["M"] // shape.ranks)
    name = "x".join(map(str, dimensions.values()))
    return Shape(name, dimensions, shape.tags, 1, shape.element_bytes)


def _names(record: Mapping[str, Any] | None) -> list[str]:
    """Names of the kernels that a report knows, without arguments of templates."""
    kernels = (record or {}).get("kernels", ())
    return [re.split(r"[<(]", str(kernel["name"]))[0].rpartition("::")[2] for kernel in kernels]


def _run(command: list[str], environment: Mapping[str, str], checkpoint: Callable[[], None]) -> str:
    """Runs the profiler; what it printed. `checkpoint` raises if the end was asked for."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=child_environment({**kept, **environment}),
        start_new_session=True,
        text=True,
        errors="replace",
    )
    deadline = time.monotonic() + _LIMIT_S
    while True:
        try:
            said, _ = process.communicate(timeout=_LOOK_S)
            break
        except subprocess.TimeoutExpired:
            try:
                checkpoint()
                if time.monotonic() > deadline:
                    raise EvaluationError(
                        f"the profiler did not end within {_LIMIT_S:.0f} s"
                    ) from None
            except EvaluationError:
                kill_tree(process.pid)
                process.communicate()
                raise
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        raise EvaluationError(f"the profiler was ended by {name}")
    return said
