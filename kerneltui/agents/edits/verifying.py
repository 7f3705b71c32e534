"""Holds a new kernel text against its parent, knowing nothing of how it was made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kerneltui.agents.edits.failure import EditFailure, EditKind
from kerneltui.agents.edits.nearest import visible
from kerneltui.agents.edits.nesting import blocks_over_frozen
from kerneltui.model.errors import DefinitionError
from kerneltui.model.kernel import Kernel, Language, parse_kernel

__all__ = ["WHOLE", "Pieces", "check_closed", "frozen_kept", "pieces_of", "read_result", "verify"]

_MARK = re.compile(r"^\s*(?://|#)\s*kerneltui:\s*evolve\s+(?P<which>begin|end)\b")
# Numbers first: an apostrophe in one begins no literal.
_CPP_WHOLE = re.compile(
    r"\b\d[\w.']*|//[^\n]*|/\*.*?\*/"
    r"|\b(?:u8|[uUL])?R\"(?P<tag>[^()\\\s\"]{0,16})\(.*?\)(?P=tag)\""
    r"|(?P<open>\b(?:u8|[uUL])?R\"[^()\\\s\"]{0,16}\()"
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)
_PYTHON_WHOLE = re.compile(
    r"\"{3}.*?\"{3}|'{3}.*?'{3}|(?P<open>\"{3}|'{3})"
    r"|#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)
WHOLE = {Language.CPP: _CPP_WHOLE, Language.PYTHON: _PYTHON_WHOLE}
"""By language: comments, texts, and in C++ numbers; what is inside of them is not code."""
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(?P<word>if|el|endif)", re.MULTILINE)
_FORBIDDEN = re.compile("[\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Pieces:
    """A text cut at its evolve marks: what is frozen, marks included, and what is between the marks."""

    frozen: tuple[str, ...]
    free: tuple[str, ...]


def pieces_of(source: str) -> Pieces:
    """Cuts a text at its evolve marks; all pieces together, in turn, are the text."""
    frozen, free = [""], [""]
    inside = False
    for line in re.findall(r"[^\n]*\n|[^\n]+", source):
        mark = _MARK.match(line)
        if mark and mark["which"] == "end" and inside:
            inside = False
            frozen.append("")
            free.append("")
        (free if inside else frozen)[-1] += line
        if mark and mark["which"] == "begin" and not inside:
            inside = True
    return Pieces(tuple(frozen), tuple(free[: len(frozen) - 1]))


def read_result(source: str, file: str, known: str = "") -> Kernel:
    """Reads the declarations of a new text.

    Args:
        source: The new text.
        file: Its name.
        known: A text whose characters are all allowed.

    Raises:
        EditFailure: A declaration is malformed, or a character has no place in a kernel.
    """
    strange = next((c for c in set(_FORBIDDEN.findall(source)) if c not in known), "")
    if strange:
        raise EditFailure(
            EditKind.MALFORMED, f"the new text has the control character U+{ord(strange):04X}"
        )
    try:
        return parse_kernel(source, file)
    except DefinitionError as error:
        kind = EditKind.MARKS if "evolve" in str(error) else EditKind.DECLARATION
        raise EditFailure(kind, f"after the edits {error}") from error
    except (ValueError, RecursionError) as error:
        raise EditFailure(
            EditKind.DECLARATION, "after the edits a declaration has a value that cannot be read"
        ) from error


def verify(parent: Kernel, source: str) -> tuple[Kernel, tuple[str, ...]]:
    """Checks that a text is the parent's but for what may change, and returns notes on tunables.

    Raises:
        EditFailure: Frozen text, marks or declarations are not as they must be, or nothing changed.
    """
    kernel = read_result(source, parent.file, parent.source)
    before, after = pieces_of(parent.source), pieces_of(source)
    if [r.name for r in kernel.regions] != [r.name for r in parent.regions]:
        names = ", ".join(region.name for region in parent.regions) or "none"
        raise EditFailure(
            EditKind.MARKS, f"the evolve regions must stay as they are: {names}, in this order"
        )
    notes: tuple[str, ...] = ()
    if before.frozen != after.frozen:
        notes = _tunables_set(parent, kernel)
        if not frozen_kept(parent, kernel):
            raise _changed(before.frozen, after.frozen)
    check_closed(kernel, parent)
    if kernel.token_hash() == parent.token_hash():
        what = "nothing" if source == parent.source else "only comments or spaces"
        raise EditFailure(
            EditKind.IDENTICAL, f"the edits change {what}: the program stays the same"
        )
    return kernel, notes


def frozen_kept(parent: Kernel, kernel: Kernel) -> bool:
    """Whether all frozen text is byte for byte the parent's, values of tunables aside."""
    legal = {t.name: t.values for t in kernel.tunables}
    back = {n: v for n, v in parent.configuration.items() if v in legal.get(n, ())}
    return pieces_of(kernel.render(back)).frozen == pieces_of(parent.source).frozen


