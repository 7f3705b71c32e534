"""`kerneltui verify`: the workload against its own wrong answers, and kernels against the workload."""

from __future__ import annotations

from pathlib import Path

from kerneltui.engine.evaluator import make_evaluator
from kerneltui.engine.opening import workload_on
from kerneltui.evaluation.outcome import KernelFault, Update
from kerneltui.headless.output import Exit, say
from kerneltui.model.kernel import parse_kernel

__all__ = ["verify"]


def verify(folder: Path, kernel: Path | None, *, target: str | None) -> int:
    """Prints one line for the workload and one for each kernel; 3 if any of them is refused."""
    workload, spec = workload_on(folder, target)
    files = [kernel] if kernel else [workload.kernels / name for name in (spec.seed, *spec.library)]
    kernels = {
        str(file): parse_kernel(file.read_text(encoding="utf-8"), file.name) for file in files
    }
    evaluator = make_evaluator(workload, spec)
    evaluator.start()
    refused = False
    try:
        mutants = evaluator.self_test()
        print(f"{folder}: {len(mutants)} wrong answers refused: {', '.join(mutants)}")
        for name, parsed in kernels.items():
            try:
                print(f"{name}: right, {evaluator.verify(parsed, _ignore)}")
            except KernelFault as fault:
                refused = True
                print(f"{name}: refused in {fault.stage}: {fault.reason}")
                if fault.log:
                    say(fault.log)
    finally:
        evaluator.close()
    return Exit.REFUSED if refused else Exit.FINISHED


def _ignore(update: Update) -> None:
    """Nothing is shown of what goes on in between."""
