"""What every rule about device code gets and gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kerneltui.evaluation.device_code import DeviceCode
from kerneltui.targets.cuda.finding import Finding, Level

__all__ = ["LintContext", "Rule", "error", "has", "lines", "warn"]


@dataclass(frozen=True, slots=True)
class LintContext:
    """What is known beside the text.

    Attributes:
        nccl_code: NCCL_VERSION_CODE of the headers; 0 if unknown.
        gin: Whether this machine can run kernels with NCCL's network calls.
        gin_missing: Why not.
    """

    nccl_code: int = 0
    gin: bool = False
    gin_missing: str = ""


Rule = Callable[[DeviceCode, LintContext], Iterator[Finding]]
"""Looks at a source and gives what is wrong."""


def error(rule: str, line: int, text: str) -> Finding:
    """A finding for which a kernel is not benchmarked."""
    return Finding(rule, Level.ERROR, line, text)


def warn(rule: str, line: int, text: str) -> Finding:
    """A finding that is shown beside the code."""
    return Finding(rule, Level.WARN, line, text)


def lines(code: DeviceCode, pattern: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Every match in the code, with its line."""
    for match in re.finditer(pattern, code.source.code):
        yield code.source.line(match.start()), match


def has(code: DeviceCode, pattern: str) -> bool:
    """Whether the code matches anywhere."""
    return re.search(pattern, code.source.code) is not None
