"""Kernels for the tests of the CPU runtime: one that works, and the ways to go wrong."""

from __future__ import annotations

from kerneltui.model.workload import Role
from kerneltui.targets.port import Requirements
from kerneltui.targets.windows import DType, GroupLayout, TensorSpec

ROWS, COLUMNS = 101, 8  # does not divide by 2 or 3

FRAME = r"""
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
HEADERS
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "kerneltui/kernel.h"

struct State { kt_context c; };

static void gather(const kt_context &c, uint32_t set, uint64_t epoch) {
    const kt_tensor *a = kt_find(&c.buffers[set], "A");
    const kt_tensor *y = kt_find(&c.buffers[set], "C");
    for (uint32_t q = 0; q < c.ranks; ++q) {
        char *there = static_cast<char *>(y->peers[q]) + a->offset[0] * a->shape[1] * 4;
        std::memcpy(there, a->local, a->bytes);
        reinterpret_cast<std::atomic<uint64_t> *>(c.signals[q])[c.rank].store(
            epoch + 1, std::memory_order_release);
    }
    auto *mine = reinterpret_cast<std::atomic<uint64_t> *>(c.signals[c.rank]);
    for (uint32_t q = 0; q < c.ranks; ++q)
        while (mine[q].load(std::memory_order_acquire) < epoch + 1) sched_yield();
}

extern "C" int kerneltui_requirements(const kt_named_value *, uint32_t, const kt_named_value *,
                                      uint32_t, uint32_t, uint32_t ranks, kt_requirements *out) {
    out->abi_version = KERNELTUI_ABI_VERSION;
    out->signal_words = ranks;
    out->window_bytes = 1000;
    out->scratch_bytes = 5000;
    return 0;
}
extern "C" int kerneltui_setup(const kt_context *context, void **state) {
    *state = new State{*context};
    return 0;
}
extern "C" int kerneltui_teardown(void *state) {
    delete static_cast<State *>(state);
    return 0;
}
extern "C" int kerneltui_run(void *state, uint32_t set, uint64_t epoch, void *) {
    const kt_context &c = static_cast<State *>(state)->c;
    (void)set; (void)epoch;
    BODY
    return 0;
}
"""

GATHER = "gather(c, set, epoch);"


def kernel(body: str = GATHER, *headers: str) -> str:
    """The source of a kernel whose `run` is `body`; `c` is its context."""
    lines = "\n".join(f"#include <{header}>" for header in headers)
    return FRAME.replace("HEADERS", lines).replace("BODY", body)


def specs(rows: int = ROWS, columns: int = COLUMNS) -> list[TensorSpec]:
    """A gathered into C."""
    return [
        TensorSpec("A", DType.FLOAT32, Role.INPUT, (rows, columns), shard=0),
        TensorSpec("C", DType.FLOAT32, Role.OUTPUT, (rows, columns), symmetric=True),
    ]


def layout(ranks: int = 2, sets: int = 3, wanted: Requirements | None = None) -> GroupLayout:
    """The layout of `specs`, with what `kernel` asks for."""
    return GroupLayout.plan(
        specs(),
        {"M": ROWS, "N": COLUMNS},
        ranks=ranks,
        sets=sets,
        signal_words=wanted.signal_words if wanted else ranks,
        window_bytes=wanted.window_bytes if wanted else 1000,
        scratch_bytes=wanted.scratch_bytes if wanted else 5000,
    )