def check_closed(kernel: Kernel, parent: Kernel | None = None) -> None:
    """Refuses a region that leaves something open which would swallow frozen code, or closes it there.

    Args:
        kernel: The new text.
        parent: The same with other text in its regions; what was open there may stay so.

    Raises:
        EditFailure: The region and what is open, in words.
    """
    before = _open_in(parent) if parent is not None else ()
    for index, (region, what) in enumerate(zip(kernel.regions, _open_in(kernel), strict=True)):
        if what and not (before and before[index]):
            raise EditFailure(
                EditKind.FROZEN,
                f"the region {region.name} leaves {what} open, or closes one that it did not open; "
                "frozen code around it would be changed by that",
            )


def _open_in(kernel: Kernel) -> Sequence[str]:
    """For each region what it leaves open, in words; empty if nothing."""
    python = kernel.language is Language.PYTHON
    found = [_left_open(text, python=python) for text in pieces_of(kernel.source).free]
    if python:
        for region, what in blocks_over_frozen(kernel).items():
            found[region] = found[region] or what
    return found


def _left_open(text: str, *, python: bool) -> str:
    """What does not begin and end within a text: a comment, a text, a condition, a block, a bracket."""
    if python:
        if any(m["open"] for m in _PYTHON_WHOLE.finditer(text)):
            return "a string"
        return "" if _balanced(_PYTHON_WHOLE.sub(" ", text), "()[]{}") else "a bracket"
    if any(m["open"] for m in _CPP_WHOLE.finditer(text)):
        return "a raw string"
    rest = _CPP_WHOLE.sub(" ", text)
    if "/*" in rest or "*/" in rest:
        return "a comment"
    depth = branches = 0
    for match in _CONDITION.finditer(rest):
        if match["word"] != "if" and depth == 0:
            return "an #if"
        depth += {"if": 1, "el": 0, "endif": -1}[match["word"]]
        branches += match["word"] == "el"
    if depth:
        return "an #if"
    # Branches of a condition may each open the block that the text behind them closes.
    return "" if branches or _balanced(rest) else "a block"


def _balanced(code: str, pairs: str = "{}") -> bool:
    """Whether what opens is closed, in turn; `pairs` has each opening mark before its closing one."""
    expected: list[str] = []
    for mark in (character for character in code if character in pairs):
        place = pairs.index(mark)
        if place % 2 == 0:
            expected.append(pairs[place + 1])
        elif not expected or expected.pop() != mark:
            return False
    return not expected


def _tunables_set(parent: Kernel, kernel: Kernel) -> tuple[str, ...]:
    old, new = parent.configuration, kernel.configuration
    return tuple(
        f"tunable {name}: {old[name]} to {new[name]}"
        for name in old
        if name in new and old[name] != new[name]
    )


def _changed(before: tuple[str, ...], after: tuple[str, ...]) -> EditFailure:
    for old, new in zip(before, after, strict=True):
        if old != new:
            olds, news = old.split("\n"), new.split("\n")
            shorter = min(len(olds), len(news))
            at = next((i for i in range(shorter) if olds[i] != news[i]), shorter)
            was = visible(olds[at]) if at < len(olds) else "(the end)"
            now = visible(news[at]) if at < len(news) else "(the end)"
            return EditFailure(
                EditKind.FROZEN,
                f"the new text changes frozen code: '{was.strip('·→')[:80]}'; change evolve regions only",
                f"was: {was}\nnow: {now}",
            )
    return EditFailure(EditKind.FROZEN, "the new text changes frozen code")
