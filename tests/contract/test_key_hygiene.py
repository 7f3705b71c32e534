"""Keys of model servers reach no child process, log, commit, note or bundle of a real session."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from loopback.asked import stated_of
from loopback.script import Say, Step
from loopback.server import Loopback

from kerneltui.engine.launcher import launch_reader
from kerneltui.headless.finding import first_line
from kerneltui.model.kernel import parse_kernel
from kerneltui.session.binary import environment
from kerneltui.targets.cpu.landlock import landlock_version
from kerneltui.targets.environment import child_environment, without_keys
from kerneltui.targets.processes import descendants
from kerneltui.tui.editor import edit_text

ROOT = Path(__file__).parents[2]
MARKER = "marker-5f0c2a7e91d4"
KEYS = {
    "ANTHROPIC_API_KEY": f"sk-ant-{MARKER}-key",
    "ANTHROPIC_AUTH_TOKEN": f"{MARKER}-token",
    "ANTHROPIC_CUSTOM_HEADERS": f"x-pass: {MARKER}-header",
}


NEEDED = ("kerneltui.targets.forkserver", "kerneltui.evaluation.judge", "cc1plus")
"""Programs that a session starts; what the first of them forks is seen with it."""

GIT_TOLD = "git-environments"


class Watch(threading.Thread):
    """Looks at every process below one, as often as it can, and keeps what its environment was."""

    def __init__(self, top: int) -> None:
        super().__init__(daemon=True)
        self.top = top
        self.done = threading.Event()
        self.seen: dict[int, set[str]] = {}
        self.found: list[str] = []

    def run(self) -> None:
        while not self.done.is_set():
            for pid in descendants([self.top]):
                self._look(pid)
            time.sleep(0.004)

    def _look(self, pid: int) -> None:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            # Between fork and exec a process still shows what its parent is.
            if not command or command == self._command_of_top():
                return
            block = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return
        if command in self.seen.setdefault(pid, set()):
            return
        self.seen[pid].add(command)
        if MARKER.encode() in block or MARKER in command:
            self.found.append(command)

    def _command_of_top(self) -> str:
        path = Path(f"/proc/{self.top}/cmdline")
        return path.read_bytes().replace(b"\0", b" ").decode()

    def saw(self, part: str) -> bool:
        return any(part in command for commands in self.seen.values() for command in commands)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for part in ("workloads", "kernels"):
        shutil.copytree(ROOT / part, tmp_path / "project" / part)
    return tmp_path / "project"


def objects_of(repository: Path) -> bytes:
    """The content of every object, packed or not, reachable or not."""
    command = ["git", "cat-file", "--batch-all-objects", "--batch", "--buffer"]
    done = subprocess.run(command, cwd=repository, capture_output=True, check=True)
    return done.stdout


def files_with_marker(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and MARKER.encode() in path.read_bytes()
    ]


def one_shape(project: Path) -> None:
    """Leaves the smallest shape in the workload: this is about processes, not about speed."""
    path = project / "workloads" / "gemm_allgather" / "workload.toml"
    head, first, *_ = path.read_text(encoding="utf-8").split("[[shape]]")
    path.write_text(f"{head}[[shape]]{first}", encoding="utf-8")


def telling_git(folder: Path) -> Path:
    """A folder with a git that writes its environment down: it is over too soon to be looked at."""
    real = shutil.which("git")
    place = folder / "bin"
    place.mkdir()
    script = place / "git"
    script.write_text(f'#!/bin/sh\nenv >> "{folder / GIT_TOLD}"\nexec "{real}" "$@"\n')
    script.chmod(0o755)
    return place


def steps(project: Path) -> list[Step]:
    """A gateway that even says the key back, then a kernel that does not compile, and one that does."""
    kernels = project / "kernels" / "gemm_allgather"
    seed = (kernels / "host.cpp").read_text(encoding="utf-8")
    window = parse_kernel((kernels / "window.cpp").read_text(encoding="utf-8"))
    head = "#include <kerneltui/kernel.h>\n"

    def answer(tool: str, **fields: object) -> list[Say]:
        return [Say("tool", json.dumps(fields), tool)]

    def proposed(line: str) -> list[Say]:
        region = f"// kerneltui: evolve begin flags\n{line}\n// kerneltui: evolve end\n"
        source = seed.replace(head, head + region)
        directive = stated_of(parse_kernel(seed))
        return answer("propose", reason="asks for flags", directive=directive, rewrite=source)

    graph = {
        "name": "all_gather",
        "reads": "C",
        "writes": "C",
        "producer": "gemm",
        "consumer": "caller",
    }
    said = {"type": "invalid_request_error", "message": f"no: {KEYS['ANTHROPIC_API_KEY']}"}
    described = answer("describe", collectives=[graph], directive=stated_of(window))
    return [
        Step("says it back", status=400, error=said),
        Step("describe", expect=("Describe it with the tool",), say=described),
        Step(
            "broken", expect=("Stage A\\.",), say=proposed("static const int flags = no_such_name;")
        ),
        Step(
            "judge", expect=("^tool diagnose$",), say=answer("diagnose", diagnosis="no such name")
        ),
        Step("mended", expect=("Repair it",), say=proposed("static const int flags = 1;")),
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_session_keeps_keys_to_itself(project: Path, tmp_path: Path):
    """A model is asked with the key, what it proposes is compiled and measured, and nobody else has it."""
    one_shape(project)
    session, output = tmp_path / "session", tmp_path / "output"
    with Loopback(steps(project)) as server:
        keys = {
            **os.environ,
            **KEYS,
            "PATH": f"{telling_git(tmp_path)}{os.pathsep}{os.environ['PATH']}",
            "ANTHROPIC_BASE_URL": server.url,
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
        }
        watch = _watched_session(project, session, output, keys)
        assert not server.problems
    assert KEYS["ANTHROPIC_API_KEY"] in server.requests[0].headers["Authorization"]
    text = output.read_text()
    for part in NEEDED:
        assert watch.saw(part), f"never saw {part}, so nothing is proved about it: {text[-2000:]}"
    assert watch.found == []
    assert "PATH=" in (tmp_path / GIT_TOLD).read_text(), "git was never run"
    assert files_with_marker(tmp_path) == []
    told = objects_of(session)
    for event in (b"model_call_ended", b"candidate_failed", b"candidate_measured"):
        assert event in told, text[-2000:]
    assert b"no_such_name" in b"".join(path.read_bytes() for path in session.rglob("*.log"))
    notes = ["git", "notes", "--ref", "evaluations", "list"]
    noted = subprocess.run(notes, cwd=session, capture_output=True, text=True, check=True).stdout
    assert len(noted.splitlines()) == 2, "one for each evaluation"
    assert MARKER.encode() not in told
    _check_bundle(session, tmp_path, keys)


def _watched_session(
    project: Path, session: Path, output: Path, environment: dict[str, str]
) -> Watch:
    """Runs until the second candidate is measured, which ends the search."""
    command = [
        sys.executable, "-m", "kerneltui", "tune", "workloads/gemm_allgather",
        "--target", "cpu", "--candidates", "2", "--session", str(session), "--json",
        "--agents", "claude",
    ]  # fmt: skip
    with (
        output.open("wb") as log,
        subprocess.Popen(
            command,
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        watch = Watch(process.pid)
        watch.start()
        try:
            process.wait(500)
        finally:
            process.kill()
            watch.done.set()
            watch.join(10)
    return watch


def _check_bundle(session: Path, folder: Path, keys: dict[str, str]) -> None:
    bundle, copy = folder / "session.bundle", folder / "copy"
    command = [sys.executable, "-m", "kerneltui", "bundle", str(session), str(bundle)]
    subprocess.run(command, env=keys, check=True, capture_output=True, timeout=200)
    copy.mkdir()
    for arguments in (["init", "-q"], ["fetch", "-q", str(bundle), "refs/*:refs/all/*"]):
        subprocess.run(["git", *arguments], cwd=copy, check=True, capture_output=True)
    told = objects_of(copy)
    assert len(told) > 1_000
    assert MARKER.encode() not in told


def test_the_watch_sees_what_is_given_away():
    """Without this, a watch that looks at nothing would find nothing wrong."""
    code = "import subprocess; subprocess.run(['sleep', '5'])"
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **KEYS}) as process:
        watch = Watch(process.pid)
        watch.start()
        while not watch.saw("sleep 5"):
            time.sleep(0.01)
        watch.done.set()
        watch.join(10)
        for pid in watch.seen:
            os.kill(pid, signal.SIGKILL)
        process.kill()
    assert watch.found == ["sleep 5 "]


@pytest.mark.skipif(landlock_version() == 0, reason="this kernel has no Landlock")
def test_a_confined_rank_cannot_look_at_the_engine():
    code = """
