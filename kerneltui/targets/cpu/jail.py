"""Runs one program confined: `python -m kerneltui.targets.cpu.jail RULES PROGRAM ARGUMENT...`.

RULES is a JSON object: `read` and `write` (paths), `parent` (process to die with), `memory_bytes`,
`cpu_seconds`, `file_bytes`. The program runs without network and with write access to `write` only,
as far as the kernel offers it.

This process stays above the program as its subreaper: whatever the program leaves behind comes here
and is ended and reaped. SIGTERM ends everything below within `GRACE_S`, and then this process.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from kerneltui.targets.cpu.landlock import LandlockRules, restrict
from kerneltui.targets.cpu.seccomp import Denied, install
from kerneltui.targets.processes import children_of, descendants, kill_process

__all__ = ["GRACE_S", "main"]

GRACE_S = 2.0
"""Between SIGTERM and SIGKILL, in seconds."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_WAITED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def main(arguments: list[str]) -> int:
    """Runs the program; its exit code, or 128 + signal."""
    rules = json.loads(arguments[0])
    libc = ctypes.CDLL(None, use_errno=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    # SIGTERM, so that this process can take the program along.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() != rules["parent"]:
        return 1
    program = os.fork()
    if program == 0:
        try:
            _become(arguments[1:], rules, libc)
        except OSError as error:
            print(f"cannot run {arguments[1]}: {error.strerror}", file=sys.stderr)
        finally:
            os._exit(127)
    code = _watch(program)
    for stray in children_of(os.getpid()):
        kill_process(stray, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    return code


def _become(command: list[str], rules: dict[str, Any], libc: ctypes.CDLL) -> None:
    os.setpgid(0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, rules["memory_bytes"]),
        (resource.RLIMIT_CPU, rules["cpu_seconds"]),
        (resource.RLIMIT_FSIZE, rules["file_bytes"]),
    ):
        _, hard = resource.getrlimit(limit)
        capped = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (capped, capped))
    restrict(
        LandlockRules(
            read=tuple(Path(p) for p in rules["read"]),
            write=(*(Path(p) for p in rules["write"]), Path("/dev/null")),
        )
    )
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    install(Denied.SOCKETS)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED)
    os.execvp(command[0], command)


def _watch(program: int) -> int:
    """Waits for the program, and ends it when this process is told to end."""
    deadline: float | None = None
    while True:
        wait = 3600.0 if deadline is None else max(0.0, deadline - time.monotonic())
        got = signal.sigtimedwait(_WAITED, wait)
        if got is None and deadline is not None:
            _signal_all(program, signal.SIGKILL)
            deadline = time.monotonic() + 0.2  # again, for what was forked meanwhile
        elif got is not None and got.si_signo != signal.SIGCHLD and deadline is None:
            _signal_all(program, signal.SIGTERM)
            deadline = time.monotonic() + GRACE_S
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == program:
                    code = os.waitstatus_to_exitcode(status)
                    return 128 - code if code < 0 else code


def _signal_all(program: int, sig: signal.Signals) -> None:
    below = descendants([os.getpid()])
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program, sig)
    for pid in below:
        kill_process(pid, sig)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
