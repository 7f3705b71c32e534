"""Claude from the keyboard: a scripted model behind real HTTP, real compiles and timings, a real terminal."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loopback.project import make_project
from loopback.server import Loopback
from test_tmux_terminal import ROOT, Tmux

sys.path.insert(0, str(ROOT / "tests" / "unit"))

from test_engine_agents import WINDOW, stated
from test_engine_loopback import ANCHOR, Step, fast_steps, propose

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is missing: apt install tmux"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    make_project(tmp_path)
    return tmp_path


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    server = Tmux(tmp_path)
    yield server
    subprocess.run(["tmux", "-L", server.name, "kill-server"], capture_output=True, check=False)


def test_what_the_model_proposes_is_measured_and_accepted_from_the_keyboard(
    project: Path, tmux: Tmux
) -> None:
    names = ("describe", "unproven", "stage A", "stage B")
    steps = [step for step in fast_steps() if step.name in names]
    good = propose(reason="stores to peers", directive=stated(WINDOW), rewrite=WINDOW)
    steps[-1] = Step("stage B", expect=("Stage B\\.",), say=(good,))
    idea = propose(
        reason="nothing new",
        directive=stated(WINDOW),
        edits=[{"search": ANCHOR, "replace": f"inline int idea() {{ return 1; }}\n{ANCHOR}"}],
    )
    steps.append(Step("slow", expect=("evolve regions",), times=0, say=(idea,)))
    with Loopback(steps) as server:
        environment = [
            f"ANTHROPIC_BASE_URL={server.url}",
            "ANTHROPIC_API_KEY=sk-ant-loopback",
            f"XDG_CONFIG_HOME={project / 'config'}",
            f"XDG_CACHE_HOME={project / 'cache'}",
        ]
        command = ["env", *environment, sys.executable, "-m", "kerneltui.cli", "open"]
        line = " ".join(
            [*command, "workloads/gemm_allgather", "--target", "cpu", "--agents", "claude"]
        )
        tmux.run(
            "new-session", "-d", "-c", str(project), "-x", "120", "-y", "40", f"{line}; sleep 60"
        )
        tmux.until(lambda: measured(tmux, "c0002"), "c0002 measured", seconds=300)
        choose(tmux, "c0002")
        press_until(tmux, "a", lambda: best(tmux, "c0002") or asks_why(tmux))
        if asks_why(tmux):  # on a noisy machine it is not FASTER, and wants a reason
            tmux.type("it writes to its peers itself")
            tmux.keys("Enter")
        tmux.until(lambda: best(tmux, "c0002"), "c0002 on main")
        session = next((project / "sessions").iterdir())
        main = git(session, "log", "-1", "--format=%B", "main")
        candidate = git(session, "log", "-1", "--format=%B", "refs/kerneltui/candidates/c0002")
    assert main.startswith("Accept c0002: stage B: stores to peers")
    assert "Kerneltui-Decision: human" in main
    assert "Kerneltui-Model: " in candidate
    assert "Kerneltui-Directive-backend: lsa" in candidate
    kernel = git(session, "show", "main:kernels/gemm_allgather/kernel.cpp")
    assert kernel.strip() == WINDOW.strip()


def measured(tmux: Tmux, candidate: str) -> bool:
    return re.search(rf"{candidate} (PEND|QUAR|BEST)", tmux.screen()) is not None


def asks_why(tmux: Tmux) -> bool:
    return "Accept c0002 ━" in tmux.screen()


def best(tmux: Tmux, candidate: str) -> bool:
    return re.search(rf"{candidate} BEST", tmux.screen()) is not None


def choose(tmux: Tmux, candidate: str) -> None:
    """Goes down the list until the candidate is the selected one."""
    tmux.keys("Escape")
    time.sleep(0.5)  # else the next key is taken as one with alt
    tmux.keys("1")
    for _ in range(12):
        if re.search(rf">\s*[^c]*{candidate}", tmux.screen()):
            return
        tmux.keys("j")
        time.sleep(0.3)
    raise AssertionError(f"{candidate} cannot be chosen\n{tmux.screen()}")


def press_until(tmux: Tmux, key: str, condition: Callable[[], bool]) -> None:
    """Presses a key now and then: right after another candidate came on the screen it decides nothing."""
    for _ in range(10):
        tmux.keys(key)
        for _ in range(20):
            if condition():
                return
            time.sleep(0.1)
    raise AssertionError(f"{key} does nothing\n{tmux.screen()}")


def git(session: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(session), *arguments], check=True, capture_output=True, text=True
    ).stdout
