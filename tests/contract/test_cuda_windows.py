"""Windows of NCCL in a rank: what is asked of the library that makes them, and what becomes of a refusal."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.worker_cuda_windows import NcclWindows
from kerneltui.evaluation.worker_kernel import KernelError
from kerneltui.evaluation.worker_memory import RankMemory, build_context
from kerneltui.model.workload import Role
from kerneltui.targets.cuda import device_memory, driver
from kerneltui.targets.cuda.toolchain import CudaToolchain
from kerneltui.targets.errors import MemoryFailure, TargetError
from kerneltui.targets.windows import DType, GroupLayout, TensorSpec

pytestmark = pytest.mark.slow

COMMUNICATOR, FIRST_BASE = 0x1000, 1 << 40
ROOT = Path(__file__).parents[2]
SHIM = ROOT / "kerneltui" / "targets" / "cuda" / "nccl_windows.cu"

# Plays the library: notes what it is asked, and refuses when it is told to.
PLAYED = r"""
#include <cstdint>
#include <cstdio>
static uint64_t notes[64];
static int count, ended, device_ended;
extern "C" {
int refuse_after = 1000;
uint64_t note(int i) { return notes[i]; }
int ends() { return ended; }
int device_ends() { return device_ended; }
int ht_nccl_version() { return 22809; }
int ht_nccl_register(void *c, void *place, uint64_t bytes, void **window, char *text, uint64_t room) {
    if (count / 3 >= refuse_after) { std::snprintf(text, room, "ncclCommWindowRegister: no"); return 1; }
    notes[count++] = (uint64_t)c; notes[count++] = (uint64_t)place; notes[count++] = bytes;
    *window = (void *)(uint64_t)(0x7000 + count / 3);
    return 0;
}
int ht_nccl_deregister(void *c, void *window) { ++ended; return (uint64_t)c == 0x1000 && window ? 0 : 1; }
int ht_nccl_device(void *, uint32_t barriers, uint32_t signals, void **device, char *text, uint64_t room) {
    if (signals) { std::snprintf(text, room, "needs NCCL with GIN: none"); return 1; }
    *device = (void *)(uint64_t)(0x9000 + barriers);
    return 0;
}
int ht_nccl_device_end(void *, void *) { ++device_ended; return 0; }
}
"""


class Places:
    """A mapper whose addresses are made up."""

    def __init__(self) -> None:
        self._next = FIRST_BASE

    def map(self, nbytes: int, descriptor: int) -> int:
        place, self._next = self._next, self._next + (-(-nbytes // (1 << 21)) << 21)
        return place

    def scratch(self, nbytes: int) -> int:
        return self.map(nbytes, -1)

    def close(self) -> None:
        pass


def connected(version: int = 22809) -> Any:
    return SimpleNamespace(version=version, face=SimpleNamespace(communicator=COMMUNICATOR))


def memory_of(shift: int, *, window_bytes: int = 0, own: int = 0) -> RankMemory:
    specs = [
        TensorSpec("A", DType.BFLOAT16, Role.INPUT, (101, 24), shard=0),
        TensorSpec("C", DType.BFLOAT16, Role.OUTPUT, (101, 72), symmetric=True),
    ]
    layout = GroupLayout.plan(
        specs,
        {"M": 101},
        ranks=2,
        sets=3,
        window_bytes=window_bytes,
        address_shift=shift,
        granularity=1 << 21,
        offered=bool(own),
    )
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    return RankMemory(layout, 1, descriptors, cast("Any", Places()), own)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("played")
    (folder / "played.cpp").write_text(PLAYED)
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-o", folder / "played.so", folder / "played.cpp"], check=True
    )
    return folder / "played.so"


def loaded(played: Path, tmp_path: Path) -> tuple[NcclWindows, ctypes.CDLL]:
    """The library under a name of its own, so that it begins anew."""
    own = tmp_path / "own.so"
    shutil.copy(played, own)
    return NcclWindows(str(own), connected()), ctypes.CDLL(str(own))


@pytest.mark.parametrize("shift", [0, 256, 1792])
def test_every_symmetric_tensor_has_a_window_that_holds_it(
    played: Path, tmp_path: Path, shift: int
) -> None:
    windows, library = loaded(played, tmp_path)
    library.note.restype = ctypes.c_uint64
    memory = memory_of(shift)
    context, _keep = build_context(memory, {}, 1)
    needs = abi.Requirements(abi_version=1, nccl_windows=1, barriers=3)
    windows.make(context, memory, needs)
    assert context.device_comm == 0x9003
    for index in range(3):
        private, shared = (context.buffers[index].tensors[place] for place in (0, 1))
        assert private.window is None
        assert shared.window == 0x7001 + index
        given, base, size = (library.note(3 * index + part) for part in range(3))
        assert given == COMMUNICATOR
        assert base % 4096 == 0
        assert shared.local - base == shared.local % 4096  # what kt_window_offset says
        assert base + size >= shared.local + shared.bytes
    windows.end()
    windows.end()
    assert (library.ends(), library.device_ends()) == (3, 1)


def test_a_refusal_takes_back_what_was_made(played: Path, tmp_path: Path) -> None:
    windows, library = loaded(played, tmp_path)
    ctypes.c_int.in_dll(library, "refuse_after").value = 2
    memory = memory_of(0)
    context, _keep = build_context(memory, {}, 1)
    with pytest.raises(KernelError, match="ncclCommWindowRegister: no"):
        windows.make(context, memory, abi.Requirements(abi_version=1, nccl_windows=1))
    assert (library.ends(), library.device_ends()) == (2, 1)


def test_no_network_is_one_line(played: Path, tmp_path: Path) -> None:
    windows, _ = loaded(played, tmp_path)
    memory = memory_of(0)
    context, _keep = build_context(memory, {}, 1)
    with pytest.raises(KernelError, match=r"^needs NCCL with GIN: none$"):
        windows.make(context, memory, abi.Requirements(abi_version=1, gin_signals=4))


def test_header_and_library_of_two_versions_are_refused(played: Path) -> None:
    with pytest.raises(KernelError, match="of version 22809, its library of 22907"):
        NcclWindows(str(played), connected(22907))
    with pytest.raises(KernelError, match="no NCCL windows"):
        NcclWindows("/nowhere.so", connected())


def test_the_library_itself_loads_beside_nccl(tmp_path: Path) -> None:
    """Without a GPU it can say its version, and that NCCL refuses."""
    toolchain = CudaToolchain(tmp_path, arch="sm_90a")
    try:
        found = toolchain.nccl
    except TargetError as error:
        pytest.skip(str(error))
    if found.library is None:
        pytest.skip("there are only headers of NCCL")
    try:
        nccl = ctypes.CDLL(str(found.library), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        pytest.skip(f"NCCL does not load here: {error}")
    version = ctypes.c_int()
    assert nccl.ncclGetVersion(ctypes.byref(version)) == 0
    build = toolchain.compile(SHIM.read_text())
    fake = SimpleNamespace(version=version.value, face=SimpleNamespace(communicator=None))
    windows = NcclWindows(str(build.library), cast("Any", fake))
    memory = memory_of(0)
    context, _keep = build_context(memory, {}, 1)
    with pytest.raises(KernelError, match="needs NCCL with GIN: "):
        windows.make(context, memory, abi.Requirements(abi_version=1, gin_signals=4))


DRIVER = r"""
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
struct where { int type, id; };
struct what { int type, kinds; struct where at; void *win32; unsigned char more[8]; };
static int held, code, silent, mapped, reserved, allowed;
static struct where home = {1, 0};
int refuse(int now) { return code = now; }
int keep_silent(int now) { return silent = now; }
int lie_on(int type, int id) { home.type = type; return home.id = id; }
int holds(void) { return held; }
int maps(void) { return mapped * 100 + reserved * 10 + allowed; }
int cuMemRetainAllocationHandle(unsigned long long *handle, void *address) {
    if (address != (void *)0x4000000000ull) return 1;
    *handle = 77;
    ++held;
    return 0;
}
int cuMemCreate(unsigned long long *handle, size_t bytes, const struct what *what, unsigned long long flags) {
    if (what->type != 1 || what->kinds != 1 || what->at.type != 1 || what->at.id != 1) return 1;
    if (what->more[0] || what->more[1]) return 1;
    if (bytes > (1 << 30)) return 2;
    *handle = 77;
    ++held;
    return flags ? 1 : 0;
}
int cuMemExportToShareableHandle(int *fd, unsigned long long handle, int type, unsigned long long flags) {
    if (code || handle != 77 || type != 1 || flags) return code ? code : 1;
    *fd = open("/dev/null", O_RDONLY);
    return 0;
}
int cuMemImportFromShareableHandle(unsigned long long *handle, void *fd, int type) {
    if (fcntl((int)(intptr_t)fd, F_GETFD) < 0 || type != 1) return 1;
    *handle = 77;
    ++held;
    return 0;
}
int cuMemAddressReserve(unsigned long long *at, size_t bytes, size_t alignment, unsigned long long near,
                        unsigned long long flags) {
    *at = 0x4000000000ull;
    ++reserved;
    return bytes && !alignment && !near && !flags ? 0 : 1;
}
int cuMemAddressFree(unsigned long long at, size_t bytes) { return reserved-- > 0 && at && bytes ? 0 : 1; }
int cuMemMap(unsigned long long at, size_t bytes, size_t offset, unsigned long long handle,
             unsigned long long flags) {
    if (handle != 77 || offset || flags || !at || !bytes) return 1;
    ++mapped;
    return 0;
}
int cuMemUnmap(unsigned long long at, size_t bytes) { return mapped-- > 0 && at && bytes ? 0 : 1; }
int cuMemSetAccess(unsigned long long at, size_t bytes, const void *who, size_t count) {
    allowed = (int)count;
    return at && bytes && who ? 0 : 1;
}
int cuMemGetAllocationPropertiesFromHandle(struct what *what, unsigned long long handle) {
    if (silent || handle != 77) return 801;
    what->type = 1;
    what->at = home;
    return 0;
}
int cuPointerGetAttribute(int *value, int attribute, unsigned long long at) {
    if (silent > 1 || attribute != 9 || at != 0x4000000000ull) return 801;
    *value = home.id;
    return 0;
}
int cuMemRelease(unsigned long long handle) { return handle == 77 && held-- > 0 ? 0 : 1; }
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_INVALID_VALUE"; return 0; }
int cuGetErrorString(int code, const char **text) { *text = "invalid argument"; return 0; }
"""


@pytest.fixture
def drives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """A driver that keeps books; nothing of what it lent is kept, and no descriptor."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    (tmp_path / "driver.c").write_text(DRIVER)
    command = ["gcc", "-shared", "-fPIC", "-o", tmp_path / "driver.so", tmp_path / "driver.c"]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(tmp_path / "driver.so"))
    monkeypatch.setattr(driver, "_library", lambda: library)
    before = open_files()
    yield library
    assert library.holds() == 0
    assert library.maps() // 10 == 0
    assert open_files() == before


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_memory_that_cannot_be_passed_on_is_told_before_nccl_waits_for_it(
    drives: ctypes.CDLL,
) -> None:
    device_memory.try_passing_on(0x4000000000)
    drives.refuse(1)
    with pytest.raises(driver.DriverError, match="cuMemExportToShareableHandle: invalid argument"):
        device_memory.try_passing_on(0x4000000000)


