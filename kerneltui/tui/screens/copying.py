"""The copy menu: sha, patch, code or row of a candidate."""

from __future__ import annotations

import os
from collections.abc import Callable
from difflib import unified_diff
from typing import TYPE_CHECKING

from kerneltui.model.candidate import Candidate
from kerneltui.model.state import State
from kerneltui.tui.clipboard import copy_text
from kerneltui.tui.draw.candidates import Row, candidate_line
from kerneltui.tui.screens.dialogs import Choice, ChoiceDialog
from kerneltui.tui.sources import Loaded
from kerneltui.tui.text import plain
from kerneltui.tui.view import Live

if TYPE_CHECKING:
    from kerneltui.tui.app import KernelTui

__all__ = ["copy_menu", "patch_text"]


def patch_text(loaded: Loaded) -> str:
    """Returns the candidate's change as a unified diff that `git apply` takes."""
    diff = loaded.diff
    lines = unified_diff(
        [f"{line}\n" for line in diff.old],
        [f"{line}\n" for line in diff.new],
        f"a/{diff.file}",
        f"b/{diff.file}",
    )
    return "".join(lines)


def copy_menu(
    app: KernelTui,
    state: State,
    candidate: Candidate,
    loaded: Loaded | None,
    say: Callable[[str], None],
) -> None:
    """Asks what to copy, copies it, and says how."""
    choices = [Choice("s", f"sha     {candidate.sha}", "sha")]
    if loaded:
        if loaded.diff.parent:
            choices.append(
                Choice("p", f"patch   {len(loaded.diff.hunks)} hunks as a diff", "patch")
            )
        choices.append(Choice("c", f"code    {loaded.diff.file}", "code"))
    choices.append(Choice("r", "row     the line of the list", "row"))

    def chosen(what: str | None) -> None:
        if not what:
            return
        texts: dict[str, Callable[[], str]] = {
            "sha": lambda: candidate.sha,
            "patch": lambda: patch_text(loaded) if loaded else "",
            "code": lambda: loaded.source if loaded else "",
            "row": lambda: plain(
                candidate_line(state, Live(), Row(candidate.id), selected=False, width=200)
            ).strip(),
        }

        async def copy() -> None:
            done = await copy_text(
                texts[what](),
                what,
                osc52=app.copy_to_clipboard,
                folder=app.clipboard_folder,
                environment=os.environ,
            )
            say(done)

        app.run_worker(copy(), group="copy")

    app.push_screen(ChoiceDialog(f"Copy of {candidate.id}", "", choices), chosen)
