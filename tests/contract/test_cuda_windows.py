"""Windows of NCCL in a rank: what is asked of the library that makes them, and what becomes of a refusal."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.worker_cuda_windows import NcclWindows
from kerneltui.evaluation.worker_kernel import KernelError
from kerneltui.evaluation.worker_memory import RankMemory, build_context
from kerneltui.model.workload import Role
from kerneltui.targets.cuda import driver
from kerneltui.targets.cuda.toolchain import CudaToolchain
from kerneltui.targets.errors import TargetError
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


def memory_of(shift: int) -> RankMemory:
    specs = [
        TensorSpec("A", DType.BFLOAT16, Role.INPUT, (101, 24), shard=0),
        TensorSpec("C", DType.BFLOAT16, Role.OUTPUT, (101, 72), symmetric=True),
    ]
    layout = GroupLayout.plan(
        specs, {"M": 101}, ranks=2, sets=3, address_shift=shift, granularity=1 << 21
    )
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    return RankMemory(layout, 1, descriptors, cast("Any", Places()))


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
static int held, code;
int refuse(int now) { return code = now; }
int holds(void) { return held; }
int cuMemRetainAllocationHandle(unsigned long long *handle, void *address) {
    if (address != (void *)0x4000000000ull) return 1;
    *handle = 77;
    ++held;
    return 0;
}
int cuMemExportToShareableHandle(int *fd, unsigned long long handle, int type, unsigned long long flags) {
    if (code || handle != 77 || type != 1 || flags) return code ? code : 1;
    *fd = open("/dev/null", O_RDONLY);
    return 0;
}
int cuMemRelease(unsigned long long handle) { return handle == 77 && held-- > 0 ? 0 : 1; }
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_INVALID_VALUE"; return 0; }
int cuGetErrorString(int code, const char **text) { *text = "invalid argument"; return 0; }
"""


def test_memory_that_cannot_be_passed_on_is_told_before_nccl_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    (tmp_path / "driver.c").write_text(DRIVER)
    command = ["gcc", "-shared", "-fPIC", "-o", tmp_path / "driver.so", tmp_path / "driver.c"]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(tmp_path / "driver.so"))
    monkeypatch.setattr(driver, "_library", lambda: library)
    before = len([*Path("/proc/self/fd").iterdir()])
    driver.try_passing_on(0x4000000000)
    library.refuse(1)
    with pytest.raises(driver.DriverError, match="cuMemExportToShareableHandle: invalid argument"):
        driver.try_passing_on(0x4000000000)
    assert library.holds() == 0
    assert len([*Path("/proc/self/fd").iterdir()]) == before
