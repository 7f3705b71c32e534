"""The report of a compiler as plain data: what goes into the record of an evaluation.

A name of a template can fill a screen, so it is kept to its stem and its arguments cut; everything else
is as the report has it, with the CTAs of each kernel that fit on an SM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kerneltui.model.record import to_plain
from kerneltui.targets.cuda.codegen import CodegenReport, KernelCode

__all__ = ["report_record", "short_name"]

_LONGEST_NAME = 60
_MOST_KERNELS, _MOST_FINDINGS = 16, 20
_PLACE = re.compile(r"\(anonymous namespace\)::")


def report_record(report: CodegenReport) -> dict[str, Any]:
    """A report as plain data.

    CTAs are those by static shared memory and launch bounds: what a launch adds to the shared memory
    is not known to the compiler, so they are an upper bound.
    """
    return {
        "arch": report.arch,
        "compiler": report.compiler,
        "kernels": [_kernel(kernel, report.arch) for kernel in report.kernels[:_MOST_KERNELS]],
        "more": max(0, len(report.kernels) - _MOST_KERNELS),
        "findings": [
            {"loud": f.loud, "code": f.code, "line": f.line, "text": f.text}
            for f in report.findings[:_MOST_FINDINGS]
        ],
        "missing": report.missing,
        "schema": report.schema,
    }


def _kernel(kernel: KernelCode, arch: str) -> Mapping[str, Any]:
    fits = kernel.occupancy(arch)
    return {
        "name": short_name(kernel.name),
        "metrics": to_plain(kernel.metrics()),
        "threads": kernel.max_threads,
        "cluster": kernel.cluster,
        "ctas": None if fits is None else fits.ctas,
        "limiter": "" if fits is None else fits.limiter,
        "warps": None if fits is None else round(fits.warps_share, 3),
    }


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces without a name, and arguments of the function."""
    text = _PLACE.sub("", name).removeprefix("void ")
    head = text.split("(", 1)[0]
    if head.count("<") > head.count(
        ">"
    ):  # the parenthesis stood inside of the template's arguments
        head = text.rsplit("(", 1)[0]
    return head if len(head) <= _LONGEST_NAME else head[: _LONGEST_NAME - 1] + "…"
