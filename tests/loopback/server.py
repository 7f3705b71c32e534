"""The loopback server: real sockets, real server-sent events, answers from a script.

with Loopback(read_script(path)) as server:
    ...  # ANTHROPIC_BASE_URL = server.url
server.check()
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from loopback.script import Step, flat

_LOOK_S = 0.1
_CHECK_S = 20.0


@dataclass(slots=True)
class Recorded:
    """A request that came; `left` is set once the client went away before the end."""

    step: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    answered: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)

    @property
    def text(self) -> str:
        return flat(self.body)


class Loopback:
    """Answers from the steps until it is closed.

    Args:
        steps: The script.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self.requests: list[Recorded] = []
        self.problems: list[str] = []
        self.closing = threading.Event()
        self._guard = threading.Condition()
        handler = type("Handler", (_Handler,), {"loopback": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Loopback:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def check(self) -> None:
        """Fails if a request fitted no step, or a step was not taken as often as it should be."""
        with self._guard:  # the client may be told of a stop before its last request is read
            self._guard.wait_for(
                lambda: self.problems or all(step.done for step in self.steps), _CHECK_S
            )
        assert not self.problems, "\n".join(self.problems)
        unused = [step.name or str(step.expect) for step in self.steps if not step.done]
        assert not unused, f"never asked for: {unused}"

    def take(
        self, body: dict[str, Any], path: str, headers: dict[str, str]
    ) -> tuple[Step, Recorded]:
        """Chooses the step for a request."""
        text = flat(body)
        with self._guard:
            step = next((one for one in self.steps if one.open and one.fits(text)), None)
            if step is None:
                self.problems.append(f"no step fits this request:\n{text}")
                message = "the script has no answer to this"
                step = Step(
                    "?", status=400, error={"type": "invalid_request_error", "message": message}
                )
            step.taken += 1
            recorded = Recorded(step.name, path, headers, body)
            self.requests.append(recorded)
            self._guard.notify_all()
        return step, recorded

    def wait_for(self, step: str, seconds: float = 120) -> Recorded:
        """Waits until the step of that name was taken, and returns its first request."""
        with self._guard:
            self._guard.wait_for(lambda: any(r.step == step for r in self.requests), seconds)
            found = [request for request in self.requests if request.step == step]
        assert found, f"{step} was never asked for"
        return found[0]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    loopback: Loopback

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", "0"))
        body = json.loads(self.rfile.read(length))
        step, recorded = self.loopback.take(body, self.path, dict(self.headers.items()))
        try:
            self._answer(step, recorded)
        except OSError:
            recorded.left.set()
            self.close_connection = True
        finally:
            recorded.answered.set()

    def _answer(self, step: Step, recorded: Recorded) -> None:
        self._wait(step.delay_ms)
        while step.until is not None and not step.until.is_set():
            self._wait(50)
        if step.cut == "before":
            self._cut(reset=True)
        elif step.status != 200:
            self._refuse(step)
        elif step.raw:
            self._send_raw(step)
        else:
            self._stream(step, step.events(str(recorded.body.get("model", "")), recorded.text))

    def _refuse(self, step: Step) -> None:
        error = {"type": "api_error", "message": "scripted", **step.error}
        text = json.dumps({"type": "error", "error": error}).encode()
        self.send_response(step.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        for name, value in step.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def _send_raw(self, step: Step) -> None:
        text = step.raw.encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _stream(self, step: Step, events: Sequence[tuple[str, dict[str, Any]]]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        for name, value in step.headers.items():
            self.send_header(name, value)
        self.end_headers()
        for number, (name, data) in enumerate(events):
            if step.cut and number >= step.cut_after:
                break
            self._event(name, data)
            self._wait(step.pace_ms)
        if step.cut == "error":
            self._event("error", {"type": "error", "error": dict(step.error)})
        if step.cut in ("close", "reset"):
            self._cut(reset=step.cut == "reset")
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _event(self, name: str, data: dict[str, Any]) -> None:
        text = f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(text), text))
        self.wfile.flush()

    def _wait(self, milliseconds: int) -> None:
        end = time.monotonic() + milliseconds / 1000
        while True:
            # A client that went away is seen at once, not when a buffer is full or a long wait is over.
            with suppress(BlockingIOError):
                if not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    raise OSError("the client went away")
            left = end - time.monotonic()
            if left <= 0:
                return
            if self.loopback.closing.wait(min(left, _LOOK_S)):
                raise OSError("the server is closed")

    def _cut(self, *, reset: bool) -> None:
        self.close_connection = True
        if reset:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            os.close(self.connection.detach())

    def finish(self) -> None:
        with suppress(OSError, ValueError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:
        pass
