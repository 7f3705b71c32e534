"""What an evaluation costs beside compiling and samples, from the journal and notes of a session.

    python benchmarks/overhead.py SESSION|BUNDLE     a session that was recorded before
    python benchmarks/overhead.py                    tunes six candidates first

For each candidate: wall time from the start of its evaluation to its result, the compiler's time, the
time inside samples (discarded ones included), and the rest: verification, fresh inputs, processes, git.
Bar (DESIGN 13): the rest is at most 1.5 s a candidate on the CPU, confirmation apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from kerneltui.engine.reader import opened_recording
from kerneltui.headless.output import table
from kerneltui.model.event import (
    CandidateBuilt,
    CandidateFailed,
    CandidateMeasured,
    EvaluationStarted,
)

ROOT = Path(__file__).resolve().parents[1]
SAMPLES_IN_BURST, SAMPLES_IN_SCREEN_BURST = 4, 2


def sampled_ns(rounds: list[dict[str, Any]], samples: int) -> float:
    """Time inside samples: every burst of every lane, its discarded sample too."""
    total = 0.0
    for part in rounds:
        for lane in ("candidate", "incumbent", "reference"):
            total += sum(burst[0] * part["calls"] * samples for burst in part[lane] if burst)
    return total


def rows(source: Path) -> list[list[float | str]]:
    """For each evaluated candidate: wall, compile, samples, rest in seconds, and how it ended."""
    found: list[list[float | str]] = []
    started: dict[str, int] = {}
    built: dict[str, float] = {}
    with opened_recording(source) as recording:
        for event in recording.events:
            match event:
                case EvaluationStarted():
                    started[event.id] = event.at
                    built[event.id] = 0.0
                case CandidateBuilt():
                    built[event.id] = 0.0 if event.cached else event.build_ns
                case CandidateMeasured() | CandidateFailed() if event.id in started:
                    sha = recording.recorder.state.candidates[event.id].sha
                    note = recording.recorder.session.read_note(sha)
                    record = json.loads(note) if note else {}
                    sampled = sampled_ns(record.get("screen", []), SAMPLES_IN_SCREEN_BURST)
                    sampled += sampled_ns(record.get("rounds", []), SAMPLES_IN_BURST)
                    sampled += sampled_ns(record.get("confirm", []), SAMPLES_IN_BURST)
                    wall = event.at - started[event.id]
                    rest = wall - built[event.id] - sampled
                    end = "failed" if isinstance(event, CandidateFailed) else "measured"
                    if record.get("confirm"):
                        end = "confirmed"
                    times = (wall, built[event.id], sampled, rest)
                    found.append([event.id, *(value / 1e9 for value in times), end])
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("session", type=Path, nargs="?")
    session = parser.parse_args().session
    with tempfile.TemporaryDirectory() as folder:
        if session is None:
            session = Path(folder) / "session"
            command = ["tune", "workloads/gemm_allgather", "--candidates", "6", "--seed", "1"]
            subprocess.run(
                [sys.executable, "-m", "kerneltui.cli", *command, "--session", str(session)],
                cwd=ROOT,
                check=False,
                stdout=subprocess.DEVNULL,
            )
        found = rows(session)
    lines = [["candidate", "wall s", "compile s", "samples s", "rest s", "ended"]]
    lines += [
        [str(cell) if isinstance(cell, str) else f"{cell:.2f}" for cell in row] for row in found
    ]
    print(table(lines, right=frozenset({1, 2, 3, 4})))
    for end in ("failed", "measured", "confirmed"):
        rest = [float(row[4]) for row in found if row[5] == end]
        if rest:
            print(f"{end}: rest median {median(rest):.2f} s, max {max(rest):.2f} s (bar 1.5 s)")


if __name__ == "__main__":
    main()
