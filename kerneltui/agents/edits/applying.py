"""Applies a reply to a kernel: all of its edits, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from kerneltui.agents.edits.copying import edit_mark, numbered, placeholder, unnumbered
from kerneltui.agents.edits.edit import Edit, Reply, Rewrite
from kerneltui.agents.edits.failure import EditFailure, EditKind
from kerneltui.agents.edits.finding import Step
from kerneltui.agents.edits.matching import Match, locate
from kerneltui.agents.edits.nearest import regions_told, shown_lines
from kerneltui.agents.edits.page import Change, Page
from kerneltui.agents.edits.verifying import frozen_kept, read_result, verify
from kerneltui.model.errors import DefinitionError
from kerneltui.model.kernel import Kernel, Language, parse_kernel

__all__ = ["Applied", "Placed", "apply_reply"]


@dataclass(frozen=True, slots=True)
class Placed:
    """How one edit found its place.

    Attributes:
        number: The edit in the reply, from 1.
        step: How it was found.
        first: The first line of the found text in the parent, from 1.
        last: The last one.
        region: The evolve region, `tunables`, or `the file`.
        notes: What was mended.
    """

    number: int
    step: Step
    first: int
    last: int
    region: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """A new kernel text and how it came about.

    Attributes:
        source: The whole text.
        kernel: What it declares.
        placed: Every edit that changes something, in the order of the reply.
        notes: What a person should know: "edit 2: fuzzy", "tunable NR: 16 to 32".
    """

    source: str
    kernel: Kernel
    placed: tuple[Placed, ...]
    notes: tuple[str, ...]


def apply_reply(kernel: Kernel, reply: Reply, *, whole_file: bool = False) -> Applied:
    """Returns the kernel text that a reply asks for.

    All edits are held against the kernel as it is, not against each other's results.

    Args:
        kernel: The parent.
        reply: What to change.
        whole_file: Whether text outside the evolve regions may change too (a transform).

    Raises:
        EditFailure: One of the edits cannot be applied, or the result is not a legal child.
    """
    page = Page.of(kernel, whole_file=whole_file)
    notes = list(reply.notes)
    matches: list[tuple[int, Match]] = []
    seen: dict[Edit | Rewrite, int] = {}
    for number, edit in enumerate(reply.edits, start=1):
        _check_file(kernel, edit, number)
        if edit in seen:
            notes.append(f"edit {number}: the same as edit {seen[edit]}")
            continue
        seen[edit] = number
        if isinstance(edit, Edit) and edit.search == edit.replace and edit.search:
            notes.append(f"edit {number}: changes nothing")
            continue
        match = _match(kernel, page, edit, number)
        if not match.changes:
            notes.append(f"edit {number}: changes nothing")
            continue
        _check_new_lines(page, match, number)
        notes += [f"edit {number}: {note}" for note in match.notes]
        matches.append((number, match))
    if not matches:
        raise EditFailure(
            EditKind.IDENTICAL, "no edit changes anything: what is searched is what is put there"
        )
    _check_overlap(page, matches)
    source = page.write(change for _, match in matches for change in match.changes)
    if whole_file:
        source = _ended_like(page, source)
        result = read_result(source, kernel.file, kernel.source)
        if result.token_hash() == kernel.token_hash():
            raise EditFailure(EditKind.IDENTICAL, "the new file is the same program")
    else:
        result, more = verify(kernel, source)
        notes += more
    placed = tuple(_placed(page, number, match) for number, match in matches)
    return Applied(source, result, placed, tuple(notes))


def _check_file(kernel: Kernel, edit: Edit | Rewrite, number: int) -> None:
    mine = PurePosixPath(kernel.file.replace("\\", "/")).name
    if edit.file and PurePosixPath(edit.file.replace("\\", "/")).name != mine:
        raise EditFailure(
            EditKind.WRONG_FILE,
            f"edit {number} is for the file {edit.file[:80]}; the one file is {mine}",
            number=number,
        )


def _match(kernel: Kernel, page: Page, edit: Edit | Rewrite, number: int) -> Match:
    if edit.region:
        _check_region(kernel, page, edit.region, number)
    if isinstance(edit, Rewrite):
        return _region(kernel, page, edit) if edit.region else _file(kernel, page, edit)
    strict = kernel.language is Language.PYTHON
    if page.whole:
        edit = replace(edit, region="")  # the whole file is one place
    tunables = _Tunables(kernel, page, edit)
    try:
        return locate(page, edit, number, strict=strict, frees=tunables.frees)
    except EditFailure as failure:
        if failure.kind is not EditKind.FROZEN or not tunables.problem:
            raise
        raise EditFailure(
            EditKind.DECLARATION,
            f"edit {number} may only give a tunable another of its values: {tunables.problem}",
            failure.detail,
            number,
        ) from failure


@dataclass(slots=True)
class _Tunables:
    """Allows changes of frozen lines that do nothing but give tunables other values."""

    kernel: Kernel
    page: Page
    edit: Edit
    problem: str = ""
    """Why changes of such lines were not allowed."""

    def frees(self, changes: Sequence[Change]) -> bool:
        """Whether changes set tunables, and nothing else."""
        touched = {self.page.line_at(change.start) for change in changes}
        inserting = any(change.start == change.end for change in changes)
        if self.edit.region or inserting or not touched <= _value_lines(self.kernel):
            return False
        try:
            result = parse_kernel(self.page.write(changes), self.kernel.file)
        except (DefinitionError, ValueError, RecursionError) as error:
            self.problem = str(error)
            return False
        return frozen_kept(self.kernel, result)


def _value_lines(kernel: Kernel) -> set[int]:
    """Lines, counted from 0, that hold the declaration or the value of a tunable."""
    return {at for tunable in kernel.tunables for at in (tunable.line - 1, tunable.line)}


def _check_region(kernel: Kernel, page: Page, name: str, number: int) -> None:
    found = sum(region.name == name for region in kernel.regions)
    if found != 1:
        problem = "several regions have this name" if found else "there is no such evolve region"
        raise EditFailure(
            EditKind.AMBIGUOUS if found else EditKind.WRONG_REGION,
            f"edit {number} names the region '{name[:60]}': {problem}",
            regions_told(page),
            number,
        )


def _region(kernel: Kernel, page: Page, edit: Rewrite) -> Match:
    """Rewrites a region; marks that were copied with it are not part of it."""
    region = next(region for region in kernel.regions if region.name == edit.region)
    lines = list(edit.lines)
    begin, end = page.lines[region.first - 2].strip(), page.lines[region.last].strip()
    full = [at for at, line in enumerate(lines) if line.strip()]
    if len(full) >= 2 and lines[full[0]].strip() == begin and lines[full[-1]].strip() == end:
        lines = lines[full[0] + 1 : full[-1]]
    lines = list(unnumbered(lines) or lines) if len(lines) > 1 else lines
    start, stop = page.starts[region.first - 1], page.starts[region.last]
    text = "".join(f"{line}\n" for line in lines)
    changes = (Change(start, stop, text),) if text != page.text[start:stop] else ()
    return Match(Step.REGION, start, stop, changes, region.name, (str(Step.REGION),))


def _file(kernel: Kernel, page: Page, edit: Rewrite) -> Match:
    """Rewrites all text; what must stay is checked afterwards."""
    lines = list(edit.lines)
    lines = list(unnumbered(lines) or lines) if len(lines) > 1 else lines
    if not any(line.strip() for line in lines):
        raise EditFailure(EditKind.EMPTY, "the new file is empty")
    while lines and not lines[-1].strip():
        lines.pop()
    text = "\n".join(lines) + kernel.source[len(kernel.source.rstrip("\r\n")) :].replace(
        "\r\n", "\n"
    )
    change = Change(0, len(page.text), text)
    changes = (change,) if text != page.text else ()
    return Match(Step.FILE, 0, len(page.text), changes, "the file", (str(Step.FILE),))


def _check_new_lines(page: Page, match: Match, number: int) -> None:
    """Refuses placeholders, line numbers and marks that the parent does not have."""
    known = {line.strip() for line in page.lines}
    for change in match.changes:
        new = change.text.removesuffix("\n").split("\n")
        for line in new:
            if placeholder(line) and line.strip() not in known:
                raise EditFailure(
                    EditKind.ELLIPSIS,
                    f"edit {number} puts a placeholder where code belongs ({line.strip()[:60]})",
                    number=number,
                )
            if edit_mark(line) and line.strip() not in known:
                raise EditFailure(
                    EditKind.MALFORMED,
                    f"edit {number} has a fence or a mark among its new lines ({line.strip()[:60]})",
                    number=number,
                )
        fresh = [line for line in new if line.strip() and line.strip() not in known]
        if len(fresh) > 1 and numbered(fresh, known) and unnumbered(fresh[:2]) is not None:
            raise EditFailure(
                EditKind.NUMBERED,
                f"edit {number} has line numbers in its new lines",
                number=number,
            )
        if match.step is not Step.FILE and "kerneltui: evolve" in change.text:
            raise EditFailure(
                EditKind.MARKS,
                f"edit {number} adds or moves an evolve mark; marks stay where they are",
                regions_told(page),
                number,
            )


def _check_overlap(page: Page, matches: Sequence[tuple[int, Match]]) -> None:
    """Refuses edits of which one changes what the other changes or stands on."""
    for index, (number, match) in enumerate(matches):
        for other_number, other in matches[index + 1 :]:
            if _touch(match, other) or _touch(other, match):
                line = page.line_at(max(match.start, other.start))
                raise EditFailure(
                    EditKind.OVERLAP,
                    f"edits {number} and {other_number} overlap in line {line + 1}",
                    shown_lines(page, range(line - 1, line + 3)),
                    other_number,
                )


def _touch(one: Match, other: Match) -> bool:
    """Whether a change of one lies in the text that the other found, or both insert at one place."""
    for change in one.changes:
        if change.start == change.end:
            same = any(c.start == c.end == change.start for c in other.changes)
            if same or other.start < change.start < other.end:
                return True
        elif change.start < other.end and other.start < change.end:
            return True
    return False


def _ended_like(page: Page, source: str) -> str:
    """Gives a text the parent's final newline, or takes it."""
    bare = source.rstrip("\r\n")
    return bare + page.source[len(page.source.rstrip("\r\n")) :]


def _placed(page: Page, number: int, match: Match) -> Placed:
    first = page.line_at(match.start)
    last = page.line_at(max(match.start, match.end - 1))
    return Placed(number, match.step, first + 1, last + 1, match.region, match.notes)