import os
from pathlib import Path
from kerneltui.evaluation.sandbox import confine
block = Path(f"/proc/{os.getppid()}/environ")
print(len(block.read_bytes()) > 0)
confine([], [])
try:
    print(block.read_bytes())
except PermissionError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "refused"], done.stderr


def test_no_environment_that_is_given_away_has_keys(monkeypatch: pytest.MonkeyPatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KEPT", "yes")
    given = [
        child_environment({}),
        environment(user_config=True),
        environment(user_config=False),
        without_keys(),
    ]
    assert all(MARKER not in str(one) for one in given)
    assert without_keys()["KEPT"] == "yes"
    assert environment(user_config=True)["KEPT"] == "yes"


def test_programs_of_the_user_get_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    shown = tmp_path / "shown"
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\nenv > {shown}\necho changed > "$1"\n')
    editor.chmod(0o755)
    assert edit_text("text\n", "kernel.cpp", {"EDITOR": str(editor)}) == "changed\n"
    assert "PATH=" in shown.read_text()
    assert MARKER not in shown.read_text()
    assert first_line("sh", "-c", "env | grep -c ANTHROPIC_ || true") == "0"


@pytest.mark.slow
def test_the_reader_of_a_recording_gets_none(monkeypatch: pytest.MonkeyPatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    recording = min((ROOT / "sessions").glob("*.bundle"), key=lambda path: path.stat().st_size)
    _, process = launch_reader(recording, lambda _: None)
    try:
        block = Path(f"/proc/{process.pid}/environ").read_bytes()
        assert b"PATH=" in block
        assert MARKER.encode() not in block
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(20)
        if process.stderr is not None:
            process.stderr.close()
