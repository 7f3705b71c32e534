"""Blocks of Python that begin in an evolve region and take frozen lines in, by their indentation.

A region that ends in `if False:`, in a function of its own or in a decorator leaves the frozen text byte for
byte as it is, and makes another program of it.
"""

from __future__ import annotations

import tokenize
from io import StringIO

from kerneltui.model.kernel import Kernel

__all__ = ["blocks_over_frozen"]

_BLANK = (tokenize.NL, tokenize.COMMENT, tokenize.ENCODING)


def blocks_over_frozen(kernel: Kernel) -> dict[int, str]:
    """The regions, by their place in the file, in which something begins that frozen code is part of.

    Returns:
        For each of them what that is, in words. Text that is no Python has none: it does not run.
    """
    found: dict[int, str] = {}
    heads: list[int] = []  # the line on which each block around the current one begins
    line, first, decorates = 0, True, 0
    try:
        for token in tokenize.generate_tokens(StringIO(kernel.source).readline):
            if token.type == tokenize.INDENT:
                heads.append(line)
            elif token.type == tokenize.DEDENT:
                heads.pop()
            elif token.type == tokenize.NEWLINE:
                first = True
            elif first and token.type not in _BLANK:
                line, first = token.start[0], False
                here = _region(kernel, line)
                for head in heads:
                    _blame(found, _region(kernel, head), here, "a block")
                if decorates:
                    _blame(found, _region(kernel, decorates), here, "a decorator")
                decorates = line if token.string == "@" else 0
    except (tokenize.TokenError, IndentationError):
        return {}
    return found


def _blame(found: dict[int, str], begins: int | None, here: int | None, what: str) -> None:
    if begins is not None and here is None:
        found.setdefault(begins, what)


def _region(kernel: Kernel, line: int) -> int | None:
    """The region that a line is in, by its place; None for frozen lines."""
    for index, region in enumerate(kernel.regions):
        if region.first <= line <= region.last:
            return index
    return None
