"""Proofs about the evolve marks of a new whole file: they are accepted only if nothing hides behind them.

Four things are held against a file, none of which rests on what its author says:

1. Marks are comments and nothing else, so that the file without their lines is the same program: none
   stands in a string or a block comment, behind a continued line, or goes on in the next one.
2. Each region is closed in itself (`verifying.check_closed`): whatever is put there later, the frozen code
   around it stays code.
3. There is a region, and no region holds a declaration (`tunable`, `runtime`, `directive`): what may be
   tuned and what the file says of itself are not for a later change to decide. Nor does a region hold the
   head of a function of the contract: one around a whole file would leave nothing that is held against it.
4. Where the file claims to be another one with marks (stage A keeps the program that it was made from),
   the text outside of its regions is that file's, byte for byte and in its order. Precisely: without mark
   lines, and without declarations and the line that holds a tunable's value, the old file reads
   `f0 x1 f1 x2 ... fn`, where `f0 ... fn` are the new file's frozen pieces and each `x` is any text, which
   the new file may have replaced by that of a region. With regions that change nothing this says that
   taking the marks out gives the old file back; for a file without regions it says that the files are
   equal. A mark that has moved cannot be told from text that has moved across it, so the claim is proven
   whenever it is made, whether or not marks seem to have changed.

A transform that replaces the program (stage B) claims nothing of that kind: 1 to 3 hold for it, and its
text is judged by the evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kerneltui.agents.edits.failure import EditFailure, EditKind
from kerneltui.agents.edits.nearest import visible
from kerneltui.agents.edits.verifying import WHOLE, check_closed, pieces_of
from kerneltui.model.kernel import Kernel, Language, TunableKind

__all__ = ["check_marks", "hidden_marks", "prove_marked", "without_marks"]

_MARK = re.compile(r"^\s*(?://|#)\s*kerneltui:\s*evolve\s+(?:begin|end)\b")
_DECLARATION = re.compile(r"^\s*(?://|#)\s*kerneltui:\s*(?:tunable|runtime|directive)\b")
_HEADS = {
    Language.CPP: re.compile(r"\bkerneltui_(requirements|setup|run|teardown)\s*\("),
    Language.PYTHON: re.compile(
        r"^(?:async\s+)?def\s+(requirements|setup|run|teardown)\b", re.MULTILINE
    ),
}
"""The heads of the functions that the harness calls; nothing else in a kernel may have their names."""


def without_marks(source: str) -> str:
    """A text without its mark lines."""
    return "".join(line for line in _lines(source) if not _MARK.match(line))


def hidden_marks(source: str, language: Language) -> list[int]:
    """Numbers of the mark lines that are more, or less, than a comment of their own."""
    starts: dict[int, int] = {}
    found: list[int] = []
    at, before = 0, ""
    for number, line in enumerate(_lines(source), start=1):
        if _MARK.match(line):
            starts[at + len(line) - len(line.lstrip())] = number
            if any(text.rstrip().endswith("\\") for text in (before, line)):
                found.append(number)
        at, before = at + len(line), line
    for token in WHOLE[language].finditer(source):
        inside = [n for begin, n in starts.items() if token.start() < begin < token.end()]
        found += inside
    return sorted(set(found))


def check_marks(kernel: Kernel) -> None:
    """Proves 1 to 3 of a file, as the head of this module numbers them.

    Raises:
        EditFailure: One of them does not hold; the reason says which, and where.
    """
    if not kernel.regions:
        raise EditFailure(
            EditKind.NO_REGION,
            "the file marks no evolve region, so that nothing could be changed later",
        )
    lines = _lines(kernel.source)
    for number in hidden_marks(kernel.source, kernel.language):
        raise EditFailure(
            EditKind.REGION,
            f"line {number}: an evolve mark is not a comment of its own: it stands inside a string or a "
            "comment, or it or the line before it ends in a backslash",
        )
    for region in kernel.regions:
        for number in range(region.first, region.last + 1):
            if _DECLARATION.match(lines[number - 1]):
                raise EditFailure(
                    EditKind.REGION,
                    f"line {number}: the region {region.name} holds a declaration "
                    f"({lines[number - 1].strip()[:60]}); declarations stay outside of the regions",
                )
    for region, text in zip(kernel.regions, pieces_of(kernel.source).free, strict=True):
        head = _HEADS[kernel.language].search(WHOLE[kernel.language].sub(" ", text))
        if head:
            raise EditFailure(
                EditKind.REGION,
                f"the region {region.name} holds the function {head[1]} of the contract; mark parts inside "
                "of it, so that its head stays outside of the regions",
            )
    check_closed(kernel)


def prove_marked(old: Kernel, new: Kernel) -> None:
    """Proves 4: outside of the new file's regions stands the old file's text and no other.

    Raises:
        EditFailure: It does not; the reason names the first line that is not the old file's.
    """
    have = [line for _, line in _bare(old)]
    at = 0
    segments = _segments(new)
    for index, segment in enumerate(segments):
        wanted = [line for _, line in segment]
        first, last = index == 0, index == len(segments) - 1
        if first and last:
            found = 0 if wanted == have else None
        elif first:
            found = 0 if have[: len(wanted)] == wanted else None
        elif last:
            begin = len(have) - len(wanted)
            found = begin if begin >= at and have[begin:] == wanted else None
        else:
            found = _find(have, wanted, at)
        if found is None:
            raise _other(have, segment, at, anchored=first, ends=last)
        at = found + len(wanted)


def _find(have: Sequence[str], wanted: Sequence[str], begin: int) -> int | None:
    """The first place of a piece. Taking the first leaves most room for the pieces behind it."""
    for at in range(begin, len(have) - len(wanted) + 1):
        if have[at : at + len(wanted)] == wanted:
            return at
    return None


def _segments(kernel: Kernel) -> list[list[tuple[int, str]]]:
    """The frozen pieces, one more than there are regions, as numbered lines."""
    found: list[list[tuple[int, str]]] = [[]]
    regions = list(kernel.regions)
    for number, line in _bare(kernel):
        while regions and number > regions[0].last:
            regions.pop(0)
            found.append([])
        if not regions or number < regions[0].first:
            found[-1].append((number, line))
    return [*found, *([] for _ in regions)]


def _bare(kernel: Kernel) -> list[tuple[int, str]]:
    """Lines with their numbers, without marks, declarations and the values of tunables."""
    aside = {t.line + 1 for t in kernel.tunables if t.kind is TunableKind.COMPILE}
    return [
        (number, line)
        for number, line in enumerate(_lines(kernel.source), start=1)
        if number not in aside and not _MARK.match(line) and not _DECLARATION.match(line)
    ]


def _other(
    have: Sequence[str],
    segment: Sequence[tuple[int, str]],
    begin: int,
    *,
    anchored: bool,
    ends: bool,
) -> EditFailure:
    """Names the line at which the longest agreement with the old file ends."""
    best, at = 0, begin
    for start in [begin] if anchored else range(begin, len(have) + 1):
        length = 0
        for (_, line), old in zip(segment, have[start:], strict=False):
            if line != old:
                break
            length += 1
        if length > best:
            best, at = length, start
    if best == len(segment):  # all of it is there, but text that the old file has next is not
        missing = have[at + best] if at + best < len(have) else ""
        where = "at the end of the file" if ends else "there"
        return EditFailure(
            EditKind.REGION,
            f"outside of the regions a line of the old file is missing {where}: "
            f"'{missing.strip()[:80]}'; keep it, or mark the place where it stood",
        )
    number, line = segment[best]
    was = have[at + best] if at + best < len(have) else ""
    return EditFailure(
        EditKind.REGION,
        f"line {number} ('{line.strip()[:80]}') is outside of every evolve region and is not what the old "
        "file has there; put what you changed between evolve marks, or leave it as it was",
        f"was: {visible(was.removesuffix(chr(10))) or '(the end)'}\n"
        f"now: {visible(line.removesuffix(chr(10)))}",
    )


def _lines(source: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", source)
