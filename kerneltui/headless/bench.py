"""`kerneltui bench`: baselines, kernels and the accepted kernel side by side, interleaved in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kerneltui.engine.evaluator import make_evaluator
from kerneltui.engine.opening import workload_on
from kerneltui.engine.place import newest_session
from kerneltui.engine.reader import opened_recording
from kerneltui.evaluation.bench_plan import BenchPlan, chosen_shapes
from kerneltui.evaluation.bench_result import ShapeResult
from kerneltui.evaluation.pipeline import Evaluator
from kerneltui.headless.bench_file import BenchFile
from kerneltui.headless.bench_head import head_of
from kerneltui.headless.bench_machine import machine_of
from kerneltui.headless.bench_report import all_summaries, report, shape_table
from kerneltui.headless.kernel_file import read_kernel_file, target_of
from kerneltui.headless.output import Exit, emit, say
from kerneltui.model.errors import UserError
from kerneltui.model.kernel import Kernel, parse_kernel
from kerneltui.model.workload import Shape, Workload
from kerneltui.targets.notices import Notice

__all__ = ["BenchWishes", "bench"]

ACCEPTED = "accepted"
_LEAST_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class BenchWishes:
    """What the command line asks for.

    Attributes:
        shapes: "tune", "bench", "all", or None for those of the benchmark, or else of the tuning.
        mode: "offline", "server" or "both".
        rounds: Offline rounds at most.
        gap_ns: Mean pause of the server mode.
        arrivals: Its calls.
        seed: Of its pauses.
        sustained_s: Seconds of the sustained mode; 0 leaves it out.
        sustained_shapes: On so many shapes.
        budget_s: No further shape is begun after so long, or None.
        output: Where the whole goes as one JSON file, or None.
        resume: Whether shapes that the file has are left as they are.
        as_json: Whether standard output gets JSON lines, one for each shape.
    """

    shapes: str | None = None
    mode: str = "offline"
    rounds: int = 22
    gap_ns: int = 2_000_000
    arrivals: int = 200
    seed: int = 0
    sustained_s: float = 0.0
    sustained_shapes: int = 4
    budget_s: float | None = None
    output: Path | None = None
    resume: bool = False
    as_json: bool = False


def bench(
    folder: Path,
    kernels: Sequence[Path],
    *,
    session: Path | None,
    target: str | None,
    wishes: BenchWishes,
) -> int:
    """Measures and prints; the accepted kernel is that of `session`, or of the newest session.

    Without any kernel, those of the library take part.
    """
    workload, spec = workload_on(folder, target or target_of(folder, kernels))
    chosen = {_name(file, workload): read_kernel_file(file) for file in kernels}
    source = session or newest_session(workload, spec.name)
    if source is not None:
        accepted = _accepted(source)
        if accepted is not None:
            say(f"{ACCEPTED}: the kernel on main of {source}")
            chosen[ACCEPTED] = accepted
        elif session is not None:
            say(f"{source}: nothing was accepted yet")
    if not chosen:
        chosen = {name: read_kernel_file(workload.kernels / name) for name in spec.library}
        say(f"kernels of the library: {', '.join(chosen) or 'none'}")
    plan = _plan(workload, wishes)
    file = BenchFile(wishes.output, head_of(workload, spec, chosen, plan))
    file.check()
    if wishes.resume:
        file.go_on()
    missing = tuple(shape for shape in plan.shapes if shape.name not in file.done)
    plan = replace(plan, shapes=missing)

    def found(result: ShapeResult) -> None:
        file.add(result)  # what there is survives whatever comes
        if wishes.as_json:
            emit({"workload": workload.name, "target": spec.name, **result.to_record()})
        else:
            print(shape_table(result) + "\n", flush=True)

    if plan.shapes:
        _measure(make_evaluator(workload, spec), chosen, plan, file, found)
    rows = all_summaries(file.measured, list(chosen))
    file.write(rows)
    text = report(file.measured, list(chosen), rows)
    if wishes.as_json:
        say(text)
    else:
        print(text)
    return Exit.FINISHED


def _measure(
    evaluator: Evaluator,
    kernels: Mapping[str, Kernel],
    plan: BenchPlan,
    file: BenchFile,
    found: Callable[[ShapeResult], None],
) -> None:
    """Runs it; what belongs to the whole run goes into a part of the file, also if it is broken off."""
    begin = time.monotonic()
    ranks = sorted({shape.ranks for shape in plan.shapes})
    part = file.begin()

    def hear(notice: Notice) -> None:
        say(notice.text)
        if not notice.passing:
            part.setdefault("notices", []).append(notice.text)

    evaluator.listen(hear)
    evaluator.start()

    def first(result: ShapeResult) -> None:
        if "ceilings" not in part:
            part["environment"] = {**machine, **evaluator.environment()}  # with the rates by now
            part["ceilings"] = [asdict(evaluator.ceilings(count)) for count in ranks]
        part["seconds"] = round(time.monotonic() - begin, 1)
        found(result)

    try:
        evaluator.stand.ready()
        with evaluator.stand.devices():
            machine = machine_of(evaluator)
        file.compare(machine, ranks[-1])
        evaluator.bench(kernels, plan, say, first)
    finally:
        part["seconds"] = round(time.monotonic() - begin, 1)
        evaluator.close()


def _plan(workload: Workload, wishes: BenchWishes) -> BenchPlan:
    shapes = chosen_shapes(workload, wishes.shapes)
    if not shapes:
        raise UserError(f"{workload.name}: there are no shapes with the tag '{wishes.shapes}'")
    return BenchPlan(
        shapes=shapes,
        offline=wishes.mode != "server",
        server=wishes.mode != "offline",
        rounds=wishes.rounds,
        least_rounds=min(_LEAST_ROUNDS, wishes.rounds),
        gap_ns=wishes.gap_ns,
        arrivals=wishes.arrivals,
        seed=wishes.seed,
        sustained_s=wishes.sustained_s,
        sustained=_sustained(workload, shapes, wishes),
        budget_s=wishes.budget_s,
    )


def _sustained(workload: Workload, shapes: Sequence[Shape], wishes: BenchWishes) -> frozenset[str]:
    """Shapes at even distances over the work, the largest among them."""
    if not wishes.sustained_s:
        return frozenset()
    operations = workload.limit.flops
    ordered = sorted(shapes, key=lambda shape: operations.number(shape.values), reverse=True)
    step = max(1.0, len(ordered) / wishes.sustained_shapes)
    places = {int(step * i) for i in range(wishes.sustained_shapes)}
    return frozenset(ordered[place].name for place in places if place < len(ordered))


def _name(file: Path, workload: Workload) -> str:
    try:
        return str(file.resolve().relative_to(workload.kernels))
    except ValueError:
        return str(file)


def _accepted(session: Path) -> Kernel | None:
    with opened_recording(session) as recording:
        state = recording.recorder.state
        if state.incumbent == state.base:
            return None
        text = recording.recorder.source(state.incumbent)
        return parse_kernel(text, f"{state.incumbent}.{Path(recording.recorder.kernel_path).name}")
