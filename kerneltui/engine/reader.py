"""Serves a recorded session for replay: the journal as events, and sources on demand.

Run as `python -m kerneltui.engine.reader SESSION|BUNDLE SOCKET`; it ends with its parent's pipe. The
terminal folds the events itself, with the same fold as live.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kerneltui.engine.commands import READ_COMMANDS, answer_machine_code, read
from kerneltui.engine.connection import Connection, Listener
from kerneltui.engine.errors import OpeningFailed
from kerneltui.engine.opening import kernel_path, read_events
from kerneltui.engine.recorder import Recorder, unheard
from kerneltui.model.command import ReadMachineCode, decode_command
from kerneltui.model.errors import RecordError, UserError
from kerneltui.model.event import Event, SessionOpened, encode_event
from kerneltui.model.frames import PROTOCOL, encode_frame
from kerneltui.model.record import parse_json, to_plain
from kerneltui.model.state import State, fold
from kerneltui.session.bundle import is_bundle, open_bundle
from kerneltui.session.repository import Session

__all__ = ["Recording", "main", "opened_recording"]

CHUNK = 500


class Recording:
    """A recorded session: its events, and its sources by the final state."""

    def __init__(self, session: Session) -> None:
        self.events: list[Event] = list(read_events(session))
        if not self.events or not isinstance(self.events[0], SessionOpened):
            raise OpeningFailed(
                f"{session.path}: the journal does not begin with an opened session"
            )
        opened = self.events[0]
        path = kernel_path(opened.workload, opened.seed_file)
        self.recorder = Recorder(session, fold(self.events), path, unheard)

    def state_at(self, step: int | None) -> State:
        """Returns the state after a step, counted from 1; None is the end.

        Raises:
            OpeningFailed: There is no such step.
        """
        if step is None:
            return self.recorder.state
        if not 1 <= step <= len(self.events):
            raise OpeningFailed(f"there is no step {step}; the session has {len(self.events)}")
        return fold(self.events[:step])


@contextmanager
def opened_recording(source: Path) -> Generator[Recording]:
    """Opens a session folder or a bundle for reading.

    Raises:
        SessionError: It is neither, or damaged.
        OpeningFailed: It holds no session.
        RecordError: An event cannot be read.
    """
    if not source.exists():
        raise OpeningFailed(f"{source}: no such session or bundle; see the folder sessions/")
    if is_bundle(source):
        with (
            tempfile.TemporaryDirectory(prefix="kerneltui-replay-") as folder,
            open_bundle(source, Path(folder) / "session", writable=False) as session,
        ):
            yield Recording(session)
        return
    if source.is_file():
        raise OpeningFailed(f"{source}: is not a bundle of a session")
    with Session.open(source, writable=False) as session:
        yield Recording(session)


class _ReplayHost:
    """Answers clients of a recording; nobody decides here."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._lock = threading.Lock()

    def welcome(self, client: Connection, *, readonly: bool) -> None:
        """Sends the journal in chunks."""
        del readonly
        client.put(
            encode_frame(
                {
                    "frame": "welcome",
                    "protocol": PROTOCOL,
                    "writer": False,
                    "replay": True,
                    "position": 0,
                    "state": to_plain(State()),
                }
            )
        )
        events = self._recording.events
        for first in range(0, len(events), CHUNK):
            part = [parse_json(encode_event(event)) for event in events[first : first + CHUNK]]
            client.put(encode_frame({"frame": "journal", "events": part}))
        client.put(encode_frame({"frame": "journal_end"}))

    def leave(self, client: Connection) -> None:
        """Nothing to forget."""

    def command(self, client: Connection, number: Any, plain: dict[str, Any]) -> None:
        """Answers queries and refuses all else."""

        def reply(ok: bool, data: Any) -> None:
            answer = {"frame": "reply", "id": number, "ok": ok, ("data" if ok else "error"): data}
            client.put(encode_frame(answer))

        try:
            command = decode_command(plain)
            if not isinstance(command, READ_COMMANDS):
                raise RecordError(
                    "this is a replay: nothing can be decided; open the session instead"
                )
            with self._lock:
                if isinstance(command, ReadMachineCode):
                    answer_machine_code(self._recording.recorder, command, reply)
                else:
                    reply(True, read(self._recording.recorder, command))
        except UserError as error:
            reply(False, str(error))


def main(arguments: list[str]) -> int:
    """Serves a recording until standard input is closed."""
    source, path = Path(arguments[0]), Path(arguments[1])
    try:
        with opened_recording(source) as recording:
            listener = Listener(path)
            listener.start(_ReplayHost(recording))
            sys.stdin.buffer.read()
            listener.close()
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
