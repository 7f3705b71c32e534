"""One attempt: a request is sent, its stream is read in a thread of its own, and can be cut at any time.

The SDK blocks while a server is silent. So it runs in a second thread, and the thread that asked looks at a
queue, at the clock and at whether somebody wants the end. The line is cut by shutting the socket down, which
wakes the reader whatever it waits for.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kerneltui.agents.model_port import Chunk, ChunkKind, Usage

__all__ = ["Attempt", "Ending", "Heard", "Line", "NotTheApi", "current_line"]

_LOOK_S = 0.05
_JOIN_S = 0.5
_CHARACTERS_A_TOKEN = 4
_FULL = 1_000


class Ending(StrEnum):
    """How an attempt ended."""

    COMPLETE = "complete"
    """The server said that it is done."""
    BROKEN = "broken"
    """Something was raised on the way."""
    TORN = "torn"
    """The stream ended without the word that it is complete."""
    LATE = "late"
    """It took longer than an attempt may."""
    STOPPED = "stopped"
    """Somebody asked for the end."""


class NotTheApi(OSError):
    """The server sends something else than the Messages API."""


class Line:
    """The connection of an attempt. Any thread may cut it, also before it is made."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._cut = False
        self._guard = threading.Lock()

    def trace(self, name: str, info: dict[str, Any]) -> None:
        """Takes what the HTTP client tells of its work, and keeps the sockets that it opens."""
        if not name.endswith((".connect_tcp.complete", ".start_tls.complete")):
            return
        stream = info.get("return_value")
        opened = stream.get_extra_info("socket") if stream is not None else None
        if opened is None:
            return
        with self._guard:
            self._sockets.append(opened)
            cut = self._cut
        if cut:
            _shut(opened)

    @property
    def made(self) -> bool:
        """Whether there was a connection."""
        with self._guard:
            return bool(self._sockets)

    def cut(self) -> None:
        """Ends the connection, and any that is made later."""
        with self._guard:
            self._cut = True
            opened = list(self._sockets)
        for one in reversed(opened):
            _shut(one)


_lines = threading.local()


def current_line() -> Line | None:
    """The line of the attempt that this thread reads, for the hook that every request passes."""
    return getattr(_lines, "line", None)


@dataclass(slots=True)
class _ToolText:
    name: str
    pieces: list[str] = field(default_factory=lambda: list[str]())
    whole: str = ""

    @property
    def json(self) -> str:
        return "".join(self.pieces) or self.whole