def test_what_a_rank_makes_is_mapped_and_can_go_on(drives: ctypes.CDLL) -> None:
    mapping, descriptor = device_memory.create_mapped(1, 4 << 20)
    assert drives.holds() == 0  # the mapping keeps it
    assert drives.maps() == 111
    device_memory.try_passing_on(mapping.address)
    os.close(descriptor)
    mapping.close()
    drives.refuse(1)
    with pytest.raises(driver.DriverError, match="cuMemExportToShareableHandle"):
        device_memory.create_mapped(1, 4 << 20)
    with pytest.raises(MemoryFailure, match="GPU 1 has no room for 2048 MiB"):
        device_memory.create_mapped(1, 2 << 30)


@pytest.mark.parametrize("silent", [0, 1])
def test_what_a_rank_offers_must_lie_on_its_device(drives: ctypes.CDLL, silent: int) -> None:
    drives.keep_silent(silent)
    with Path(os.devnull).open("rb") as file:
        drives.lie_on(1, 1)
        device_memory.map_shared(file.fileno(), 2 << 20, (0, 1), home=1).close()
        assert drives.maps() == 2  # for both devices
        drives.lie_on(1, 0)
        with pytest.raises(driver.DriverError, match="it lies on GPU 0, not on GPU 1"):
            device_memory.map_shared(file.fileno(), 2 << 20, (0, 1), home=1)
        device_memory.map_shared(
            file.fileno(), 2 << 20, (0, 1)
        ).close()  # that of the judge may lie anywhere
        if not silent:
            drives.lie_on(2, 1)  # memory of the host, on its node 1
            with pytest.raises(driver.DriverError, match="it lies on no GPU, not on GPU 1"):
                device_memory.map_shared(file.fileno(), 2 << 20, (0, 1), home=1)


