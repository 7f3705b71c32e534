"""The entry point of the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kerneltui.tui.app import Connect, KernelTui, OpenLink
from kerneltui.tui.ending import Quit

if TYPE_CHECKING:
    from kerneltui.tui.client import EngineLink

__all__ = ["Quit", "run"]


async def _over_socket(path: str) -> EngineLink:
    # Imported when it is needed, so that the first frame does not wait for it.
    from kerneltui.tui.client import SocketLink

    return await SocketLink.open(path)


def run(
    connect: str | Connect,
    *,
    readonly: bool = False,
    replay: bool = False,
    step: int | None = None,
    open_link: OpenLink | None = None,
    clipboard_folder: Path | None = None,
    session: Path | None = None,
) -> Quit:
    """Shows the terminal until the user leaves it, and says how it ended.

    The first frame is drawn before `connect` is called. It runs in a thread, may take as long as it
    likes, tells what it does in single lines, and returns the path of the engine's socket. What it
    raises is shown as one line; its attribute `exit_code`, if any, is returned.

    Args:
        connect: The path of the engine's socket, or a function that starts the engine and returns it.
        readonly: Whether to ask for a link that may not decide.
        replay: Whether to show the replay screen; the engine must send the journal.
        step: The step of a replay to begin with; the last one if None.
        open_link: How to reach the socket; over a Unix socket if None.
        clipboard_folder: Where copies are written as well; the socket's folder if None.
        session: Folder of the session, so that it can be replayed from inside; None if there is none.
    """
    if os.environ.get("TERM", "") in ("dumb", "unknown"):
        return Quit(exit_code=2, message="TERM=dumb cannot show the terminal; use kerneltui tune")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return Quit(exit_code=2, message="no terminal on stdin and stdout; use kerneltui tune")
    # Exported by some shells and test runners; they would win over the terminal's real size.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    # Highlighting and comparing run in threads; keys must not wait 5 ms for each of their turns.
    sys.setswitchinterval(0.001)
    if os.environ.get("SSH_CONNECTION"):
        os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")

    def fixed(report: Callable[[str], None]) -> str:
        return str(connect)

    app = KernelTui(
        connect if callable(connect) else fixed,
        open_link or _over_socket,
        readonly=readonly,
        replay=replay,
        step=step,
        clipboard_folder=clipboard_folder,
        session=session,
    )
    return app.run() or Quit(exit_code=app.return_code or 0)
