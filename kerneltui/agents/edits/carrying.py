"""Carries a proposal over to a new parent: what it changed in its own parent is changed there.

The merge is that of `git merge-file`, in an empty folder and with no configuration but its own, so that it
gives the same everywhere. A conflict is data for people to look at, never text in a kernel.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kerneltui.agents.edits.failure import EditFailure, EditKind
from kerneltui.agents.edits.verifying import read_result, verify
from kerneltui.model.kernel import Kernel

__all__ = ["Carried", "Conflict", "carry_over"]

_TIMEOUT = 30.0
_MARK = 41
"""Characters of a conflict mark: more than any line of a kernel begins with."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Lines that both sides changed, differently.

    Attributes:
        line: Where the conflict is in the new parent, from 1.
        region: The evolve region there; empty if there is none.
        base: The lines of the proposal's own parent.
        new_parent: The lines of the new parent.
        proposal: The lines of the proposal.
    """

    line: int
    region: str
    base: tuple[str, ...]
    new_parent: tuple[str, ...]
    proposal: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Carried:
    """A proposal on its new parent; with conflicts there is no kernel.

    Attributes:
        kernel: The merged text, verified like any edit of the new parent; None with conflicts.
        conflicts: What a human has to decide.
        notes: What a person should know.
    """

    kernel: Kernel | None
    conflicts: tuple[Conflict, ...]
    notes: tuple[str, ...] = ()


def carry_over(
    old_parent: Kernel, proposal: Kernel, new_parent: Kernel, *, whole_file: bool = False
) -> Carried:
    """Merges the change from the old parent to the proposal into the new parent.

    Args:
        old_parent: What the proposal was made from.
        proposal: The kernel to carry over.
        new_parent: Where to.
        whole_file: Whether text outside the evolve regions may change too (a transform).

    Raises:
        EditFailure: The merged text is not a legal child of the new parent, it is the new parent,
            or git could not be run.
    """
    texts = [k.source.replace("\r\n", "\n") for k in (new_parent, old_parent, proposal)]
    merged, conflicts = _read(_merge(texts), new_parent)
    if conflicts:
        return Carried(None, conflicts)
    if new_parent.source.count("\r\n") * 2 > new_parent.source.count("\n"):
        merged = merged.replace("\n", "\r\n")
    if whole_file:
        kernel = read_result(merged, new_parent.file, new_parent.source + proposal.source)
        if kernel.token_hash() == new_parent.token_hash():
            raise EditFailure(EditKind.IDENTICAL, "the new parent has all of the change already")
        return Carried(kernel, ())
    kernel, notes = verify(new_parent, merged)
    return Carried(kernel, (), notes)


def _merge(texts: list[str]) -> str:
    """Runs the merge of new parent, old parent, proposal, and returns the text with marks."""
    try:
        with tempfile.TemporaryDirectory(prefix="kerneltui-merge-") as folder:
            names = ("new", "old", "proposal")
            for name, text in zip(names, texts, strict=True):
                Path(folder, name).write_bytes(text.encode("utf-8"))
            labels = [part for name in names for part in ("-L", name)]
            command = ["git", "merge-file", "-p", "--diff3", f"--marker-size={_MARK}"]
            result = subprocess.run(
                [*command, *labels, *names],
                cwd=folder,
                env=_environment(folder),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT,
                check=False,
            )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise EditFailure(
            EditKind.UNAVAILABLE, f"the merge could not be made: {type(error).__name__}: {error}"
        ) from error
    if not 0 <= result.returncode <= 127:  # up to 127 it is the number of conflicts
        said = result.stderr.decode("utf-8", "replace")
        raise EditFailure(EditKind.UNAVAILABLE, f"git merge-file failed: {said}")
    return result.stdout.decode("utf-8", "replace")


def _environment(folder: str) -> Mapping[str, str]:
    """What git needs to run; no user's or system's configuration reaches it."""
    kept = {
        key: os.environ[key]
        for key in ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH")
        if key in os.environ
    }
    return {
        **kept,
        "HOME": folder,
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CEILING_DIRECTORIES": str(Path(folder).parent),
    }


def _read(text: str, new_parent: Kernel) -> tuple[str, tuple[Conflict, ...]]:
    """Separates merged text and conflicts."""
    marks = {
        "<" * _MARK + " new": "<",
        "|" * _MARK + " old": "|",
        "=" * _MARK: "=",
        ">" * _MARK + " proposal": ">",
    }
    merged: list[str] = []
    found: list[tuple[int, dict[str, list[str]]]] = []
    parts: dict[str, list[str]] = {}
    part = ""
    for line in text.split("\n"):
        sign = marks.get(line, "")
        if sign == "<":
            parts, part = {"<": [], "|": [], "=": []}, "<"
        elif sign == ">" and part:
            found.append((len(merged), parts))
            merged += parts["<"]
            part = ""
        elif sign and part:
            part = sign
        elif part:
            parts[part].append(line)
        else:
            merged.append(line)
    if not found:
        return "\n".join(merged), ()
    where = _origins(merged, new_parent.source.replace("\r\n", "\n").split("\n"))
    conflicts: list[Conflict] = []
    for at, parts in found:
        new, base, theirs = (tuple(parts[key]) for key in "<|=")
        line = where[at] + 1
        conflicts.append(Conflict(line, _region(new_parent, line), base, new, theirs))
    return "\n".join(merged), tuple(conflicts)


def _origins(merged: list[str], parent: list[str]) -> list[int]:
    """For every line of the merged text, and its end, the line of the new parent that it comes from."""
    origins: list[int] = []
    matcher = difflib.SequenceMatcher(None, merged, parent, autojunk=False)
    for _, i1, i2, j1, j2 in matcher.get_opcodes():
        origins += [min(j1 + at - i1, max(j1, j2 - 1)) for at in range(i1, i2)]
    return [*origins, len(parent) - 1]


def _region(kernel: Kernel, line: int) -> str:
    return next((r.name for r in kernel.regions if r.first - 1 <= line <= r.last + 1), "")
