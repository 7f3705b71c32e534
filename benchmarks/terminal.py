"""Measures the terminal against its bars: first frame, and key to paint while the machine works.

Runs the terminal over a fake engine in a pseudo-terminal of its own, with as many busy processes as
there are cores to stand for a candidate that compiles and runs. Prints one JSON line a measurement.

    python benchmarks/terminal.py [--keys 300] [--idle] [--starts 7]
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / "tests" / "tui" / "fake_engine.py"
BAR_FIRST_FRAME_S = 0.6
BAR_KEY_P99_MS = 50.0
CURSOR = b" > \x1b"
BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("nothing else")
Bare().run()
"""
BUSY = "import os\nos.nice({nice})\nx = 1.0\nwhile True: x = x * 1.0000001 % 7.0"


class Terminal:
    """The terminal in a pseudo-terminal of a given size."""

    def __init__(self, *, size: tuple[int, int], code: str) -> None:
        self.began = time.monotonic()
        self.process, self.descriptor = pty.fork()
        if self.process == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.execv(sys.executable, [sys.executable, "-c", code])
        rows = struct.pack("HHHH", size[1], size[0], 0, 0)
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, rows)
        self.seen = b""

    def read(self, wait: float) -> bytes:
        """Returns what comes within a time, or nothing."""
        ready, _, _ = select.select([self.descriptor], [], [], max(wait, 0))
        data = os.read(self.descriptor, 1 << 16) if ready else b""
        self.seen = (self.seen + data)[-200_000:]
        return data

    def until(self, text: str, limit: float = 60.0) -> float:
        """Waits for a text and returns the seconds since the start."""
        end = time.monotonic() + limit
        while text.encode() not in self.seen:
            if time.monotonic() > end:
                raise TimeoutError(f"the terminal never showed {text!r}")
            self.read(0.05)
        return time.monotonic() - self.began

    def settle(self, quiet: float) -> None:
        """Reads until nothing comes for a while, or for two seconds at most."""
        end = time.monotonic() + 2
        while time.monotonic() < end and self.read(quiet):
            pass

    def press(self, key: bytes, answer: bytes, limit: float = 5.0) -> float:
        """Presses a key and returns the seconds until its answer is painted."""
        self.seen = b""
        began = time.monotonic()
        os.write(self.descriptor, key)
        while answer not in self.seen:
            if time.monotonic() - began > limit:
                raise TimeoutError(f"no paint for {key!r}")
            self.read(limit)
        return time.monotonic() - began

    def close(self) -> None:
        """Ends the terminal."""
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.descriptor)


def percentile(values: list[float], share: float) -> float:
    """Returns the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def report(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def first_frames(starts: int, size: tuple[int, int], ours: str) -> None:
    times: list[float] = []
    bare: list[float] = []
    for _ in range(starts):
        # An app of Textual with one line of text, in turn with ours: what the machine allows now.
        for code, text, kept in ((ours, "Candidates", times), (BARE, "nothing else", bare)):
            terminal = Terminal(size=size, code=code)
            kept.append(terminal.until(text))
            terminal.close()
    median = statistics.median(times)
    report(
        what="first frame",
        size=f"{size[0]}x{size[1]}",
        median_s=round(median, 3),
        worst_s=round(max(times), 3),
        bare_textual_s=round(statistics.median(bare), 3),
        bar_s=BAR_FIRST_FRAME_S,
        met=median <= BAR_FIRST_FRAME_S,
    )


def keys(count: int, size: tuple[int, int], load: str, ours: str) -> None:
    terminal = Terminal(size=size, code=ours)
    try:
        terminal.until("c0031 <- c0025")
        times: list[float] = []
        terminal.press(b"o", b"sort:ratio" if size[0] < 100 else b"c00")
        terminal.settle(0.2)
        for number in range(count):
            # The cursor's row is painted anew with its sign: that is the answer to the key.
            key = b"j" if number % 40 < 20 else b"k"
            times.append(terminal.press(key, CURSOR) * 1e3)
            terminal.settle(0.1)
    finally:
        terminal.close()
    p99 = percentile(times, 0.99)
    report(
        what="key to paint",
        size=f"{size[0]}x{size[1]}",
        load=load,
        keys=count,
        median_ms=round(statistics.median(times), 1),
        p99_ms=round(p99, 1),
        worst_ms=round(max(times), 1),
        bar_p99_ms=BAR_KEY_P99_MS,
        met=p99 <= BAR_KEY_P99_MS,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=300)
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--idle", action="store_true", help="without busy processes only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine.sock"
        engine = subprocess.Popen([sys.executable, str(ENGINE), str(path)])
        try:
            while not path.exists():
                time.sleep(0.05)
            measure(options, f"from kerneltui.tui import run; run({str(path)!r})")
        finally:
            engine.kill()
            engine.wait()


def measure(options: argparse.Namespace, ours: str) -> None:
    sizes = [(80, 24), (120, 40)]
    for size in sizes:
        first_frames(options.starts, size, ours)
        keys(options.keys, size, "idle", ours)
    if options.idle:
        return
    # The engine runs candidates at a lower priority than the terminal; both are measured.
    for nice, load in ((5, "busy, nice 5"), (0, "busy, same priority")):
        cores = os.cpu_count() or 1
        busy = [
            subprocess.Popen([sys.executable, "-c", BUSY.format(nice=nice)]) for _ in range(cores)
        ]
        try:
            for size in sizes:
                keys(options.keys, size, load, ours)
        finally:
            for process in busy:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
