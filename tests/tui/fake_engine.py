"""An engine made of paper: it speaks the protocol over a Unix socket from a recorded session.

By hand: `python tests/tui/fake_engine.py SOCKET [--replay] [--readonly]`, then connect a terminal, or
`python tests/tui/fake_engine.py --terminal [--replay]` for both at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

from gpu_session import on_gpus  # noqa: E402
from model_session import stream, with_models  # noqa: E402
from tui_record import LOGS, record  # noqa: E402
from tui_session import SECOND, Session  # noqa: E402

from kerneltui.model.candidate import DecisionKind  # noqa: E402
from kerneltui.model.command import (  # noqa: E402
    Accept,
    ChooseModel,
    Command,
    Constrain,
    Edit,
    Interrupt,
    Profile,
    Progress,
    ReadLabNotes,
    ReadLog,
    ReadMachineCode,
    ReadNotes,
    ReadSource,
    Rebench,
    Redo,
    Reject,
    SetBudget,
    SetPaused,
    SetRule,
    Steer,
    StopEngine,
    TakeOver,
    Undo,
    WriteNotes,
    decode_command,
)
from kerneltui.model.event import (  # noqa: E402
    BudgetSet,
    ConstraintSet,
    Decided,
    Decision,
    Event,
    ModelChosen,
    NotesWritten,
    PauseSet,
    RuleSet,
    Steered,
    encode_event,
)
from kerneltui.model.frames import FrameReader, encode_frame  # noqa: E402
from kerneltui.model.reading import encode_readings  # noqa: E402
from kerneltui.model.record import parse_json, to_plain  # noqa: E402
from kerneltui.model.state import State, fold  # noqa: E402

ROUNDS = 22
LAB_NOTES = "# Notes\n\nWhat was learned in this session.\n\n- KC 512 pays from K = 1024 on\n"
log_file: list[Path] = []


def options_log(command: Command) -> None:
    """Writes down a command that came, when a file was named for it."""
    for path in log_file:
        with path.open("a") as file:
            print(command, file=file)


class Paper:
    """The session behind the socket: answers commands with events and replies."""

    def __init__(self, session: Session, *, writer: bool = True, replay: bool = False) -> None:
        self.session = session
        self.state = fold(session.events)
        self.writer = writer
        self.replay = replay
        self.commands: list[Command] = []
        self.goes_on = ""
        self.refuse = ""

    @property
    def now(self) -> int:
        return self.state.at + SECOND

    def welcome(self) -> list[dict[str, Any]]:
        state = State() if self.replay else self.state
        frames: list[dict[str, Any]] = [
            {
                "frame": "welcome",
                "protocol": 1,
                "writer": self.writer,
                "replay": self.replay,
                "position": state.position,
                "state": to_plain(state),
            }
        ]
        if self.replay:
            plain = [parse_json(encode_event(event)) for event in self.session.events]
            frames += [
                {"frame": "journal", "events": plain[i : i + 50]} for i in range(0, len(plain), 50)
            ]
            frames.append({"frame": "journal_end"})
        else:
            frames += [self.progress(part) for part in self.scene()]
        return frames

    def progress(self, progress: Progress) -> dict[str, Any]:
        return {"frame": "progress", "progress": to_plain(progress)}

    def gpus(self) -> list[Progress]:
        """Two readings a second apart, so that rates are known; none on a target without GPUs."""
        found: list[Progress] = []
        for second in range(2 if self.session.readings else 0):
            readings = [
                replace(
                    reading,
                    at_ns=reading.at_ns + second * SECOND,
                    link_bytes=None
                    if reading.link_bytes is None
                    else reading.link_bytes + second * 171_000_000_000,
                )
                for reading in self.session.readings
            ]
            extra = {"readings": encode_readings(readings)}
            found.append(Progress("gpu", "", "", at=self.now, extra=extra))
        return found

    def scene(self) -> list[Progress]:
        at = self.now - 14 * SECOND
        if self.state.calls:
            return [replace(part, at=at) for part in stream()]
        return [
            *self.gpus(),
            Progress("phase", "slow", "proposing c0032", at=at),
            Progress("phase", "fast", "waits: bench c0029", at=at),
            Progress("round", "c0029", "", 13, ROUNDS, at),
            Progress("job", "c0028", "g++ -O3 -march=native   4.1 s   cached: no"),
            Progress("job", "c0028", "verify 12 shapes, 6 seeds, 2 and 3 ranks   2.8 s   ok"),
            Progress("job", "c0028", "bench 11 rounds x 5 shapes, then 3 process groups   9.6 s"),
            Progress("job", "c0029", "g++ -O3 -march=native   4.3 s   cached: no"),
            Progress("job", "c0029", "verify 12 shapes, 6 seeds, 2 and 3 ranks   2.9 s   ok"),
        ]

    def take(self, number: int, command: Command) -> list[dict[str, Any]]:
        """Returns the frames that answer a command."""
        self.commands.append(command)
        query = isinstance(
            command, ReadSource | ReadLog | ReadNotes | ReadLabNotes | ReadMachineCode
        )
        error = ""
        if isinstance(command, ReadMachineCode) and command.candidate not in self.session.machine:
            error = "no machine code here: no nvcc: not in CUDA_HOME, PATH or /usr/local/cuda"
        if not query:
            error = self.refuse
            if self.replay:
                error = error or "a replay is read only"
            elif not self.writer and not isinstance(command, TakeOver):
                error = error or "this terminal is read only"
        if error:
            return [{"frame": "reply", "id": number, "ok": False, "error": error}]
        frames: list[dict[str, Any]] = []
        for event in self.events_for(command):
            self.state.apply(event)
            frames.append(
                {
                    "frame": "event",
                    "position": self.state.position,
                    "event": parse_json(encode_event(event)),
                }
            )
        if isinstance(command, TakeOver):
            self.writer = True
            frames.append({"frame": "writer", "writer": True})
        data = self.data_for(command)
        return [*frames, {"frame": "reply", "id": number, "ok": True, "data": data}]

    def data_for(self, command: Command) -> dict[str, Any]:
        session = self.session
        match command:
            case ReadSource(candidate=id_):
                parent = session.parents.get(id_, "")
                return {
                    "candidate": id_,
                    "sha": session.shas[id_],
                    "file": "kernels/gemm_allgather/kernel.cpp",
                    "source": session.sources[id_],
                    "parent": parent,
                    "parent_source": session.sources.get(parent, ""),
                }
            case ReadLog(log=log):
                return {"text": LOGS.get(log, "")}
            case ReadNotes(candidate=id_):
                return {"text": json.dumps(session.notes.get(id_, {}))}
            case ReadLabNotes():
                return {"text": self.state.notes or LAB_NOTES}
            case ReadMachineCode(candidate=id_):
                return session.machine[id_]
            case Accept(hunks=hunks) if hunks is not None:
                return {"text": "c0033 proposed from the chosen hunks"}
            case Interrupt():
                left = self.goes_on
                text = "what slow thinks about" if left else "the evaluation of c0032"
                return {"text": f"interrupting {text}", "left": left}
            case _:
                return {}

    def setting(self, command: SetBudget | WriteNotes | ChooseModel) -> Event:
        at = self.now
        match command:
            case WriteNotes(text=text):
                return NotesWritten(at=at, text=text)
            case ChooseModel(role=role, model=model):
                return ModelChosen(at=at, role=role, model=model)
            case SetBudget(candidates=candidates, time_ns=time_ns, micro_usd=money):
                money = None if command.no_money_limit else money or self.state.budget_micro_usd
                return BudgetSet(at=at, candidates=candidates, time_ns=time_ns, micro_usd=money)

    def events_for(self, command: Command) -> list[Event]:
        at, state = self.now, self.state
        if isinstance(command, SetBudget | WriteNotes | ChooseModel):
            return [self.setting(command)]
        match command:
            case Accept(candidate=id_, sha=sha, hunks=None, note=note):
                return [self._decided(Decision.ACCEPT, id_, sha, note)]
            case Reject(candidate=id_, sha=sha, note=note):
                return [self._decided(Decision.REJECT, id_, sha, note)]
            case Undo() if state.decisions:
                last = state.decisions[-1]
                event = self._decided(Decision.UNDO, last.candidate, last.sha, "")
                return [replace(event, of=last.action)]
            case Redo() if state.undone:
                last = state.undone[-1]
                event = self._decided(Decision.REDO, last.candidate, last.sha, "")
                return [replace(event, of=last.action)]
            case Steer(to=to, text=text):
                return [Steered(at=at, number=len(state.steers) + 1, to=to, text=text)]
            case Constrain(kind=kind, field=field, value=value, active=active):
                return [ConstraintSet(at=at, kind=kind, field=field, value=value, active=active)]
            case SetRule(rule=rule):
                return [RuleSet(at=at, rule=rule)]
            case SetPaused(paused=paused):
                return [PauseSet(at=at, paused=paused)]
            case _:
                assert isinstance(
                    command,
                    Accept
                    | Undo
                    | Redo
                    | Rebench
                    | Edit
                    | Profile
                    | Interrupt
                    | TakeOver
                    | StopEngine
                    | ReadSource
                    | ReadLog
                    | ReadNotes
                    | ReadLabNotes
                    | ReadMachineCode,
                )
                return []

    def _decided(self, action: Decision, id_: str, sha: str, note: str) -> Decided:
        assert self.state.candidates[id_].decision is DecisionKind.NONE or action in (
            Decision.UNDO,
            Decision.REDO,
        )
        return Decided(
            at=self.now, action=action, candidate=id_, sha=sha, by="human", main=sha, note=note
        )


async def serve(path: Path, paper: Paper, ready: Callable[[], None], *, chatter: bool) -> None:
    """Serves until it is told to stop."""
    stopped = asyncio.Event()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        talking: asyncio.Task[None] | None = None
        try:
            while data := await reader.read(65536):
                for frame in frames.feed(data):
                    if frame["frame"] == "hello":
                        answers = paper.welcome()
                        if chatter and not paper.replay:
                            talking = asyncio.create_task(talk(writer, paper))
                    else:
                        command = decode_command(frame["command"])
                        answers = paper.take(frame["id"], command)
                        options_log(command)
                        if isinstance(command, StopEngine):
                            stopped.set()
                    for answer in answers:
                        writer.write(encode_frame(answer))
                    await writer.drain()
        except ConnectionError:
            pass
        finally:
            if talking:
                talking.cancel()
            writer.close()

    server = await asyncio.start_unix_server(client, path)
    ready()
    async with server:
        await stopped.wait()


async def talk(writer: asyncio.StreamWriter, paper: Paper) -> None:
    """Sends progress as a working engine does."""
    step = 13
    while True:
        await asyncio.sleep(0.4)
        step = step % ROUNDS + 1
        for progress in (
            Progress("round", "c0029", "", step, ROUNDS),
            Progress("job", "c0029", f"bench round {step} of {ROUNDS}"),
        ):
            writer.write(encode_frame(paper.progress(progress)))
        await writer.drain()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("socket", nargs="?")
    parser.add_argument("--terminal", action="store_true", help="show the terminal as well")
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--readonly", action="store_true")
    parser.add_argument("--gpus", action="store_true", help="a session on two GPUs")
    parser.add_argument("--models", action="store_true", help="a session with language models")
    parser.add_argument("--quiet", action="store_true", help="send no progress by itself")
    parser.add_argument(
        "--delay", type=float, default=0.0, help="seconds the engine takes to start"
    )
    parser.add_argument("--session", type=Path, help="what T replays")
    parser.add_argument("--commands", help="append the commands that come to this file")
    options = parser.parse_args()
    if options.commands:
        log_file.append(Path(options.commands))

    def paper() -> Paper:
        start = time.time_ns() - 640 * SECOND
        return Paper(
            on_gpus(start)
            if options.gpus
            else with_models(start)
            if options.models
            else record(start),
            writer=not options.readonly,
            replay=options.replay,
        )

    if not options.terminal:
        path = Path(options.socket)
        asyncio.run(serve(path, paper(), lambda: None, chatter=not options.quiet))
        return 0

    from kerneltui.tui import run

    folder = tempfile.TemporaryDirectory(prefix="kerneltui-fake-")
    path = Path(options.socket or f"{folder.name}/engine.sock")

    def connect(report: Callable[[str], None]) -> str:
        ready = threading.Event()

        def engine() -> None:
            asyncio.run(serve(path, paper(), ready.set, chatter=not options.quiet))

        report("starting the engine…")
        time.sleep(options.delay)
        threading.Thread(target=engine, daemon=True).start()
        ready.wait()
        return str(path)

    ended = run(connect, readonly=options.readonly, replay=options.replay, session=options.session)
    if ended.message:
        print(ended.message)
    print(f"stop_engine={ended.stop_engine}")
    sys.stdout.flush()
    os._exit(ended.exit_code)


if __name__ == "__main__":
    sys.exit(main())
