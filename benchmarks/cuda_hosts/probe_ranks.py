"""The ranks of the host probe: processes of a group that do what a question asks of them."""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import time
from statistics import median
from typing import Any

MIB = 1 << 20
Pipe = Any


def library() -> ctypes.CDLL:
    """The library of kernels, in a rank."""
    found = ctypes.CDLL(os.environ["PROBE_LIBRARY"])
    for name in ("probe_spin", "probe_ping_pong", "probe_gate", "probe_gather", "probe_push",
                 "probe_register", "probe_window", "probe_comm", "probe_device_comm"):  # fmt: skip
        getattr(found, name).restype = ctypes.c_int
    return found


def check(code: int, what: str) -> None:
    """Raises for an error code."""
    if code:
        raise RuntimeError(f"{what}: error {code}")


def unique_id() -> bytes:
    """A new identity for a communicator, made in a process of its own: it takes a CUDA-free thread."""
    text = ctypes.create_string_buffer(128)
    check(library().probe_unique_id(text), "unique id")
    return text.raw


class Rank:
    """One rank of a probe group: communicator, window and device communicator, with their times."""

    def __init__(self, rank: int, ranks: int, unique_id: bytes, bytes_: int) -> None:
        self.times: dict[str, float] = {}
        self.rank, self.ranks = rank, ranks
        begin = time.monotonic()

        def lap(name: str) -> None:
            nonlocal begin
            now = time.monotonic()
            self.times[name] = round(now - begin, 3)
            begin = now

        import torch

        self.torch = torch
        lap("import torch")
        torch.cuda.set_device(rank)
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        lap("context")
        self.library = library()
        lap("load library")
        self.comm, self.buffer, self.window = (ctypes.c_void_p() for _ in range(3))
        check(self.library.probe_comm(rank, ranks, unique_id, ctypes.byref(self.comm)), "comm")
        lap("communicator")
        check(
            self.library.probe_window(
                self.comm,
                ctypes.c_size_t(bytes_),
                ctypes.byref(self.buffer),
                ctypes.byref(self.window),
            ),
            "window",
        )
        lap("window")
        check(self.library.probe_device_comm(self.comm), "device communicator")
        lap("device communicator")

    def gather_us(self, nbytes: int, count: int = 40) -> float:
        """Median time of an NCCL all-gather, by events."""
        torch = self.torch
        send = torch.ones(nbytes, dtype=torch.uint8, device="cuda")
        receive = torch.empty(nbytes * self.ranks, dtype=torch.uint8, device="cuda")
        times: list[float] = []
        for _ in range(count):
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            with torch.cuda.stream(torch.cuda.default_stream()):
                start.record()
                for _ in range(5):
                    check(
                        self.library.probe_gather(
                            self.comm, ctypes.c_void_p(send.data_ptr()),
                            ctypes.c_void_p(receive.data_ptr()), ctypes.c_size_t(nbytes),
                        ),
                        "all-gather",
                    )  # fmt: skip
                end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 200)
        if not bool((receive == 1).all()):
            raise RuntimeError("the all-gather is wrong")
        return round(median(times), 1)


def rank_gather(rank: Rank, nbytes: int) -> float:
    """Times an all-gather."""
    return rank.gather_us(nbytes)


def rank_steps(rank: Rank) -> dict[str, float]:
    """Differences between readings that follow one another."""
    out = rank.torch.zeros(20000, dtype=rank.torch.int64, device="cuda")
    check(rank.library.probe_clock(ctypes.c_void_p(out.data_ptr()), 20000), "clock")
    steps = [step for step in out.diff().tolist() if step]
    return {"least": min(steps), "median": median(steps)}


def rank_ping_pong(rank: Rank) -> list[list[int]]:
    """(asked, answered on the peer, back) of 2,000 turns, on rank 0."""
    out = rank.torch.zeros(2000, 3, dtype=rank.torch.int64, device="cuda")
    check(
        rank.library.probe_ping_pong(
            rank.window, ctypes.c_uint64(1), 2000, ctypes.c_void_p(out.data_ptr())
        ),
        "ping-pong",
    )
    return out.tolist() if rank.rank == 0 else []


def rank_gates(rank: Rank) -> list[int]:
    """When this rank passed each of 50 gates that it comes to at times of its own."""
    out = rank.torch.zeros(1, dtype=rank.torch.int64, device="cuda")
    passed = []
    for turn in range(1, 51):
        time.sleep(0.001 * ((turn * 7 + rank.rank * 3) % 5))
        check(
            rank.library.probe_gate(
                rank.window, ctypes.c_uint64(turn), ctypes.c_void_p(out.data_ptr())
            ),
            "gate",
        )
        passed.append(int(out.item()))
    return passed


def rank_spin(rank: Rank) -> str:
    """Starts a kernel that spins for ever."""
    check(
        rank.library.probe_spin(rank.window, ctypes.c_uint64(1 << 40), ctypes.c_uint64(0)), "spin"
    )
    return "spins"


def serve(pipe: Pipe, rank: int, ranks: int, identity: bytes, bytes_: int) -> None:
    """A rank that does what it is asked: (name of a function of this module, arguments)."""
    try:
        made = Rank(rank, ranks, identity, bytes_)
        pipe.send(made.times)
        while True:
            name, arguments = pipe.recv()
            pipe.send(globals()[name](made, *arguments))
    except EOFError:
        return
    except Exception as error:
        pipe.send(error)


class Group:
    """Ranks in processes of their own."""

    def __init__(self, ranks: int = 2, bytes_: int = 4 * MIB) -> None:
        context = mp.get_context("spawn")
        identity = unique_id()
        self.pipes, self.processes = [], []
        begin = time.monotonic()
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve, args=(theirs, rank, ranks, identity, bytes_), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self.times = self.answers()
        self.ready_s = round(time.monotonic() - begin, 3)

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """Asks all ranks at once."""
        for pipe in self.pipes:
            pipe.send((name, arguments))
        return self.answers()

    def answers(self, limit_s: float = 60.0) -> list[Any]:
        """Waits for an answer of each."""
        found = []
        for pipe in self.pipes:
            if not pipe.poll(limit_s):
                raise TimeoutError("a rank does not answer")
            answer = pipe.recv()
            if isinstance(answer, Exception):
                raise answer
            found.append(answer)
        return found

    def close(self) -> None:
        """Ends them."""
        for process in self.processes:
            process.kill()
            process.join()
