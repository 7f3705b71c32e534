"""The main of a rank process: get ready, confine, then serve the engine's requests one by one."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kerneltui.evaluation.sandbox import PROCESS_HYGIENE, confine
from kerneltui.evaluation.worker_cpu import CpuMachine
from kerneltui.evaluation.worker_host import HostCollectives
from kerneltui.evaluation.worker_kernel import CHarness, KernelError, Rank
from kerneltui.evaluation.worker_python import load_kernel
from kerneltui.targets.channel import Channel, ChannelClosed
from kerneltui.targets.errors import FailureKind, MemoryFailure, TargetError
from kerneltui.targets.forkserver import RankStart
from kerneltui.targets.windows import GroupLayout

__all__ = ["main", "map_control", "serve", "settle_in"]

_CONTROL_BYTES = 128

_blas = ctypes.CDLL(str(Path(str(torch.__file__)).parent / "lib" / "libtorch_cpu.so"))


def main(start: RankStart) -> None:
    """Serves the engine with kernels of the CPU until it closes the channel."""
    serve(start, _get_ready)


def serve(
    start: RankStart, get_ready: Callable[[RankStart, list[int]], tuple[Rank, str, int]]
) -> None:
    """Serves the engine until it closes the channel.

    Everything that needs threads, sockets or files of its own is made first, by `get_ready`. Then the
    process is confined, for good, and only then does it load what the engine names.

    Args:
        start: What the process was started with.
        get_ready: Makes the rank; its confinement in words, and its CPU threads.
    """
    channel = Channel(start.channel)
    message, descriptors = channel.receive_with_descriptors(time.monotonic() + 60.0)
    if message["do"] != "begin":
        raise ValueError(f"the first request was {message['do']!r}")
    try:
        rank, level, threads = get_ready(start, descriptors)
    except (KernelError, TargetError) as error:
        channel.send({"nonce": message["nonce"], "ok": False, "reason": str(error)})
        return
    channel.send({"nonce": message["nonce"], "ok": True, "sandbox": level, "threads": threads})
    while True:
        try:
            message, descriptors = channel.receive_with_descriptors(None)
        except ChannelClosed:
            return
        answer = _answer(rank, message, descriptors)
        passed: list[int] = answer.pop("descriptors", [])  # they go beside the message
        channel.send({"nonce": message["nonce"], **answer}, passed)
        for descriptor in passed:
            os.close(descriptor)


def _get_ready(start: RankStart, descriptors: list[int]) -> tuple[Rank, str, int]:
    options = start.options
    directory = Path(options["directory"])
    own = directory / f"rank{start.rank}"
    threads = int(options["threads"])
    if options["cpus"]:
        os.sched_setaffinity(0, options["cpus"][start.rank])
    settle_in(own, threads)
    _set_threads(threads)
    harness = CHarness(options["harness"])
    host = HostCollectives(
        start.rank, start.ranks, directory, float(options["gloo_timeout_s"]), harness.fail
    )
    host.barrier()  # all connections stand before new ones are forbidden
    control = map_control(descriptors[0], start.ranks)
    level = PROCESS_HYGIENE
    if options["confine"]:
        level = confine([own], [Path(p) for p in options["readable"]])
    machine = CpuMachine(harness, host, _blas, control=control, threads=threads)
    return Rank(start.rank, start.ranks, machine, load_kernel), level, threads


def settle_in(own: Path, threads: int) -> None:
    """Makes a folder of its own the home of this process, and says how many threads it may use."""
    os.chdir(own)
    # Read by OpenMP runtimes that a kernel brings along; torch's own is set by call.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ["TMPDIR"] = os.environ["HOME"] = str(own)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"


def _set_threads(threads: int) -> None:
    # Sets OpenMP's and MKL's number for this thread, which is the one that calls kernels, and
    # switches off MKL's habit of taking fewer.
    torch.set_num_threads(threads)
    for name in ("omp_set_dynamic", "MKL_Set_Dynamic"):
        function: Callable[[int], None] | None = getattr(_blas, name, None)
        if function is not None:
            function(0)


def map_control(fd: int, ranks: int) -> int:
    """Maps the control page of a group; its address."""
    # Through the C library, since an mmap object would unmap itself when Python forgets it.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    size = ctypes.c_size_t(ranks * _CONTROL_BYTES)
    address = libc.mmap(None, size, 3, 1, fd, ctypes.c_long(0))
    os.close(fd)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "cannot map the control page")
    return address


def _answer(rank: Rank, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
    """Does what a request says; every error becomes an answer, since who only leaves gives no reason."""
    try:
        match message["do"]:
            case "load":
                rank.load(message["library"])
            case "load_baseline":
                rank.load_baseline(message["name"])
            case "requirements":
                wanted = rank.requirements(message["dimensions"], message["runtime"])
                return {"ok": True, **wanted}
            case "setup":
                layout = GroupLayout.from_json(message["layout"])
                return {"ok": True, "facts": rank.setup(layout, message["runtime"], descriptors)}
            case "run" | "sample":
                return {"ok": True, **rank.sample(message)}
            case "teardown":
                rank.teardown()
            case "ping":
                pass
            case _:
                return {"ok": True, **rank.special(message)}
    except KernelError as error:
        return {"ok": False, "kind": error.kind, "reason": str(error)}
    except (MemoryError, MemoryFailure, torch.OutOfMemoryError) as error:
        reason = (
            f"the rank ran out of memory: {error}" if str(error) else "the rank ran out of memory"
        )
        return {"ok": False, "kind": FailureKind.OUT_OF_MEMORY, "reason": reason}
    except TargetError as error:
        return {"ok": False, "kind": FailureKind.ERROR, "reason": str(error)}
    except (RuntimeError, OSError) as error:
        reason = f"{type(error).__name__}: {error}"
        return {"ok": False, "kind": FailureKind.ERROR, "reason": reason}
    return {"ok": True}
