"""`kerneltui verify`: the workload against its own wrong answers, and kernels against the workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kerneltui.engine.evaluator import make_evaluator
from kerneltui.engine.opening import workload_on
from kerneltui.evaluation.code_record import loud_findings
from kerneltui.evaluation.outcome import KernelFault, Update
from kerneltui.headless.kernel_file import read_kernel_file, target_of
from kerneltui.headless.output import Exit, say
from kerneltui.model.launch_words import launched_shapes

__all__ = ["code_lines", "mutants_line", "verify"]


def verify(folder: Path, kernel: Path | None, *, target: str | None) -> int:
    """Prints one line for the workload and one for each kernel; 3 if any of them is refused."""
    workload, spec = workload_on(folder, target or target_of(folder, [kernel] if kernel else []))
    files = [kernel] if kernel else [workload.kernels / name for name in (spec.seed, *spec.library)]
    kernels = {str(file): read_kernel_file(file) for file in files}
    evaluator = make_evaluator(workload, spec)
    evaluator.listen(lambda notice: say(notice.text))
    evaluator.start()
    refused = False
    try:
        mutants = evaluator.self_test()
        print(f"{folder}: {mutants_line(mutants)}")
        for name, parsed in kernels.items():
            try:
                print(f"{name}: right, {evaluator.verify(parsed, _ignore)}")
                for line in code_lines(evaluator.code_record(parsed)):
                    print(f"  {line}")
            except KernelFault as fault:
                refused = True
                print(f"{name}: refused in {fault.stage}: {fault.reason}")
                if fault.log:
                    say(fault.log)
    finally:
        evaluator.close()
    return Exit.REFUSED if refused else Exit.FINISHED


def mutants_line(mutants: Sequence[str]) -> str:
    """How many wrong answers were refused, which, and on what shapes; each is `NAME, SHAPE`."""
    names = dict.fromkeys(mutant.rpartition(", ")[0] for mutant in mutants)
    shapes = dict.fromkeys(mutant.rpartition(", ")[2] for mutant in mutants)
    kinds = "; ".join(names)
    return f"{len(mutants)} wrong answers refused, on {' and '.join(shapes)}: {kinds}"


def code_lines(record: Mapping[str, Any] | None) -> list[str]:
    """What the compiler made of a kernel: warnings that cost speed, a line for each kernel, its launches."""
    lines = [f"WARNING {text}" for text in loud_findings(record)]
    for kernel in (record or {}).get("kernels", ()):
        metrics: Mapping[str, int] = kernel["metrics"]
        spilled = metrics.get("spill stores", 0) + metrics.get("spill loads", 0)
        most = f", at most {kernel['ctas']} CTAs on an SM without dynamic shared memory"
        fits = most if kernel["ctas"] is not None else ""
        counts = f", {metrics['all']} instructions" if "all" in metrics else ""
        spills = f"{spilled} bytes spilled" if spilled else "no spills"
        lines.append(f"{kernel['name']}: {metrics['registers']} registers, {spills}{fits}{counts}")
    for shape, launches in launched_shapes(record or {}):
        lines += [f"launches on {shape}:", *(f"  {text}" for text in launches)]
    if record and record.get("unread"):
        lines.append(f"launches not known: {record['unread']}")
    if record and record.get("missing"):
        lines.append(str(record["missing"]))
    return lines


def _ignore(update: Update) -> None:
    """Nothing is shown of what goes on in between."""
