"""What the processes really import.

The contracts in pyproject.toml see the static graph of this package alone; a deferred import, or one by
a dependency, shows in `sys.modules` only.
"""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import kerneltui.model

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "numpy", "git", "anthropic", "cupy"}
MODEL = [f"kerneltui.model.{part.name}" for part in pkgutil.iter_modules(kerneltui.model.__path__)]


def modules_after(code: str) -> set[str]:
    """Runs code in a new process, and returns the first part of the name of every module there."""
    report = (
        "import json, sys; print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    )
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_the_terminal_is_light():
    code = """
import pkgutil, importlib
import kerneltui.cli, kerneltui.engine.launcher, kerneltui.engine.place, kerneltui.tui
for part in pkgutil.walk_packages(kerneltui.tui.__path__, "kerneltui.tui."):
    importlib.import_module(part.name)
from kerneltui.tui import run
"""
    found = modules_after(code)
    assert "textual" in found
    assert not found & HEAVY


def test_the_engine_starts_without_torch_or_a_terminal():
    found = modules_after("import kerneltui.engine.__main__, kerneltui.engine.run")
    assert not found & {"torch", "cupy", "textual", "anthropic"}


def test_the_engine_can_evaluate_without_torch():
    """Only rank workers and the judge import torch, and they are processes of their own."""
    found = modules_after("import kerneltui.engine.evaluator, kerneltui.headless.tune")
    assert not found & {"torch", "cupy", "textual", "anthropic"}


def test_replay_is_light():
    found = modules_after("import kerneltui.headless.replay, kerneltui.engine.reader")
    assert not found & {"torch", "textual", "numpy", "anthropic", "cupy"}


def test_the_command_line_starts_with_click_alone():
    found = modules_after("import kerneltui.cli")
    assert not found & (HEAVY | {"textual"})


def test_the_model_is_standard_library_only():
    found = modules_after("\n".join(f"import {name}" for name in MODEL))
    bare = modules_after("")
    # what a site adds to every process, such as an editable install, is there without the model too
    assert found - bare - set(sys.stdlib_module_names) == {"kerneltui"}


def test_the_contracts_hold():
    command = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [str(command), "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stdout[-3000:]
