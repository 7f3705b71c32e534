"""Answers questions about a host with two GPUs on which the design of the CUDA target depends.

    python benchmarks/cuda_hosts/probe.py [--out FOLDER]

Needs torch, nvcc and the headers of the NCCL that torch has loaded; nothing of kerneltui. Every question
runs in processes of its own and under a limit, so that one that hangs spoils no other. The answers as
measured are in docs/cuda-hosts.md. NVLink multicast stays off throughout.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from probe_groups import clocks, fresh_group, kill_both, kill_one, two_groups
from probe_handles import handles
from probe_ranks import MIB, Group, check, library

os.environ |= {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
HERE = Path(__file__).resolve().parent


def main() -> None:
    """Asks one question after another and prints the answers as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--ncu-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ncu_rank:
        ncu_ranks(int(os.environ.get("PROBE_RANKS", "1")))
        return
    os.environ["PROBE_LIBRARY"] = str(build(arguments.out))
    answers: dict[str, Any] = {}
    for question in (fresh_group, clocks, kill_one, kill_both, two_groups, handles, counters):
        begin = time.monotonic()
        try:
            answers[question.__name__] = question()
        except Exception as error:  # the next question is asked all the same
            answers[question.__name__] = {"error": f"{type(error).__name__}: {error}"}
        answers[question.__name__]["took_s"] = round(time.monotonic() - begin, 2)
        print(question.__name__, json.dumps(answers[question.__name__], indent=1), flush=True)
        (arguments.out / "hosts.json").write_text(json.dumps(answers, indent=1))


def build(folder: Path) -> Path:
    """Compiles the library of kernels against the NCCL beside torch."""
    nccl = Path(subprocess.check_output(
        [sys.executable, "-c", "import nvidia.nccl, sys; print(list(nvidia.nccl.__path__)[0])"],
        text=True).strip())  # fmt: skip
    library = Path(tempfile.mkdtemp()) / "probe.so"
    begin = time.monotonic()
    subprocess.run(
        ["nvcc", "-O2", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-shared", "-Xcompiler",
         "-fPIC", f"-I{nccl}/include", str(HERE / "probe.cu"), "-o", str(library),
         f"-L{nccl}/lib", "-l:libnccl.so.2", f"-Xlinker=-rpath={nccl}/lib", "-lcuda"],
        check=True,
    )  # fmt: skip
    print(f"compiled in {time.monotonic() - begin:.1f} s", flush=True)
    return library


def counters() -> dict[str, Any]:
    """Does ncu count on one rank, and on two that wait for one another?"""
    found: dict[str, Any] = {}
    for ranks, replay in ((1, "kernel"), (2, "application")):
        command = [
            "ncu", "--clock-control", "none", "--target-processes", "all", "--replay-mode", replay,
            "--metrics", "sm__cycles_elapsed.max,lts__t_bytes.sum", "-k", "regex:ping_pong|gate|push",
            sys.executable, str(Path(__file__).resolve()), "--ncu-rank",
        ]  # fmt: skip
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, timeout=75, check=False,
                env={**os.environ, "PROBE_RANKS": str(ranks)},
            )  # fmt: skip
            text = run.stdout + run.stderr
            found[f"{ranks} ranks, {replay} replay"] = {
                "code": run.returncode,
                "counted": text.count("sm__cycles_elapsed.max"),
                "end": text[-600:],
            }
        except subprocess.TimeoutExpired:
            found[f"{ranks} ranks, {replay} replay"] = {"error": "hung for 75 s"}
        except FileNotFoundError:
            return {"error": "ncu is not installed"}
    return found


def ncu_ranks(ranks: int) -> None:
    """What ncu watches: a kernel of one rank, or gates of two."""
    if ranks == 2:
        group = Group()
        group.ask("rank_gates")
        group.close()
        return
    import torch

    torch.cuda.set_device(0)
    memory = torch.ones(8 * MIB, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(memory)
    check(library().probe_push(ctypes.c_void_p(target.data_ptr()), ctypes.c_void_p(memory.data_ptr()),
                               ctypes.c_size_t(8 * MIB), 64), "push")  # fmt: skip
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
