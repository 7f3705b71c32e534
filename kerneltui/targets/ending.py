"""The end of the ranks of a group, with proof."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from kerneltui.targets.client import ForkServerClient, exit_from
from kerneltui.targets.errors import ServerFailure
from kerneltui.targets.port import KillProof
from kerneltui.targets.processes import kill_process

__all__ = ["end_ranks"]

_KILL_S = 12.0
_GIVE_UP_S = 5.0  # on a process that the kernel does not let go after SIGKILL


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
        left = _kill([pid for pid in pids if _is_rank(pid)])
        return KillProof(group_id, (), (), 0.0, not left, left)
    return KillProof(
        group_id=group_id,
        exits=tuple(exit_from(e) for e in answer["exits"]),
        strays=tuple(answer["strays"]),
        seconds=float(answer["seconds"]),
        gone=not answer["left"],
        left=tuple(answer["left"]),
    )


def _kill(ranks: Sequence[int]) -> tuple[int, ...]:
    """Ends processes that are no children; those that are there after a few seconds."""
    for pid in ranks:
        kill_process(pid, signal.SIGKILL)
    gone_by = time.monotonic() + _GIVE_UP_S
    # One that is to die still has to be scheduled for it.
    while (left := tuple(pid for pid in ranks if _is_rank(pid))) and time.monotonic() < gone_by:
        time.sleep(0.005)
    return left


def _is_rank(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"kerneltui.targets.forkserver" in command
