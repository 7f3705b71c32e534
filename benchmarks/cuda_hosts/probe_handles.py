"""A question about memory: what a judge makes and ranks map, by cudaIpc and by descriptors."""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import socket
import time
from statistics import median
from typing import Any

from probe_ranks import MIB, Pipe, check, library, unique_id

NBYTES = 64 * MIB


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
