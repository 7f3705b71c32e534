"""The main of a rank process on a GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from kerneltui.evaluation.sandbox import PROCESS_HYGIENE, confine, deny_sockets
from kerneltui.evaluation.worker import map_control, serve, settle_in
from kerneltui.evaluation.worker_compilers import CompilerHelper
from kerneltui.evaluation.worker_cuda_machine import CudaMachine
from kerneltui.evaluation.worker_cuda_nccl import NCCL_ENVIRONMENT
from kerneltui.evaluation.worker_cuda_python import find_driver, settle_compilers
from kerneltui.evaluation.worker_kernel import CHarness, Rank
from kerneltui.evaluation.worker_python import load_kernel
from kerneltui.model.record import from_plain, parse_json
from kerneltui.targets.cuda.packages import Nccl
from kerneltui.targets.cuda.policy import MachinePolicy
from kerneltui.targets.forkserver import RankStart

__all__ = ["main"]


def main(start: RankStart) -> None:
    """Serves the engine with kernels of a GPU until it closes the channel."""
    serve(start, _get_ready)


def _get_ready(start: RankStart, descriptors: list[int]) -> tuple[Rank, str, int]:
    """Opens the device, then confines the process in two steps.

    Files, processes and signals are out of reach before the first line of a kernel runs. Sockets are
    refused only when the first shape is set up: whether a kernel wants NCCL, which connects by
    sockets, only the kernel can say.
    """
    options = start.options
    directory = Path(options["directory"])
    own = directory / f"rank{start.rank}"
    threads = int(options["threads"])
    os.environ.update(NCCL_ENVIRONMENT)
    if options["blocking"]:
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # read when the device is opened
    settle_in(own, threads)
    torch.set_num_threads(threads)
    confined = bool(options["confine"])
    helper = _helper(options, own) if options.get("compiles") else None
    machine = CudaMachine(
        CHarness(options["harness"]),
        start.rank,
        start.ranks,
        devices=options["devices"],
        control=map_control(descriptors[0], start.ranks),
        threads=threads,
        device_bytes=int(options["device_bytes"]),
        nccl_header=_nccl_header(options["nccl"]),
        seal=deny_sockets if confined else _leave_open,
        helper=helper,
    )
    if helper is not None:
        find_driver()
    level = PROCESS_HYGIENE
    if confined:
        devices = [*Path("/dev").glob("nvidia*"), Path("/dev/shm")]
        level = confine([own, *devices], [Path(p) for p in options["readable"]], sockets=True)
    return Rank(start.rank, start.ranks, machine, load_kernel), level, threads


def _helper(options: dict[str, Any], own: Path) -> CompilerHelper:
    """Before there is a device: what is forked later could not use it, and might disturb it."""
    settle_compilers(own)
    policy = from_plain(MachinePolicy, parse_json(options["policy"]))
    helper = CompilerHelper(own, [Path(p) for p in options["readable"]], policy)
    helper.install()
    return helper


def _nccl_header(told: dict[str, Any] | None) -> Nccl | None:
    if told is None:
        return None
    return Nccl(Path(told["include"]), None, int(told["code"]), None, str(told["origin"]))


def _leave_open() -> None:
    """For a debugger or a profiler."""
