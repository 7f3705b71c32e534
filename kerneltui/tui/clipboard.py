"""Copying: through tmux when there is one, else OSC 52, and always into a file.

Raw OSC 52 does not pass tmux with default settings, `tmux load-buffer -w` does. Nothing here can know
what the outer terminal did with it, so the words say what was done and not that it worked.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from kerneltui.targets.environment import without_keys

__all__ = ["copy_text"]


async def copy_text(
    text: str,
    what: str,
    *,
    osc52: Callable[[str], None],
    folder: Path | None,
    environment: Mapping[str, str],
) -> str:
    """Copies a text and returns one line on what was done with it."""
    ways: list[str] = []
    if environment.get("TMUX") and await asyncio.to_thread(_tmux, text):
        ways.append("to tmux's buffer and, through it, the terminal")
    else:
        osc52(text)
        ways.append("to the terminal by OSC 52")
    if folder is not None:
        try:
            (folder / "clipboard").write_text(text, encoding="utf-8", errors="surrogateescape")
            ways.append(f"to {folder.name}/clipboard")
        except OSError as error:
            ways.append(f"not to a file ({error.strerror})")
    return f"{what}: sent {', and '.join(ways)}"


def _tmux(text: str) -> bool:
    try:
        done = subprocess.run(
            ["tmux", "load-buffer", "-w", "-"],
            input=text.encode("utf-8", "surrogateescape"),
            capture_output=True,
            timeout=10,
            check=False,
            env=without_keys(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
