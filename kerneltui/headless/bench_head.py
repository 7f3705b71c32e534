"""The head of a results file: what is measured, so that a run goes on only with a file of the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from kerneltui.evaluation.baseline_kernels import baseline_kernel
from kerneltui.evaluation.bench_plan import BenchPlan
from kerneltui.model.kernel import Kernel
from kerneltui.model.workload import TargetSpec, Workload

__all__ = ["SCHEMA", "difference", "head_of"]

SCHEMA = 3  # since heads tell run-time values, kernels that are baselines, the reference and names of shapes
_SAME = ("workload", "definition", "reference", "target", "kernels", "baselines", "plan")
"""What must be the same for a run that goes on with a file."""


def head_of(
    workload: Workload, spec: TargetSpec, kernels: Mapping[str, Kernel], plan: BenchPlan
) -> dict[str, Any]:
    """Returns what is measured: the problem, its reference, all kernels, and the plan.

    Raises:
        DefinitionError: The name of a baseline cannot be read.
    """
    files = {name: baseline_kernel(workload.kernels, name) for name in spec.baselines}
    reference = workload.folder / "reference.py"
    return {
        "schema": SCHEMA,
        "workload": workload.name,
        "definition": _hash(workload.text),
        "reference": _hash(reference.read_text(encoding="utf-8")) if reference.is_file() else None,
        "target": spec.name,
        "dtype": workload.dtype,
        "kernels": {name: _program(kernel) for name, kernel in kernels.items()},
        "baselines": {name: _program(kernel) for name, kernel in files.items() if kernel},
        "plan": {**plan.to_record(), "budget_s": None},  # a later part may have another
    }


def difference(found: Mapping[str, Any], head: Mapping[str, Any]) -> str:
    """Returns in which way a file's head is that of another run, in words, or nothing.

    Args:
        found: The head of the file.
        head: That of this run, as it is after a way through JSON.
    """
    if found.get("schema") != SCHEMA:
        return "other schema"
    for key in _SAME:
        if found.get(key) != head[key]:
            parts = _parts(found.get(key), head[key])
            return f"other {key}: {parts}" if parts else f"other {key}"
    return ""


def _program(kernel: Kernel) -> dict[str, Any]:
    """What a kernel does: its text as built, which has no run-time values, and these."""
    return {"text": _hash(kernel.build_text()), "runtime": dict(sorted(kernel.runtime.items()))}


def _parts(found: Any, wanted: Any) -> str:
    """In what two dictionaries differ, down to single values."""
    if not (isinstance(found, dict) and isinstance(wanted, dict)):
        return ""
    names = dict.fromkeys([*found, *wanted])
    return "; ".join(
        f"{name} {_change(found.get(name), wanted.get(name))}"
        for name in names
        if found.get(name) != wanted.get(name)
    )


def _change(theirs: Any, ours: Any) -> str:
    if theirs is None or ours is None:
        return "is not in the file" if theirs is None else "is only in the file"
    if isinstance(theirs, (dict, list)) or isinstance(ours, (dict, list)):
        return _parts(theirs, ours) or "differs"
    return f"was {theirs} and is {ours}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
