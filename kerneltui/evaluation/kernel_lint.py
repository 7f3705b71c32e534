"""What is found in the text of a kernel before it is compiled: labels of what it uses, and faults."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kerneltui.evaluation.device_lint import LintContext, lint_device_code
from kerneltui.evaluation.outcome import KernelFault
from kerneltui.evaluation.python_lint import lint_python, python_labels
from kerneltui.model.kernel import Kernel, Language
from kerneltui.model.measurement import FailureKind, Stage
from kerneltui.targets.cuda.finding import Finding, Level, one_line
from kerneltui.targets.cuda.network import gin_missing
from kerneltui.targets.errors import CompileFailure
from kerneltui.targets.python import extension_text

__all__ = ["lint"]

_FUNCTIONS = (
    "kerneltui_requirements",
    "kerneltui_setup",
    "kerneltui_run",
    "kerneltui_teardown",
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LABELS = {
    "threads": r"\b(std::j?thread|pthread_create|std::async)\b",
    "processes": r"\b(fork|vfork|popen|system|execv\w*|posix_spawn\w*)\s*\(",
    "files": r"\b(fopen|ofstream|ifstream|mkstemp)\b|\bopen(at)?\s*\(",
    "system calls": r"\b(syscall|ptrace|process_vm_\w+|mprotect|dlopen|dlsym)\s*\(",
    "environment": r"\b(getenv|setenv)\s*\(",
    "clocks": r"\b(clock_gettime|gettimeofday)\b|std::chrono",
    "static state": r"^\s*static\s+(?!const|inline|_?[A-Za-z:<>*& ]*\()",
}


def lint(kernel: Kernel, target: str = "cpu") -> list[str]:
    """Labels what a kernel uses beside arithmetic, and refuses faults of device code.

    Returns:
        Labels, and the warnings of the device lint.

    Raises:
        KernelFault: A function of the contract is missing, or the device lint finds an error.
    """
    if kernel.language is Language.PYTHON:
        _refuse_errors(kernel, lint_python(kernel.source))
        try:
            extension = extension_text(kernel.source)
        except CompileFailure as error:
            raise KernelFault(Stage.LINT, FailureKind.REFUSED, error.reason) from error
        labels = python_labels(kernel.source) + (["extension of torch"] if extension else [])
        return labels + (_device_warnings(kernel, extension) if target == "cuda" else [])
    code = _COMMENT.sub(" ", kernel.source)
    missing = [name for name in _FUNCTIONS if not re.search(rf"\b{name}\s*\(", code)]
    if missing:
        raise KernelFault(
            Stage.LINT,
            FailureKind.REFUSED,
            f"{kernel.file}: {', '.join(missing)} is missing; see kernel.h for the contract",
        )
    labels = [name for name, rule in _LABELS.items() if re.search(rule, code, re.MULTILINE)]
    return labels + (_device_warnings(kernel, kernel.source) if target == "cuda" else [])


def _device_warnings(kernel: Kernel, code: str) -> list[str]:
    missing = gin_missing()
    findings = lint_device_code(code, LintContext(gin=not missing, gin_missing=missing))
    _refuse_errors(kernel, findings)
    return [one_line(finding, kernel.file) for finding in findings]


def _refuse_errors(kernel: Kernel, findings: Sequence[Finding]) -> None:
    wrong = [one_line(f, kernel.file) for f in findings if f.level is not Level.WARN]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        reason = wrong[0] + more
        raise KernelFault(Stage.LINT, FailureKind.REFUSED, reason, "\n".join(wrong))
