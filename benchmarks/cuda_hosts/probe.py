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
import multiprocessing as mp
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ |= {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
HERE = Path(__file__).resolve().parent
MIB = 1 << 20
Pipe = Any


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


def library() -> ctypes.CDLL:
    """The library of kernels, in a rank."""
    found = ctypes.CDLL(os.environ["PROBE_LIBRARY"])
    for name in ("probe_spin", "probe_ping_pong", "probe_gate", "probe_gather", "probe_push",
                 "probe_register", "probe_window", "probe_comm", "probe_device_comm"):  # fmt: skip
        getattr(found, name).restype = ctypes.c_int
    return found


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


def check(code: int, what: str) -> None:
    """Raises for an error code."""
    if code:
        raise RuntimeError(f"{what}: error {code}")


def unique_id() -> bytes:
    """A new identity for a communicator, made in a process of its own: it takes a CUDA-free thread."""
    text = ctypes.create_string_buffer(128)
    check(library().probe_unique_id(text), "unique id")
    return text.raw


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


def used_mib() -> list[int]:
    """Memory in use on each GPU, by the driver."""
    text = subprocess.check_output(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], text=True
    )
    return [int(line) for line in text.split()]


def busy_percent() -> list[int]:
    """Utilisation of each GPU, by the driver."""
    text = subprocess.check_output(
        ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"], text=True
    )
    return [int(line) for line in text.split()]


def until(condition: Callable[[], bool], limit_s: float = 20.0) -> float | None:
    """Seconds until something holds; None if it does not."""
    begin = time.monotonic()
    while time.monotonic() - begin < limit_s:
        if condition():
            return round(time.monotonic() - begin, 3)
        time.sleep(0.02)
    return None


# --- The questions ----------------------------------------------------------------------------------


def fresh_group() -> dict[str, Any]:
    """How long does a group take from nothing, and what does it hold of the GPU's memory?"""
    idle = used_mib()
    tries = []
    for _ in range(2):
        group = Group()
        tries.append({"ready_s": group.ready_s, "parts": group.times[0]})
        held = used_mib()
        gather = group.ask("rank_gather", 16 * MIB)
        begin = time.monotonic()
        group.close()
        gone = until(lambda: used_mib() == idle)
        tries[-1] |= {
            "held_mib": [a - b for a, b in zip(held, idle, strict=True)],
            "gather_16_mib_us": gather,
            "memory_back_s": gone,
            "close_s": round(time.monotonic() - begin, 3),
        }
    return {"idle_mib": idle, "tries": tries}


def rank_gather(rank: Rank, nbytes: int) -> float:
    """Times an all-gather."""
    return rank.gather_us(nbytes)


