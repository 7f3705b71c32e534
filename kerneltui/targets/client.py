"""The engine's side of the fork server: requests, exits, and what the ranks print."""

from __future__ import annotations

import itertools
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kerneltui.targets.channel import Channel, ChannelClosed, ChannelTimeout
from kerneltui.targets.environment import child_environment
from kerneltui.targets.errors import ServerFailure
from kerneltui.targets.output import OutputKeeper
from kerneltui.targets.port import RankExit

__all__ = ["ForkServerClient", "exit_from"]

_PIECE = 1 << 16
_PAUSE_AFTER_FULL_PIECE_S = 0.0005  # a rank that floods its output waits; the engine does not


@dataclass(slots=True)
class _Reply:
    came: threading.Event = field(default_factory=threading.Event)
    message: dict[str, Any] = field(default_factory=dict)


class ForkServerClient:
    """Starts the fork server and talks to it. Any thread may call, after `start`.

    Args:
        entry: What runs in a rank, as `module:function`; its module brings torch along.
        directory: A folder that the server removes when it leaves.
        environment: What the server and all ranks find in their environment, beside the short list.
    """

    def __init__(self, entry: str, directory: Path, environment: dict[str, str]) -> None:
        self._entry = entry
        self._directory = directory
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._sending = threading.Lock()
        self._changing = threading.Condition()
        self._replies: dict[int, _Reply] = {}
        self._exits: dict[str, list[RankExit]] = {}
        self._ready = False
        self._gone: str | None = None
        self._ids = itertools.count(1)
        self._pipes: list[tuple[int, OutputKeeper]] = []
        self._closing = False

    def start(self) -> None:
        """Starts the server and returns at once; `wait_ready` waits for torch to be imported.

        Call it from the main thread. The kernel sends the signal of a parent's death when the
        *thread* that forked ends, so a server started elsewhere goes without that signal; it then
        relies on the end of its socket alone.
        """
        ours, theirs = socket.socketpair()
        options = {
            "entry": self._entry,
            "directory": str(self._directory),
            "parent": os.getpid(),
            "die_with_parent": threading.current_thread() is threading.main_thread(),
        }
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-I",
                        "-m",
                        "kerneltui.targets.forkserver",
                        str(theirs.fileno()),
                        json.dumps(options),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),),
                    env=child_environment(self._environment),
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise ServerFailure(f"cannot start the fork server: {error.strerror}") from error
        self._channel = Channel(ours)
        self._wake, self._wake_writer = socket.socketpair()
        self._log = OutputKeeper()
        assert self._process.stdout is not None
        self._pipes.append((os.dup(self._process.stdout.fileno()), self._log))
        self._process.stdout.close()
        self._thread = threading.Thread(target=self._listen, name="kerneltui-ranks", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Process of the server.

        Raises:
            ServerFailure: If it was never started.
        """
        if self._process is None:
            raise ServerFailure("the fork server is not started")
        return self._process.pid

    def wait_ready(self, timeout_s: float) -> None:
        """Waits until the server can fork.

        Raises:
            ServerFailure: If it cannot, or takes longer.
        """
        with self._changing:
            self._changing.wait_for(lambda: self._ready or self._gone is not None, timeout_s)
            if self._gone is not None:
                raise ServerFailure(self._gone)
            if not self._ready:
                raise ServerFailure(f"the fork server was not ready within {timeout_s:.0f} s")

    def ask(
        self, message: dict[str, Any], descriptors: Sequence[int] = (), *, timeout_s: float
    ) -> dict[str, Any]:
        """Sends a request and waits for its answer.

        Raises:
            ServerFailure: If the server is gone, refuses, or does not answer in time.
        """
        number = next(self._ids)
        reply = _Reply()
        with self._changing:
            if self._gone is not None:
                raise ServerFailure(self._gone)
            self._replies[number] = reply
        try:
            with self._sending:
                self._channel.send({**message, "id": number}, descriptors)
            if not reply.came.wait(timeout_s):
                raise ServerFailure(
                    f"the fork server did not answer {message['do']} within {timeout_s:.0f} s"
                )
        except (ChannelClosed, ChannelTimeout) as error:
            raise ServerFailure(self._gone or f"the fork server is gone: {error}") from error
        finally:
            with self._changing:
                self._replies.pop(number, None)
        if "error" in reply.message:
            raise ServerFailure(str(reply.message["error"]))
        return reply.message

    def watch(self, fd: int, keeper: OutputKeeper) -> None:
        """Drains a descriptor into `keeper` until its end, and closes it."""
        with self._changing:
            self._pipes.append((fd, keeper))
        self._nudge()

    def exits(self, group_id: str) -> tuple[RankExit, ...]:
        """Ranks of a group that have ended so far."""
        with self._changing:
            return tuple(self._exits.get(group_id, ()))

    def wait_exit(self, group_id: str, rank: int, timeout_s: float) -> RankExit | None:
        """Waits a while for the end of a rank."""

        def ended() -> RankExit | None:
            return next((e for e in self._exits.get(group_id, ()) if e.rank == rank), None)

        with self._changing:
            self._changing.wait_for(
                lambda: ended() is not None or self._gone is not None, timeout_s
            )
            return ended()

    def forget(self, group_id: str) -> None:
        """Drops the exits of a group that is over."""
        with self._changing:
            self._exits.pop(group_id, None)

    def close(self) -> None:
        """Ends the server and everything under it. May be called again."""
        if self._process is None or self._closing:
            return
        self._closing = True
        with suppress(ChannelClosed, ChannelTimeout), self._sending:
            self._channel.send({"do": "quit", "id": 0}, timeout_s=1.0)
        self._channel.shutdown()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._nudge()
        self._thread.join(10.0)
        self._channel.close()
        self._wake.close()
        self._wake_writer.close()

    def _nudge(self) -> None:
        with suppress(OSError):
            self._wake_writer.send(b"x")

    def _listen(self) -> None:
        """The listening thread: answers, exits, outputs."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            selector.register(self._channel, selectors.EVENT_READ)
            while not (self._closing and self._gone is not None):
                with self._changing:
                    pipes, self._pipes = self._pipes, []
                for fd, keeper in pipes:
                    os.set_blocking(fd, False)
                    selector.register(fd, selectors.EVENT_READ, keeper)
                flooded = False
                for key, _ in selector.select():
                    if key.fileobj is self._wake:
                        self._wake.recv(4096)
                    elif key.fileobj is self._channel:
                        if not self._hear():
                            selector.unregister(self._channel)
                    else:
                        flooded |= _drain(selector, key)
                if flooded:
                    time.sleep(_PAUSE_AFTER_FULL_PIECE_S)
            for key in list(selector.get_map().values()):
                if isinstance(key.fileobj, int):
                    selector.unregister(key.fileobj)
                    os.close(key.fileobj)

    def _hear(self) -> bool:
        try:
            self._channel.feed()
            while (message := self._channel.pending()) is not None:
                self._take(message)
        except ChannelClosed:
            self._lose("the fork server is gone; its last words: " + (self._last_words() or "none"))
            return False
        return True

    def _take(self, message: dict[str, Any]) -> None:
        with self._changing:
            if message.get("event") == "ready":
                self._ready = True
            elif message.get("event") == "broken":
                self._gone = f"the fork server cannot start: {message['reason']}"
            elif message.get("event") == "exit":
                known = self._exits.setdefault(message["group"], [])
                known.append(exit_from(message))
            elif (reply := self._replies.get(message.get("re", 0))) is not None:
                reply.message = message
                reply.came.set()
            self._changing.notify_all()

    def _lose(self, reason: str) -> None:
        with self._changing:
            self._gone = self._gone or reason
            for reply in self._replies.values():
                reply.message = {"error": self._gone}
                reply.came.set()
            self._changing.notify_all()

    def _last_words(self) -> str:
        lines = self._log.kept().text.strip().splitlines()
        return lines[-1] if lines else ""


def exit_from(message: dict[str, Any]) -> RankExit:
    """How a rank ended, from the server's message."""
    return RankExit(
        rank=message["rank"],
        pid=message["pid"],
        exit_code=message["exit_code"],
        signal=message["signal"],
        peak_bytes=message["peak_bytes"],
        oom_suspected=message["oom_suspected"],
    )


def _drain(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> bool:
    """Takes what a pipe holds; True if it may hold more."""
    fd = key.fileobj
    assert isinstance(fd, int)
    try:
        piece = os.read(fd, _PIECE)
    except BlockingIOError:
        return False
    except OSError:
        piece = b""
    if not piece:
        selector.unregister(fd)
        os.close(fd)
        return False
    key.data.add(piece)
    return len(piece) == _PIECE
