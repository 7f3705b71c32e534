"""The calls by which a kernel lets the host move data between the ranks."""

from __future__ import annotations

import ast
import re

from kerneltui.model.kernel import Kernel, Language
from kerneltui.targets.cuda.source import CudaSource

__all__ = ["COLLECTIVE", "host_collectives", "names_in_code"]

COLLECTIVE = (
    r"\bhost\s*->\s*(?:all_gather|barrier)\s*\("
    r"|\bnccl(?:AllGather|AllReduce|ReduceScatter|Broadcast|Bcast|Reduce|Send|Recv|AlltoAll)\s*\("
)
"""A call of a collective in C++, up to its opening parenthesis."""

_PYTHON = re.compile(r"^(?:all_gather|all_reduce|reduce_scatter|all_to_all)\w*$")
_WORD = re.compile(r"\w+")


def host_collectives(kernel: Kernel) -> tuple[str, ...]:
    """The host collectives of a kernel, each once, as the code spells them: `ctx->host->all_gather`.

    In Python a barrier is none: windows have barriers of the device of that name.
    """
    if kernel.language is Language.PYTHON:
        found = [text for name, text in _attributes(kernel.source) if _PYTHON.match(name)]
    else:
        code = CudaSource(kernel.source).code
        found = ["".join(match[0].rstrip("( ").split()) for match in re.finditer(COLLECTIVE, code)]
    return tuple(dict.fromkeys(found))


def names_in_code(kernel: Kernel) -> frozenset[str]:
    """All words of a kernel's code, comments and texts left out; in Python the names of attributes."""
    if kernel.language is Language.PYTHON:
        return frozenset(name for name, _ in _attributes(kernel.source))
    return frozenset(_WORD.findall(CudaSource(kernel.source).code))


def _attributes(source: str) -> list[tuple[str, str]]:
    """The attributes that code asks for, each with its whole text; none of what Python cannot read."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [(n.attr, ast.unparse(n)) for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
