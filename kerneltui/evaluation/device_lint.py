"""Rules for device-initiated kernels that a source text can decide, before anything is compiled.

The numbers are those of the list of traps of NCCL's device API and of the asynchronous proxy. Not
decided here, because a text does not show it: L01 and L02 (the machine's policy), L07 to L09 (grids: the
launch plan), L22 (which synchronisation orders which write), L24 (whether load is equal); L27 is about
the directive, see `directive_lint`. Where a rule needs a proof that a text cannot give, it speaks only
where the fault is plain, and is silent otherwise.
"""

from __future__ import annotations

from kerneltui.evaluation.device_code import DeviceCode
from kerneltui.evaluation.device_rule import LintContext
from kerneltui.evaluation.device_rules_memory import MEMORY_RULES
from kerneltui.evaluation.device_rules_nccl import NCCL_RULES
from kerneltui.targets.cuda.finding import Finding
from kerneltui.targets.cuda.source import CudaSource

__all__ = ["LintContext", "lint_device_code"]


def lint_device_code(text: str, context: LintContext | None = None) -> tuple[Finding, ...]:
    """Finds faults in a CUDA source, in the order of its lines."""
    code = DeviceCode(CudaSource(text))
    known = context or LintContext()
    found = [finding for rule in (*NCCL_RULES, *MEMORY_RULES) for finding in rule(code, known)]
    return tuple(sorted(dict.fromkeys(found), key=lambda f: (f.line, f.rule, f.text)))
