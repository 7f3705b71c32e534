"""The fork server: a small process with torch in memory that forks ranks in milliseconds.

Started as `python -I -m kerneltui.targets.forkserver FD OPTIONS`, with a main of its own. It has one
thread and starts none, so forking is safe; it makes no thread pool and no device context. It is the
parent of every rank, the only one that reaps them, and the subreaper of whatever they leave behind.

It is told what to do over one socket, whose other end the engine holds. The end of that socket means
the end of the engine: then everything below is killed, and the server leaves. SIGTERM means the same.

Requests: `open` (forks a group), `kill` (ends one, with proof), `quit`. Each carries an `id` that comes
back. Without being asked it reports `ready` and `exit`.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from kerneltui.targets.channel import Channel, ChannelClosed, ChannelTimeout
from kerneltui.targets.processes import descendants, kill_process, own_children, start_time

__all__ = ["GRACE_S", "RankStart", "main"]

GRACE_S = 2.0
"""Between SIGTERM and SIGKILL, in seconds."""

_GIVE_UP_S = 5.0  # after SIGKILL, for a process that the kernel does not let go
_TICK_S = 1.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True, slots=True)
class RankStart:
    """What the worker of a rank is started with.

    Attributes:
        rank: Its number.
        ranks: How many there are.
        channel: Its socket to the engine.
        options: Plain data from the engine, not looked at here.
    """

    rank: int
    ranks: int
    channel: socket.socket
    options: dict[str, Any]


@dataclass(slots=True)
class _Group:
    """A group of ranks as the server keeps it."""

    group_id: str
    pids: dict[int, int]
    alive: set[int]
    memory_bytes: int
    exits: list[dict[str, Any]] = field(default_factory=list)
    below: dict[int, int] = field(default_factory=dict)  # further processes and their start times
    kill_requests: list[int] = field(default_factory=list)
    kill_begin: float | None = None
    killed_hard: float | None = None

    def note(self, pids: Iterable[int]) -> None:
        """Remembers processes that must be gone when the group is."""
        for pid in pids:
            started = start_time(pid)
            if started is not None:
                self.below[pid] = started

    def left(self) -> list[int]:
        """Those of them that live; a number that went to another process does not count."""
        return [pid for pid, started in self.below.items() if start_time(pid) == started]


class _Server:
    def __init__(self, engine: Channel, entry: Callable[[RankStart], None]) -> None:
        self._engine = engine
        self._entry = entry
        self._groups: dict[str, _Group] = {}
        self._by_pid: dict[int, _Group] = {}
        self._oom_kills = _oom_kills()
        self._leaving = False

    def serve(self, wake: socket.socket) -> None:
        """Serves until the engine goes or says so."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._engine, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            while not (self._leaving and not self._groups):
                for key, _ in selector.select(self._pause()):
                    if key.fileobj is wake:
                        if signal.SIGTERM in wake.recv(4096):
                            self._leave()
                    elif not self._leaving:
                        self._hear()
                        if self._leaving:
                            selector.unregister(self._engine)
                self._reap()
                self._end_strays()
                for group in list(self._groups.values()):
                    self._advance(group)

    def _pause(self) -> float | None:
        if any(g.kill_begin is not None for g in self._groups.values()):
            return 0.005
        return _TICK_S if self._groups else None

    def _hear(self) -> None:
        try:
            message, descriptors = self._engine.receive_with_descriptors(time.monotonic() + 10.0)
        except (ChannelClosed, ChannelTimeout):
            self._leave()
            return
        try:
            if message["do"] == "open":
                self._open(message, descriptors)
            elif message["do"] == "kill":
                self._kill(message)
            else:
                self._leave()
        finally:
            for fd in descriptors:
                os.close(fd)

    def _leave(self) -> None:
        self._leaving = True
        for group in self._groups.values():
            if group.kill_begin is None:
                self._begin_kill(group)

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._engine.send(message)
        except (ChannelClosed, ChannelTimeout):
            if not self._leaving:
                self._leave()

    def _open(self, message: dict[str, Any], descriptors: list[int]) -> None:
        group = _Group(message["group"], {}, set(), message["limits"]["memory_bytes"])
        self._groups[group.group_id] = group
        server = os.getpid()
        try:
            for rank in range(message["ranks"]):
                mine = descriptors[3 * rank : 3 * rank + 3]
                pid = os.fork()
                if pid == 0:
                    _become_rank(message, rank, mine, server, self._entry)
                group.pids[pid] = rank
                group.alive.add(pid)
                self._by_pid[pid] = group
        except OSError as error:
            self._tell({"re": message["id"], "error": f"cannot fork a rank: {error.strerror}"})
            self._begin_kill(group)
            return
        self._tell({"re": message["id"], "pids": list(group.pids)})

    def _kill(self, message: dict[str, Any]) -> None:
        group = self._groups.get(message["group"])
        if group is None:
            self._tell({"re": message["id"], "error": f"no group {message['group']}"})
            return
        group.kill_requests.append(message["id"])
        if group.kill_begin is None:
            self._begin_kill(group)

    def _begin_kill(self, group: _Group) -> None:
        group.kill_begin = time.monotonic()
        group.note(descendants(group.alive))
        for pid in group.alive:
            _signal_group(pid, signal.SIGTERM)
            _signal_group(pid, signal.SIGCONT)  # a stopped one would not hear it
        for pid in group.left():
            kill_process(pid, signal.SIGTERM)

    def _advance(self, group: _Group) -> None:
        """Takes the end of a group one step further, and reports when it is over."""
        if group.kill_begin is None:
            return
        now = time.monotonic()
        left = group.left()
        over = not group.alive and not left
        if not over and now >= group.kill_begin + GRACE_S:
            group.note(descendants(group.alive))
            for pid in group.alive:
                _signal_group(pid, signal.SIGKILL)
            for pid in group.left():
                kill_process(pid, signal.SIGKILL)
            group.killed_hard = group.killed_hard or now
        given_up = group.killed_hard is not None and now >= group.killed_hard + _GIVE_UP_S
        if not over and not given_up:
            return
        del self._groups[group.group_id]
        for request in group.kill_requests:
            self._tell(
                {
                    "re": request,
                    "exits": group.exits,
                    "strays": sorted(group.below),
                    "seconds": now - group.kill_begin,
                    "left": sorted(group.alive.union(left)),
                }
            )

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            group = self._by_pid.pop(pid, None)
            if group is None:
                continue  # a stray
            # What the rank leaves in its own process group goes with it.
            group.alive.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            peak = usage.ru_maxrss * 1024
            exit_record = {
                "rank": group.pids[pid],
                "pid": pid,
                "exit_code": code if code >= 0 else None,
                "signal": -code if code < 0 else None,
                "peak_bytes": peak,
                "oom_suspected": self._oom(code, peak, group),
            }
            group.exits.append(exit_record)
            self._tell({"event": "exit", "group": group.group_id, **exit_record})

    def _oom(self, code: int, peak: int, group: _Group) -> bool:
        kills = _oom_kills()
        by_kernel = code == -signal.SIGKILL and kills > self._oom_kills
        self._oom_kills = kills
        return by_kernel or (code < 0 and peak > 0.8 * group.memory_bytes)

    def _end_strays(self) -> None:
        """Kills every child that is no rank: it came here because its parent died."""
        if not self._groups:
            return
        ranks = {pid for group in self._groups.values() for pid in group.alive}
        strays = [pid for pid in own_children() if pid not in ranks]
        if not strays:
            return
        for pid in {*strays, *descendants(strays)}:
            # Whose it was, nobody can say any more, unless it was seen below a rank before.
            seen = [group for group in self._groups.values() if pid in group.below]
            for group in seen or self._groups.values():
                group.note([pid])
            kill_process(pid, signal.SIGKILL)
        self._reap()


