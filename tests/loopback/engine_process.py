"""An engine in a process of its own that asks a model over HTTP, for tests that kill it.

    python tests/loopback/engine_process.py SESSION --candidates 3 --hold model_call_ended:2

The model is whatever ANTHROPIC_BASE_URL names. Evaluations are quick stand-ins; everything else is the engine
itself. Standard output has a line for everything that can be waited for: `event POSITION HASH KIND` once an
event is durable, `heard KIND` for a piece of a stream, `holds WHAT` when the engine stands still at the
instant that was asked for, so that it can be killed exactly there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def tell(line: str) -> None:
    """Writes a line that a reader sees whole or not at all."""
    os.write(1, f"{line}\n".encode())


def stand_still(what: str) -> None:
    """Keeps this thread here until the process is killed."""
    tell(f"holds {what}")
    threading.Event().wait()


def main() -> None:
    """Runs an engine to the end of its search."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("session", type=Path)
    parser.add_argument("--candidates", type=int, default=3)
    parser.add_argument(
        "--hold", default="", help="KIND:N, or commit:N before an event tells of it"
    )
    parser.add_argument("--slow", type=float, default=0.0, help="seconds that a stage may take")
    parser.add_argument("--stay", action="store_true", help="until it is told to stop")
    run(parser.parse_args())


def run(arguments: argparse.Namespace) -> None:
    """Puts the engine together and runs it."""
    sys.path.insert(0, str(ROOT / "tests" / "unit"))
    from engine_fakes import FakeEvaluator

    from kerneltui.engine.opening import Start
    from kerneltui.engine.place import Place
    from kerneltui.engine.run import EngineSetup, run_engine
    from kerneltui.engine.tuner import Options
    from kerneltui.model.command import Progress
    from kerneltui.model.event import AcceptRule, Event, encode_event, event_kind
    from kerneltui.model.state import State
    from kerneltui.session.repository import Session

    hold, _, count = arguments.hold.partition(":")
    left = [int(count or 1)]

    def reached(what: str) -> None:
        if what == hold:
            left[0] -= 1
            if not left[0]:
                stand_still(what)

    def acknowledge(event: Event, state: State) -> None:
        digest = hashlib.sha256(encode_event(event)).hexdigest()
        tell(f"event {state.position} {digest} {event_kind(event)}")
        reached(event_kind(event))

    def progressed(progress: Progress) -> None:
        if progress.kind == "stream":
            tell(f"heard {progress.about.partition(':')[2]}")

    write = Session.write_candidate

    def write_and_tell(session: Session, *given: Any, **named: Any) -> str:
        sha = write(session, *given, **named)
        reached("commit")
        return sha

    Session.write_candidate = write_and_tell

    class Slow(FakeEvaluator):
        def evaluate(self, *given: Any, **named: Any) -> Any:
            time.sleep(random.uniform(0.0, arguments.slow))
            outcome = FakeEvaluator.evaluate(self, *given, **named)
            time.sleep(random.uniform(0.0, arguments.slow))
            return outcome

    session = arguments.session
    place = Place(
        session, ROOT / "workloads" / "gemm_allgather", exists=(session / ".git" / "HEAD").exists()
    )
    setup = EngineSetup(
        place=place,
        start=Start("cpu", "claude", 1, AcceptRule.AUTO, arguments.candidates, None),
        options=Options(undecided=None, leave_when_done=not arguments.stay),
        make_evaluator=lambda workload, spec: Slow(),
        models_alone=True,
        on_event=acknowledge,
        on_progress=progressed,
    )
    run_engine(setup)


@dataclass
class EngineProcess:
    """One run of it, from the outside.

    Attributes:
        process: The engine; leader of a process group and a session of its own.
        log: Where its standard error goes.
        lines: What it has told.
        acknowledged: Hashes of events that it has called durable, by position.
    """

    process: subprocess.Popen[bytes]
    log: Path
    lines: list[str] = field(default_factory=list)
    acknowledged: dict[int, str] = field(default_factory=dict)
    _told: threading.Condition = field(default_factory=threading.Condition)
    _over: bool = False

    @classmethod
    def start(cls, session: Path, environment: dict[str, str], *options: str) -> EngineProcess:
        """Starts an engine on a session, which is made if it does not exist."""
        command = [sys.executable, __file__, str(session), *options]
        log = session.with_name(f"{session.name}.stderr")
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, **environment},
            )
        started = cls(process, log)
        threading.Thread(target=started._listen, daemon=True).start()
        return started

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                with self._told:
                    self._take(line.decode().rstrip("\n"))
                    self._told.notify_all()
        with self._told:
            self._over = True
            self._told.notify_all()

    def _take(self, line: str) -> None:
        self.lines.append(line)
        if line.startswith("event "):
            _, position, digest, _ = line.split()
            self.acknowledged[int(position)] = digest

    def until(self, holds: Callable[[list[str]], bool], seconds: float = 60) -> None:
        """Waits until what it has told is enough."""
        with self._told:
            self._told.wait_for(lambda: holds(self.lines) or self._over, seconds)
            enough = holds(self.lines)
        if not enough:
            raise AssertionError(f"never came to it; {self.errors() or self.lines[-5:]}")

    def kill(self) -> None:
        """SIGKILL to the engine alone: what it has started has to see to its own end."""
        self.process.kill()
        self.wait()

    def wait(self, seconds: float = 60) -> int:
        """Waits for its end, hears the last of what it told, and returns the exit code."""
        code = self.process.wait(seconds)
        with self._told:
            self._told.wait_for(lambda: self._over, 10)
        return code

    def errors(self) -> str:
        """The end of its standard error."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-2000:]


if __name__ == "__main__":
    main()
