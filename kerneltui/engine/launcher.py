"""Starts the engine of a session, or finds the one that runs; used by the terminal, so it is light."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kerneltui.engine.connection import connect
from kerneltui.engine.errors import OpeningFailed
from kerneltui.engine.place import Place
from kerneltui.targets.environment import without_keys

__all__ = ["Launch", "launch_engine", "launch_reader", "running"]

START_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Launch:
    """How a new session begins; the engine reads it as JSON."""

    target: str
    agents: str
    seed: int
    rule: str
    candidates: int | None
    time_ns: int | None


def running(place: Place) -> bool:
    """Whether an engine answers on the session's socket."""
    try:
        connect(place.socket, timeout=2.0).close()
    except OSError:
        return False
    return True


def launch_engine(place: Place, launch: Launch, report: Callable[[str], None]) -> Path:
    """Returns the socket of the session's engine, starting one if none runs.

    Raises:
        OpeningFailed: It did not start; the text is its own line on why.
    """
    if place.exists and running(place):
        report(f"attaching to the engine of {place.session.name}")
        return place.socket
    folder = Path(tempfile.mkdtemp(prefix="kerneltui-start-"))
    setup = folder / "setup.json"
    plain = {
        "session": str(place.session),
        "workload": str(place.workload) if place.workload else None,
        "exists": place.exists,
        "target": launch.target,
        "agents": launch.agents,
        "seed": launch.seed,
        "rule": launch.rule,
        "candidates": launch.candidates,
        "time_ns": launch.time_ns,
    }
    setup.write_text(json.dumps(plain), encoding="utf-8")
    report(f"starting the engine of {place.session.name}")
    log = folder / "engine.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "kerneltui.engine", str(setup)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_LIMIT_S
    while not running(place):
        if process.poll() is not None:
            raise OpeningFailed(_why(folder, log, process.returncode))
        if time.monotonic() > deadline:
            process.terminate()
            raise OpeningFailed(
                f"the engine did not answer within {START_LIMIT_S:.0f} s; see {log}"
            )
        time.sleep(0.02)
    with suppress(OSError):
        log.rename(place.private / "engine.log")
    return place.socket


def launch_reader(
    source: Path, report: Callable[[str], None]
) -> tuple[Path, subprocess.Popen[bytes]]:
    """Starts the process that serves a recording; it ends when its standard input is closed.

    Raises:
        OpeningFailed: The recording cannot be read; the text says why.
    """
    folder = Path(tempfile.mkdtemp(prefix="kerneltui-replay-"))
    path = folder / "reader.sock"
    report(f"reading {source}")
    process = subprocess.Popen(
        [sys.executable, "-m", "kerneltui.engine.reader", str(source), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=without_keys(),  # a recording asks no model
    )
    deadline = time.monotonic() + START_LIMIT_S
    while not path.exists():
        if process.poll() is not None:
            errors = process.stderr.read() if process.stderr else b""
            lines = errors.decode("utf-8", "replace").strip().splitlines()
            raise OpeningFailed(lines[-1] if lines else f"{source}: cannot be read")
        if time.monotonic() > deadline:
            process.kill()
            raise OpeningFailed(f"{source}: not read within {START_LIMIT_S:.0f} s")
        time.sleep(0.01)
    return path, process


def _why(folder: Path, log: Path, code: int) -> str:
    error = folder / "start-error"
    if error.exists():
        return error.read_text(encoding="utf-8")
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1] if lines else "it said nothing"
    return f"the engine ended with code {code}: {last} (all of it in {log})"