def main(arguments: list[str]) -> int:
    """Serves the engine at the other end of the socket until it goes."""
    options = json.loads(arguments[1])
    engine = Channel(socket.socket(fileno=int(arguments[0])))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if options["die_with_parent"]:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != options["parent"]:
            return 1
    wake, wake_writer = socket.socketpair()
    wake.setblocking(False)
    wake_writer.setblocking(False)
    signal.set_wakeup_fd(wake_writer.fileno(), warn_on_full_buffer=False)
    for caught in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(caught, lambda *_: None)
    # The terminal's keys are for the engine.
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_IGN)
    module, _, name = options["entry"].partition(":")
    try:
        entry = getattr(importlib.import_module(module), name)
        with suppress(ChannelClosed, ChannelTimeout):
            engine.send({"event": "ready"})
        _Server(engine, entry).serve(wake)
    except ImportError as error:
        with suppress(ChannelClosed, ChannelTimeout):
            engine.send({"event": "broken", "reason": f"cannot import {module}: {error}"})
        return 1
    finally:
        shutil.rmtree(options["directory"], ignore_errors=True)
    return 0


def _become_rank(
    message: dict[str, Any],
    rank: int,
    descriptors: list[int],
    server: int,
    entry: Callable[[RankStart], None],
) -> NoReturn:
    """Makes a fork of the server into a rank; never returns."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for caught in (
            signal.SIGCHLD,
            signal.SIGTERM,
            signal.SIGINT,
            signal.SIGHUP,
            signal.SIGQUIT,
        ):
            signal.signal(caught, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != server:
            os._exit(1)
        control, out, err = descriptors
        null = os.open(os.devnull, os.O_RDONLY)
        for source, wanted in ((null, 0), (out, 1), (err, 2)):
            os.dup2(source, wanted)
        _close_all_but({0, 1, 2, control})
        _limit(message["limits"])
        entry(
            RankStart(
                rank=rank,
                ranks=message["ranks"],
                channel=socket.socket(fileno=control),
                options=message["options"],
            )
        )
        code = 0
    except BaseException as error:  # a rank must not run on into the loop of the server
        with suppress(OSError):
            os.write(2, f"rank {rank}: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _limit(limits: dict[str, Any]) -> None:
    with suppress(OSError):  # not allowed in some containers
        Path("/proc/self/oom_score_adj").write_text("1000")
    wanted = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 1024)]
    wanted.append((resource.RLIMIT_FSIZE, limits["file_bytes"]))
    if limits["addresses"]:  # a GPU's driver reserves far more than there is memory
        now, room = _status_bytes(), limits["memory_bytes"]
        wanted += [
            # Private writable memory; then all address space, in which the shared buffers lie too.
            (resource.RLIMIT_DATA, now["VmData"] + room),
            (resource.RLIMIT_AS, now["VmSize"] + room + limits["shared_bytes"]),
        ]
    for limit, value in wanted:
        _, hard = resource.getrlimit(limit)
        capped = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (capped, capped))


def _status_bytes() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(":") for line in lines)
        if name in ("VmData", "VmSize")
    }


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names, and no open folder meanwhile
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


def _signal_group(leader: int, sig: signal.Signals) -> None:
    # A rank leads its group and is not reaped yet, so the number cannot mean anybody else.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, sig)
    kill_process(leader, sig)


def _oom_kills() -> int:
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
