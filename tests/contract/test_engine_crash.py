"""The engine killed at random instants: the session opens again and has every acknowledged event.

`benchmarks/crash.py --kills 200` is the same in numbers; `--real` uses real ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_no_acknowledged_event_is_lost():
    kills = os.environ.get("KERNELTUI_KILL_ROUNDS", "6")
    crash = str(ROOT / "benchmarks" / "crash.py")
    command = [sys.executable, crash, "--kills", kills, "--seed", "1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "none lost" in result.stdout
