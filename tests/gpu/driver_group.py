"""The two processes of the driver for two GPUs, and their end when a call hangs or breaks."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import socket
import time
import traceback
from multiprocessing.connection import Connection, wait
from typing import Any

from driver_checks import verify
from driver_rank import RANKS, Rank
from driver_timing import time_kernels

HANG_SECONDS = 10.0
START_SECONDS = 60.0
"""The start may take longer than a call."""


def worker(rank_number: int, link: socket.socket, pipe: Connection, job: dict[str, Any]) -> None:
    """The process of one rank."""

    def report(kind: str, value: Any) -> None:
        pipe.send((kind, value))

    try:
        rank = Rank(rank_number, link, job["helper"])
        report("ready", "")
        if job["verify"]:
            checked = [s for s in job["specs"] if s.text not in job["diagnostic"]]
            verify(rank, report, checked, job["verify"], job["sets"])
        if job["time"]:
            time_kernels(rank, report, job["specs"], job)
        report("end", "")
    except BaseException:
        report("fault", traceback.format_exc())
        raise


def run_group(job: dict[str, Any], results: dict[str, Any], deadline: float) -> str:
    """Runs both ranks. Returns what hung or broke ('' if nothing), in the words of its last `begin`."""
    context = mp.get_context("spawn")
    links = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pipes = [context.Pipe(duplex=False) for _ in range(RANKS)]
    processes = [
        context.Process(target=worker, args=(r, links[r], pipes[r][1], job), daemon=True)
        for r in range(RANKS)
    ]
    for process in processes:
        process.start()
    for link, (_, sender) in zip(links, pipes, strict=True):
        link.close()
        sender.close()
    doing = ["start"] * RANKS
    trouble = listen([receiver for receiver, _ in pipes], doing, results, deadline)
    if trouble:
        time.sleep(0.3)
    for process in processes:
        process.join(timeout=5 if not trouble else 0.2)
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
        elif process.exitcode and not trouble:
            trouble = f"rank ended with {process.exitcode}: {doing}"
    return trouble


def listen(receivers: list[Any], doing: list[str], results: dict[str, Any], deadline: float) -> str:
    """Gathers what the ranks report until both have ended; returns what is wrong, if anything."""
    open_pipes = {receiver: r for r, receiver in enumerate(receivers)}
    heard = time.monotonic() + START_SECONDS
    trouble = ""
    while open_pipes and not trouble:
        now = time.monotonic()
        if now > deadline:
            return "out of time"
        if now > heard + HANG_SECONDS:
            return f"hang: {doing}"
        ready: list[Any] = list(wait(list(open_pipes), timeout=0.5))
        for pipe in ready:
            r = open_pipes[pipe]
            try:
                kind, value = pipe.recv()
            except EOFError:
                del open_pipes[pipe]
                continue
            heard = max(heard, time.monotonic()) if doing[r] == "start" else time.monotonic()
            if kind == "begin":
                doing[r] = value
            elif kind == "ready":
                doing[r], heard = "ready", time.monotonic()
            elif kind == "fault":
                trouble = trouble or f"fault in rank {r}: {doing[r]}\n{value}"
            elif kind != "end":
                results.setdefault(kind, []).append((r, value))
    return trouble
