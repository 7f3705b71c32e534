"""A replay of the session that is tuned, while the terminal is handed over to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kerneltui.targets.environment import without_keys

__all__ = ["replay_session"]


def replay_session(session: Path) -> str:
    """Shows a session step by step until the user has seen enough; the engine goes on meanwhile.

    Args:
        session: Its folder.

    Returns:
        Why nothing was shown, in a line; empty if it was.
    """
    command = [sys.executable, "-m", "kerneltui", "replay", str(session)]
    try:
        done = subprocess.run(command, check=False, env=without_keys())
    except OSError as error:
        return f"the replay cannot be started ({error.strerror})"
    if done.returncode == 0:
        return ""
    return f"the replay ended with code {done.returncode}; see: kerneltui replay {session}"