@dataclass(slots=True)
class Heard:
    """What has come of a reply, whole or not.

    Attributes:
        text: Without thinking.
        tools: Name and input of every call of a tool, the input as JSON text.
        model: Who answers, by the server's word.
        stop_reason: Why it ended; empty if that was never said.
        refusal: What the server says about a refusal.
        started: Whether the server has begun to answer.
        told: Tokens by the server's word.
        characters: Heard of thinking, text and input of tools.
    """

    text: str = ""
    tools: list[tuple[str, str]] = field(default_factory=lambda: list[tuple[str, str]]())
    model: str = ""
    stop_reason: str = ""
    refusal: str = ""
    started: bool = False
    told: Usage = field(default_factory=Usage)
    characters: int = 0

    def usage(self, *, complete: bool) -> tuple[Usage, int]:
        """Tokens of this attempt, and how many of them are an estimate.

        A stream that was cut has told what went in, but not all that came out; the rest is the length of what
        was heard, by four characters a token.
        """
        if complete or not self.started:
            return self.told, 0
        more = max(0, -(-self.characters // _CHARACTERS_A_TOKEN) - self.told.output)
        return self.told + Usage(output=more), more


class Attempt:
    """Sends one request and hears what comes.

    Args:
        send: Sends it and returns the events of the stream; called in the reader's thread.
        limit_ms: For all of it.
        clock: Seconds.
    """

    def __init__(
        self,
        send: Callable[[], Iterator[Any]],
        limit_ms: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._limit_s = limit_ms / 1000
        self._clock = clock
        self._line = Line()
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue(_FULL)
        self._left = threading.Event()
        self._blocks: dict[int, _ToolText | None] = {}
        self._out: list[Chunk] = []
        self.heard = Heard()
        self.error: BaseException | None = None

    @property
    def sent(self) -> bool:
        """Whether there was a connection, so that the server may have worked."""
        return self._line.made

    def run(self, hear: Callable[[Chunk], None], stop: Callable[[], bool]) -> Ending:
        """Hears the reply to its end, or until somebody asks for the end. The line is cut in any case."""
        reader = threading.Thread(target=self._read, name="model-stream", daemon=True)
        deadline = self._clock() + self._limit_s
        reader.start()
        try:
            while True:
                if stop():
                    return Ending.STOPPED
                if self._clock() > deadline:
                    return Ending.LATE
                try:
                    what, value = self._events.get(timeout=_LOOK_S)
                except queue.Empty:
                    continue
                if what == "error":
                    self.error = value
                    return Ending.BROKEN
                if what == "end":
                    return Ending.TORN
                try:
                    complete = self._take(value)
                except (AttributeError, TypeError, KeyError) as error:
                    self.error = NotTheApi(f"{type(error).__name__}: {error}")
                    return Ending.BROKEN
                for chunk in self._out:
                    hear(chunk)
                self._out.clear()
                if complete:
                    return Ending.COMPLETE
        finally:
            self._left.set()
            self._line.cut()
            # A thread that hangs in a name look-up ends by itself; nobody waits long for it.
            reader.join(_JOIN_S)

    def _read(self) -> None:
        _lines.line = self._line
        try:
            for event in self._send():
                if not self._put("event", event):
                    return
            self._put("end", None)
        except BaseException as error:  # handed over to the thread that asked
            self._put("error", error)
        finally:
            _lines.line = None

    def _put(self, what: str, value: Any) -> bool:
        """Waits while the queue is full; False once nobody listens."""
        while not self._left.is_set():
            with suppress(queue.Full):
                self._events.put((what, value), timeout=_LOOK_S)
                return True
        return False

    def _take(self, event: Any) -> bool:
        """Takes an event of the Messages API; True if it is the last."""
        match getattr(event, "type", ""):
            case "message_start":
                self.heard.started = True
                self.heard.model = str(event.message.model or "")
                self._count(event.message.usage)
            case "content_block_start":
                self._begin(event.index, event.content_block)
            case "content_block_delta":
                self._piece(event.index, event.delta)
            case "message_delta":
                self._count(event.usage)
                self._stopped(event.delta)
            case "message_stop":
                self._finish()
                return True
            case _:
                pass  # newer servers may say more
        return False

    def _begin(self, index: int, block: Any) -> None:
        kind = getattr(block, "type", "")
        self._blocks[index] = None
        if kind == "tool_use":
            given: Any = getattr(block, "input", None)
            self._blocks[index] = _ToolText(str(block.name), whole=_json(given))
        elif kind == "text" and block.text:
            self._text(block.text)
        elif kind == "thinking" and block.thinking:
            self._say(ChunkKind.THINKING, block.thinking)

    def _piece(self, index: int, delta: Any) -> None:
        match getattr(delta, "type", ""):
            case "text_delta":
                self._text(delta.text)
            case "thinking_delta":
                self._say(ChunkKind.THINKING, delta.thinking)
            case "input_json_delta":
                tool = self._blocks.get(index)
                if tool is not None:
                    tool.pieces.append(delta.partial_json)
                self._say(ChunkKind.TOOL, delta.partial_json)
            case _:
                pass  # signatures and citations are of no use here

    def _text(self, text: str) -> None:
        self.heard.text += text
        self._say(ChunkKind.TEXT, text)

    def _say(self, kind: ChunkKind, text: str) -> None:
        if text:
            self.heard.characters += len(text)
            self._out.append(Chunk(kind, text))

    def _count(self, usage: Any) -> None:
        """The counts of a stream are sums from its begin, so none ever becomes less."""
        if usage is None:
            return
        told = self.heard.told

        def newer(name: str, old: int) -> int:
            value = getattr(usage, name, None)
            return max(value, old) if isinstance(value, int) else old

        self.heard.told = Usage(
            input=newer("input_tokens", told.input),
            output=newer("output_tokens", told.output),
            cache_read=newer("cache_read_input_tokens", told.cache_read),
            cache_write=newer("cache_creation_input_tokens", told.cache_write),
        )

    def _stopped(self, delta: Any) -> None:
        reason = getattr(delta, "stop_reason", None)
        if reason:
            self.heard.stop_reason = str(reason)
        details = getattr(delta, "stop_details", None)
        if details is not None:
            parts = (getattr(details, "category", None), getattr(details, "explanation", None))
            self.heard.refusal = ": ".join(str(part) for part in parts if part)

    def _finish(self) -> None:
        self.heard.tools = [
            (tool.name, tool.json) for _, tool in sorted(self._blocks.items()) if tool is not None
        ]


def _json(value: Any) -> str:
    return json.dumps(value) if value else ""


def _shut(opened: socket.socket) -> None:
    with suppress(OSError, ValueError):
        opened.shutdown(socket.SHUT_RDWR)
