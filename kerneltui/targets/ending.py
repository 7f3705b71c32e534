"""The end of the ranks of a group, with proof."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kerneltui.targets.client import ForkServerClient, exit_from
from kerneltui.targets.errors import ServerFailure
from kerneltui.targets.port import KillProof

__all__ = ["end_ranks"]

_KILL_S = 12.0


def end_ranks(server: ForkServerClient, group_id: str, pids: Sequence[int]) -> KillProof:
    """Has a group ended by the fork server, or looks for its ranks where there is no server any more.

    Args:
        server: Forked the ranks.
        group_id: Which group.
        pids: Its ranks.
    """
    try:
        answer = server.ask({"do": "kill", "group": group_id}, timeout_s=_KILL_S)
    except ServerFailure:
        # Without a server its ranks are gone: each dies with it. Look rather than trust.
        left = tuple(pid for pid in pids if _is_rank(pid))
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return KillProof(group_id, (), (), 0.0, not left, left)
    return KillProof(
        group_id=group_id,
        exits=tuple(exit_from(e) for e in answer["exits"]),
        strays=tuple(answer["strays"]),
        seconds=float(answer["seconds"]),
        gone=not answer["left"],
        left=tuple(answer["left"]),
    )


def _is_rank(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"kerneltui.targets.forkserver" in command