def test_memory_of_unknown_place_is_refused(drives: ctypes.CDLL) -> None:
    drives.keep_silent(2)
    with (
        Path(os.devnull).open("rb") as file,
        pytest.raises(driver.DriverError, match="where it lies is not known: cuMemGetAllocation"),
    ):
        device_memory.map_shared(file.fileno(), 2 << 20, (0, 1), home=1)


def test_the_further_memory_is_registered_behind_the_tensors(played: Path, tmp_path: Path) -> None:
    windows, library = loaded(played, tmp_path)
    library.note.restype = ctypes.c_uint64
    memory = memory_of(256, window_bytes=10_000)
    context, _keep = build_context(memory, {}, 1)
    windows.make(context, memory, abi.Requirements(abi_version=1, nccl_windows=1))
    _, base, size = (library.note(3 * 3 + part) for part in range(3))
    place = context.window[1]
    assert base <= place
    assert base + size >= place + 10_000
    windows.end()
    assert library.ends() == 4


def test_an_offered_file_is_the_ranks_own_mapping() -> None:
    plain, offered = memory_of(0), memory_of(0, own=5 << 40)
    assert offered.symmetric[1] == 5 << 40
    assert offered.symmetric[0] == plain.symmetric[0]
    assert len({*offered.symmetric, *offered.signals, offered.private}) == 5
