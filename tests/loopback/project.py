"""A project in which everything is real, and soon over."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


GATHERING = (2048, 1024, 64)
"""A shape whose time is in the gathering, which a kernel that does it itself saves much of."""


def make_project(folder: Path, shape: tuple[int, int, int] = (1024, 1024, 1024)) -> Path:
    """Copies a workload with its kernels and leaves one small tune shape; returns the workload."""
    for part in ("workloads", "kernels"):
        shutil.copytree(ROOT / part / "gemm_allgather", folder / part / "gemm_allgather")
    workload = folder / "workloads" / "gemm_allgather"
    file = workload / "workload.toml"
    head, *shapes = file.read_text(encoding="utf-8").split("[[shape]]")
    kept = [
        shape
        for shape in shapes
        if '"tune"' not in shape or '"cuda"' in shape or re.search(r"M = 1024\nN = 1024", shape)
    ]
    text = "[[shape]]".join([head, *kept])
    small = "M = {}\nN = {}\nK = {}\n".format
    file.write_text(text.replace(small(1024, 1024, 1024), small(*shape)), encoding="utf-8")
    return workload