def clocks() -> dict[str, Any]:
    """Steps of globaltimer, its offset between the GPUs, the latency of a flag, the skew of a gate."""
    group = Group()
    try:
        steps = group.ask("rank_steps")
        pairs = group.ask("rank_ping_pong")[0]
        offsets = [answer - (asked + back) / 2 for asked, answer, back in pairs]
        trips = [back - asked for asked, _, back in pairs]
        offset = median(offsets)
        gates = group.ask("rank_gates")
        skew = [b - a - offset for a, b in zip(*gates, strict=True)]
        return {
            "step_ns": steps,
            "offset_ns": round(offset),
            "offset_p10_p90_ns": [round(sorted(offsets)[len(offsets) * p // 10]) for p in (1, 9)],
            "flag_one_way_ns": round(median(trips) / 2),
            "gate_skew_ns": {
                "median": round(median(map(abs, skew))),
                "max": round(max(map(abs, skew))),
            },
        }
    finally:
        group.close()


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


def kill_one() -> dict[str, Any]:
    """SIGKILL of one rank while both spin on a flag that never comes; then of the other."""
    return kills([0], [1])


def kill_both() -> dict[str, Any]:
    """SIGKILL of both at once."""
    return kills([0, 1], [])


def kills(first: list[int], then: list[int]) -> dict[str, Any]:
    """Kills spinning ranks and looks what becomes of processes, memory and GPUs."""
    idle = used_mib()
    group = Group()
    group.ask("rank_spin")
    time.sleep(0.5)
    found: dict[str, Any] = {"busy_before": busy_percent()}
    for name, ranks in (("first", first), ("then", then)):
        if not ranks:
            continue
        for rank in ranks:
            os.kill(group.processes[rank].pid or 0, signal.SIGKILL)
        found[name] = {
            "process_gone_s": until(
                lambda r=ranks: not any(group.processes[i].is_alive() for i in r)
            ),
            "memory_back_s": until(lambda r=ranks: all(used_mib()[i] <= idle[i] for i in r)),
            "busy_after": busy_percent(),
        }
    group.close()
    fresh = Group()
    found["fresh_group_after_s"] = fresh.ready_s
    found["gather_after_us"] = fresh.ask("rank_gather", 16 * MIB)
    fresh.close()
    return found


def rank_spin(rank: Rank) -> str:
    """Starts a kernel that spins for ever."""
    check(
        rank.library.probe_spin(rank.window, ctypes.c_uint64(1 << 40), ctypes.c_uint64(0)), "spin"
    )
    return "spins"


def two_groups() -> dict[str, Any]:
    """Does an idle group on the same GPUs, blocked on the host, slow the other down?"""
    one = Group()
    try:
        alone = one.ask("rank_gather", 64 * MIB)
        held = used_mib()
        other = Group()
        try:
            beside = one.ask("rank_gather", 64 * MIB)
            turn = other.ask("rank_gather", 64 * MIB)
            again = one.ask("rank_gather", 64 * MIB)
            return {
                "alone_us": alone,
                "beside_an_idle_group_us": beside,
                "the_other_us": turn,
                "again_us": again,
                "a_further_group_mib": [b - a for a, b in zip(held, used_mib(), strict=True)],
            }
        finally:
            other.close()
    finally:
        one.close()


def handles() -> dict[str, Any]:
    """Memory that a judge makes: by cudaIpc and by descriptors of the virtual-memory API."""
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    judge = context.Process(target=judge_main, args=(theirs, right), daemon=True)
    judge.start()
    right.close()
    worker_pipe, worker_end = context.Pipe()
    worker = context.Process(target=worker_main, args=(worker_end, left), daemon=True)
    try:
        made = answer(ours)
        worker.start()
        left.close()
        worker_pipe.send(made)
        wrote = answer(worker_pipe)
        ours.send("compare")
        return {**wrote, **answer(ours)}
    finally:
        for process in (judge, worker):
            if process.pid:
                process.kill()
                process.join()


def answer(pipe: Pipe) -> Any:
    """What a process says within half a minute."""
    if not pipe.poll(40):
        raise TimeoutError("no answer")
    found = pipe.recv()
    if isinstance(found, Exception):
        raise found
    return found


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("win32", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("flags", ctypes.c_int),
    ]


def map_handle(driver: ctypes.CDLL, handle: ctypes.c_uint64, nbytes: int, device: int) -> int:
    """Maps an allocation for loads and stores by a device."""
    address = ctypes.c_uint64()
    check(driver.cuMemAddressReserve(ctypes.byref(address), ctypes.c_size_t(nbytes), ctypes.c_size_t(0),
                                     ctypes.c_uint64(0), ctypes.c_uint64(0)), "reserve")  # fmt: skip
    check(driver.cuMemMap(address, ctypes.c_size_t(nbytes), ctypes.c_size_t(0), handle,
                          ctypes.c_uint64(0)), "map")  # fmt: skip
    access = Access(1, device, 3)
    check(driver.cuMemSetAccess(address, ctypes.c_size_t(nbytes), ctypes.byref(access),
                                ctypes.c_size_t(1)), "access")  # fmt: skip
    return address.value


NBYTES = 64 * MIB


def judge_main(pipe: Pipe, channel: socket.socket) -> None:
    """Makes memory on both GPUs, hands it out, compares what was written."""
    try:
        import torch

        driver, runtime = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcudart.so.13")
        torch.cuda.init()
        ipc, addresses, descriptors = [], [], []
        for device in range(2):
            torch.cuda.set_device(device)
            torch.zeros(1, device="cuda")
            plain = ctypes.c_void_p()
            check(runtime.cudaMalloc(ctypes.byref(plain), ctypes.c_size_t(NBYTES)), "cudaMalloc")
            handle = ctypes.create_string_buffer(64)
            check(runtime.cudaIpcGetMemHandle(handle, plain), "cudaIpcGetMemHandle")
            ipc.append(handle.raw)
            allocation = ctypes.c_uint64()
            wanted = Properties(type=1, handle_types=1, location_type=1, location_id=device)
            check(driver.cuMemCreate(ctypes.byref(allocation), ctypes.c_size_t(NBYTES),
                                     ctypes.byref(wanted), ctypes.c_uint64(0)), "cuMemCreate")  # fmt: skip
            descriptor = ctypes.c_int()
            check(driver.cuMemExportToShareableHandle(ctypes.byref(descriptor), allocation, 1,
                                                      ctypes.c_uint64(0)), "export")  # fmt: skip
            descriptors.append(descriptor.value)
            addresses.append((plain.value, map_handle(driver, allocation, NBYTES, device)))
        socket.send_fds(channel, [b"memory"], descriptors)
        pipe.send(ipc)
        pipe.recv()
        found = {}
        for device, (plain, mapped) in enumerate(addresses):
            torch.cuda.set_device(device)
            for name, address in (("ipc", plain), ("descriptor", mapped)):
                found[f"judge_reads_{name}_{device}"] = int(
                    view(torch, address, device)[123].item()
                )
        pipe.send(found)
    except Exception as error:
        pipe.send(error)


class Memory:
    """Device memory as an array of int32, for torch."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (NBYTES // 4,),
            "typestr": "<i4",
            "data": (address, False),
            "version": 3,
        }


def view(torch: Any, address: int, device: int) -> Any:
    """Device memory as a tensor of int32."""
    return torch.as_tensor(Memory(address), device=f"cuda:{device}")


def worker_main(pipe: Pipe, channel: socket.socket) -> None:
    """A rank on GPU 0 that gets the judge's memory of both GPUs and writes it."""
    try:
        ipc = pipe.recv()
        import torch

        driver, runtime = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libcudart.so.13")
        torch.cuda.set_device(0)
        torch.zeros(1, device="cuda")
        found: dict[str, Any] = {}
        _, descriptors, _, _ = socket.recv_fds(channel, 16, 4)
        begin = time.monotonic()
        mapped = []
        for descriptor in descriptors:
            handle = ctypes.c_uint64()
            check(driver.cuMemImportFromShareableHandle(
                ctypes.byref(handle), ctypes.c_void_p(descriptor), 1), "import")  # fmt: skip
            mapped.append(map_handle(driver, handle, NBYTES, 0))
            os.close(descriptor)
        found["import_two_descriptors_ms"] = round(1e3 * (time.monotonic() - begin), 2)
        for device, address in enumerate(mapped):
            view(torch, address, 0).fill_(70 + device)
        torch.cuda.synchronize()
        open_ipc(torch, runtime, ipc, found)
        local, peer = mapped
        for name, source, target in (
            ("stores", local, peer),
            ("stores_local", local, local + NBYTES // 2),
        ):
            times = []
            for _ in range(12):
                start, end = torch.cuda.Event(True), torch.cuda.Event(True)
                start.record()
                library().probe_push(ctypes.c_void_p(target), ctypes.c_void_p(source),
                                     ctypes.c_size_t(NBYTES // 2), 132)  # fmt: skip
                end.record()
                torch.cuda.synchronize()
                times.append(start.elapsed_time(end))
            found[f"{name}_gb_s"] = round(NBYTES / 2 / median(times) / 1e6, 1)
        found["torch_copy_to_peer_gb_s"] = copy_rate(torch, peer, local)
        identity = unique_id()
        comm, window = ctypes.c_void_p(), ctypes.c_void_p()
        made = library()
        check(made.probe_comm(0, 1, identity, ctypes.byref(comm)), "comm")
        found["window_over_imported_memory"] = made.probe_register(
            comm, ctypes.c_void_p(local), ctypes.c_size_t(NBYTES), ctypes.byref(window)
        )
        found["window_is_null"] = not window.value
        pipe.send(found)
        pipe.recv()
    except EOFError:
        return
    except Exception as error:
        pipe.send(error)


def open_ipc(torch: Any, runtime: ctypes.CDLL, ipc: list[bytes], found: dict[str, Any]) -> None:
    """Opens memory of cudaMalloc on both GPUs and writes it."""

    class Handle(ctypes.Structure):
        _fields_ = [("reserved", ctypes.c_char * 64)]

    for device, handle in enumerate(ipc):
        opened = ctypes.c_void_p()
        code = runtime.cudaIpcOpenMemHandle(
            ctypes.byref(opened), Handle.from_buffer_copy(handle), ctypes.c_uint(1)
        )
        found[f"cudaIpcOpenMemHandle_{device}"] = code
        if code == 0:
            view(torch, opened.value or 0, 0).fill_(50 + device)
    torch.cuda.synchronize()


def copy_rate(torch: Any, target: int, source: int) -> float:
    """GB/s of a copy by the copy engine."""
    times = []
    for _ in range(12):
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        view(torch, target, 0)[: NBYTES // 8].copy_(view(torch, source, 0)[: NBYTES // 8])
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return round(NBYTES / 2 / median(times) / 1e6, 1)


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
