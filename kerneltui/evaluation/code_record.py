"""What the compiler made of a candidate, as plain data for the record of its evaluation.

Only toolchains that can say so do (`CodeReporter`); the terminal shows the record in its codegen tab,
live and in a replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from kerneltui.targets.errors import TargetError
from kerneltui.targets.port import Build
from kerneltui.targets.python import is_python

__all__ = ["CodeReporter", "code_record", "loud_findings"]


@runtime_checkable
class CodeReporter(Protocol):
    """A toolchain that tells what its compiler made of a kernel."""

    def code_record(self, build: Build) -> Mapping[str, Any]:
        """Registers, spills, shared memory, CTAs per SM, instructions, and findings, as plain data.

        Raises:
            TargetError: It cannot be told.
        """
        ...


def code_record(toolchain: object, build: Build) -> Mapping[str, Any] | None:
    """The record of a build; with "missing" where it cannot be made, None if nobody makes one."""
    if not isinstance(toolchain, CodeReporter):
        return None
    if is_python(build.library):
        return {"missing": "a Python kernel is compiled by its ranks, in setup"}
    try:
        return toolchain.code_record(build)
    except TargetError as error:
        return {"missing": str(error)}


def loud_findings(record: Mapping[str, Any] | None) -> list[str]:
    """What the compiler said that costs speed for certain, a line each."""
    findings = cast("Sequence[Mapping[str, Any]]", (record or {}).get("findings", ()))
    return [
        f"the compiler: {finding['text']}"
        + (f" (line {finding['line']})" if finding.get("line") else "")
        for finding in findings
        if finding.get("loud")
    ]
