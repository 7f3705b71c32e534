"""The human's own editor on a text, while the terminal is handed over to it."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kerneltui.targets.environment import without_keys

__all__ = ["EditorError", "edit_text"]


class EditorError(Exception):
    """The editor could not be run; the text is one line for the user."""


def edit_text(text: str, name: str, environment: Mapping[str, str]) -> str | None:
    """Opens a text in $VISUAL, $EDITOR or vi and returns what it became; None when unchanged.

    Args:
        text: The text to edit.
        name: The file's name, so that the editor knows the language.
        environment: Where the editor is looked up.

    Raises:
        EditorError: There is no such editor, or it ended with an error.
    """
    command = environment.get("VISUAL") or environment.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="kerneltui-") as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        try:
            done = subprocess.run(
                [*shlex.split(command), str(path)], check=False, env=without_keys()
            )
        except (OSError, ValueError) as error:
            raise EditorError(f"cannot run the editor '{command}': {error}; set EDITOR") from error
        if done.returncode != 0:
            raise EditorError(f"the editor '{command}' ended with code {done.returncode}; not used")
        edited = path.read_text(encoding="utf-8", errors="surrogateescape")
    return None if edited == text else edited
