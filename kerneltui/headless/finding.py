"""One thing that `kerneltui doctor` looked for."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from kerneltui.targets.environment import without_keys

__all__ = ["MISSING", "OFF", "OK", "Finding", "first_line"]

OK = "ok"
MISSING = "missing"
OFF = "off"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked for: `ok`, `missing` (needed) or `off` (would allow more)."""

    name: str
    state: str
    text: str
    remedy: str = ""


def first_line(*command: str) -> str | None:
    """Runs a command and returns its first line; None if it is not there or fails."""
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True, env=without_keys()
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = result.stdout.strip().splitlines()
    return lines[0] if lines else ""
