"""The machine that measures, in words: for the record of a session."""

from __future__ import annotations

import platform
from pathlib import Path

from kerneltui.evaluation.stand import MachineTarget

__all__ = ["machine_words"]


def machine_words(target: MachineTarget) -> dict[str, str]:
    """Describes the machine as far as nothing has to be started or measured for it."""
    return {
        "machine": _cpu_model(),
        "cores": str(target.cores),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "compiler": str(getattr(target.toolchain, "version", "")),
        "clocks": "unlocked",
        **target.describe(),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
