"""`kerneltui bench`: baselines, kernels and the accepted kernel side by side, interleaved in one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kerneltui.engine.evaluator import make_evaluator
from kerneltui.engine.opening import workload_on
from kerneltui.engine.place import newest_session
from kerneltui.engine.reader import opened_recording
from kerneltui.evaluation.outcome import BenchRow
from kerneltui.headless.output import Exit, emit, say, table
from kerneltui.model.errors import DefinitionError
from kerneltui.model.kernel import Kernel, parse_kernel
from kerneltui.model.statistics import geometric_mean
from kerneltui.model.workload import Workload

__all__ = ["bench"]

ACCEPTED = "accepted"


def bench(
    folder: Path,
    kernels: Sequence[Path],
    *,
    session: Path | None,
    target: str | None,
    rounds: int,
    as_json: bool,
) -> int:
    """Measures and prints; the accepted kernel is that of `session`, or of the newest session."""
    workload, spec = workload_on(folder, target)
    chosen = {_name(file, workload): _read(file) for file in kernels}
    source = session or newest_session(workload, spec.name)
    if source is not None:
        accepted = _accepted(source)
        if accepted is not None:
            say(f"{ACCEPTED}: the kernel on main of {source}")
            chosen[ACCEPTED] = accepted
        elif session is not None:
            say(f"{source}: nothing was accepted yet")
    evaluator = make_evaluator(workload, spec)
    evaluator.start()
    try:
        rows = evaluator.bench(chosen, rounds, say)
    finally:
        evaluator.close()
    if as_json:
        for row in rows:
            emit(_record(row, workload, spec.name, rounds))
    else:
        print(_text(rows))
    return Exit.FINISHED


def _name(file: Path, workload: Workload) -> str:
    try:
        return str(file.resolve().relative_to(workload.kernels))
    except ValueError:
        return str(file)


def _read(file: Path) -> Kernel:
    try:
        return parse_kernel(file.read_text(encoding="utf-8"), file.name)
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise DefinitionError(str(file), "kernel", f"cannot be read ({problem})") from error


def _accepted(session: Path) -> Kernel | None:
    with opened_recording(session) as recording:
        state = recording.recorder.state
        if state.incumbent == state.base:
            return None
        text = recording.recorder.source(state.incumbent)
        return parse_kernel(text, f"{state.incumbent}.{Path(recording.recorder.kernel_path).name}")


def _record(row: BenchRow, workload: Workload, target: str, rounds: int) -> dict[str, object]:
    ratio = low = high = None
    if row.interval is not None:
        ratio, low, high = row.interval.ratio()
    return {
        "workload": workload.name,
        "target": target,
        "shape": row.shape,
        "kernel": row.kernel,
        "reference": row.reference,
        "time_ms": row.time_ns / 1e6,
        "ratio": ratio,
        "ci_low": low,
        "ci_high": high,
        "verdict": None if row.verdict is None else str(row.verdict),
        "bound_ms": row.bound_ns / 1e6,
        "bound_share": row.bound_share,
        "rounds": rounds,
        "error": row.error or None,
    }


def _text(rows: Sequence[BenchRow]) -> str:
    lines = [["shape", "kernel", "time ms", "ratio", "95% CI", "verdict", "of bound", "reference"]]
    for row in rows:
        if row.interval is None:
            lines.append([row.shape, row.kernel, "-", "-", "-", "FAIL", "-", row.error])
            continue
        ratio, low, high = row.interval.ratio()
        lines.append(
            [
                row.shape,
                row.kernel,
                f"{row.time_ns / 1e6:.3f}",
                f"{ratio:.3f}x",
                f"{low:.3f}-{high:.3f}",
                "-" if row.verdict is None else str(row.verdict),
                f"{row.bound_share:.1%}",
                row.reference,
            ]
        )
    for name in dict.fromkeys(row.kernel for row in rows):
        own = [row for row in rows if row.kernel == name and row.interval is not None]
        if len(own) != len({row.shape for row in rows}):
            continue
        ratio = geometric_mean([row.interval.ratio()[0] for row in own if row.interval])
        share = geometric_mean([row.bound_share for row in own])
        lines.append(["geomean", name, "", f"{ratio:.3f}x", "", "", f"{share:.1%}", ""])
    return table(lines, right=frozenset({2, 3, 4, 6}))
