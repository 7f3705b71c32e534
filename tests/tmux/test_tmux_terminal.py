"""The terminal in a real tmux: bytes, keys, resizing, over a fake engine on a real socket."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.alone,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is missing: apt install tmux"),
]


class Tmux:
    """A tmux server of its own with default settings."""

    def __init__(self, folder: Path) -> None:
        self.name = f"kerneltui-{uuid.uuid4().hex[:8]}"
        self.commands = folder / "commands"
        self.commands.write_text("")

    def run(self, *arguments: str) -> str:
        return subprocess.run(
            ["tmux", "-L", self.name, "-f", "/dev/null", *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        ).stdout

    def start(
        self, *options: str, size: tuple[int, int] = (80, 24), editor: Path | None = None
    ) -> None:
        engine = ROOT / "tests" / "tui" / "fake_engine.py"
        command = ["env", "-u", "VISUAL", f"EDITOR={editor or 'true'}", sys.executable]
        command += [str(engine), "--terminal", "--commands", str(self.commands)]
        line = " ".join([*command, *options, "; sleep 120"])
        self.run("new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), line)

    def screen(self) -> str:
        return self.run("capture-pane", "-p")

    def keys(self, *keys: str) -> None:
        self.run("send-keys", *keys)

    def type(self, text: str) -> None:
        self.run("send-keys", "-l", text)

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"never: {what}\n{self.screen()}"
            time.sleep(0.05)

    def shows(self, text: str) -> None:
        self.until(lambda: text in self.screen(), text)

    def sent(self) -> str:
        """The commands that came, without queries."""
        lines = self.commands.read_text().splitlines()
        return "\n".join(line for line in lines if not line.startswith("Read"))


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    server = Tmux(tmp_path)
    yield server
    subprocess.run(["tmux", "-L", server.name, "kill-server"], capture_output=True, check=False)


def test_the_first_frame_comes_before_the_engine(tmux: Tmux) -> None:
    tmux.start("--delay 3")
    tmux.shows("starting the engine")
    tmux.shows("1 Candidates")
    assert "4 pending" not in tmux.screen()
    tmux.shows("4 pending")


def test_typing_decides_nothing_and_accepting_works(tmux: Tmux) -> None:
    tmux.start()
    tmux.shows("c0031 <- c0025")
    tmux.keys("s")
    tmux.type("arz q")
    tmux.shows("> arz q")
    assert tmux.sent() == ""
    tmux.keys("Escape")
    tmux.shows("a accept")
    tmux.keys("n")
    tmux.shows("c0028 <- c0025")
    time.sleep(0.4)  # the grace after another candidate came on the screen
    tmux.keys("a")
    tmux.until(lambda: "Accept(candidate='c0028'" in tmux.sent(), "the command")
    tmux.shows("c0028 BEST")


def test_quitting_asks_what_becomes_of_the_engine(tmux: Tmux) -> None:
    tmux.start()
    tmux.shows("4 pending")
    tmux.keys("q")
    tmux.shows("leave the engine running")
    tmux.keys("l")
    tmux.shows("stop_engine=False")


def test_ctrl_c_twice_asks_and_stopping_is_sent(tmux: Tmux) -> None:
    tmux.start()
    tmux.shows("4 pending")
    tmux.keys("C-c")
    tmux.until(lambda: "Interrupt(" in tmux.sent(), "the interrupt")
    tmux.keys("C-c")
    tmux.shows("stop the engine, keeping the best")
    tmux.keys("s")
    tmux.shows("stop_engine=True")
    assert "StopEngine()" in tmux.sent()


def test_resizing_down_and_back(tmux: Tmux) -> None:
    tmux.start(size=(120, 40))
    tmux.shows("4 Agents")
    tmux.run("resize-window", "-x", "60", "-y", "16")
    tmux.until(lambda: "4 Agents" not in tmux.screen(), "the narrow layout")
    tmux.shows("c0031 PEND")
    tmux.run("resize-window", "-x", "40", "-y", "10")
    tmux.shows("too small")
    tmux.run("resize-window", "-x", "120", "-y", "40")
    tmux.shows("4 Agents")


def test_replay_steps(tmux: Tmux) -> None:
    tmux.start("--replay")
    tmux.shows("REPLAY (read only)")
    tmux.shows("step 171 of 171")
    tmux.keys("Home")
    tmux.shows("step 1 of")
    tmux.keys("Right")
    tmux.shows("accepted c0002")
    tmux.keys("q")
    tmux.shows("stop_engine=False")


def test_the_second_terminal_is_read_only(tmux: Tmux) -> None:
    tmux.start("--readonly")
    tmux.shows("READ ONLY")
    tmux.keys("n")
    tmux.shows("c0028 <- c0025")
    time.sleep(0.4)
    tmux.keys("a")
    tmux.shows("read only; take over")
    assert tmux.sent() == ""


def test_copying_goes_through_tmux(tmux: Tmux) -> None:
    tmux.start()
    tmux.shows("c0031 <- c0025")
    tmux.keys("y")
    tmux.shows("Copy of c0031")
    tmux.keys("s")
    tmux.shows("sent to tmux's buffer")
    assert len(tmux.run("show-buffer").strip()) == 40


def test_the_editor_has_the_screen_and_gives_it_back(tmux: Tmux, tmp_path: Path) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text("#!/bin/sh\necho EDITING\nread line\nsed -i 's/KC 512/KC 128/' \"$1\"\n")
    editor.chmod(0o755)
    tmux.start(editor=editor)
    tmux.shows("c0031 <- c0025")
    tmux.keys("e")
    tmux.shows("EDITING")
    tmux.keys("Enter")
    tmux.until(lambda: "Edit(candidate='c0031'" in tmux.sent(), "the edited kernel")
    tmux.shows("1 Candidates")


def test_a_replay_has_the_screen_and_gives_it_back(tmux: Tmux) -> None:
    tmux.start("--session", str(ROOT / "sessions" / "gemm_allgather-cpu.bundle"), size=(120, 40))
    tmux.shows("c0031 <- c0025")  # the list stands there before there is anything to replay
    tmux.keys("T")
    tmux.shows("1 Events")
    tmux.shows("step 238 of 238")
    tmux.keys("q")
    tmux.until(
        lambda: "1 Candidates" in tmux.screen() and "c0031 <- c0025" in tmux.screen(), "back"
    )
    tmux.keys("T")
    tmux.shows("1 Events")


def test_models_have_room_are_followed_and_lab_notes_go_through_the_editor(
    tmux: Tmux, tmp_path: Path
) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text("#!/bin/sh\necho EDITING\nread line\necho 'flags cost a line' >> \"$1\"\n")
    editor.chmod(0o755)
    tmux.start("--models", "--quiet", size=(120, 40), editor=editor)
    tmux.until(lambda: "publish(flag + 1, epoch);" in tmux.screen(), "the stream")
    rows = tmux.screen().split("\n")
    top = next(row for row, line in enumerate(rows) if "4 Agents" in line)
    bottom = next(row for row, line in enumerate(rows) if "follow" in line)
    assert bottom - top == 11, "twelve rows"
    assert "(+$0.08 running)" in rows[0]
    tmux.keys("E")
    tmux.until(lambda: "EDITING" in tmux.screen(), "the editor")
    tmux.keys("Enter")
    tmux.until(lambda: "WriteNotes" in tmux.commands.read_text(), "the new notes")
    assert "flags cost a line" in tmux.commands.read_text()
