"""Kernels for the tests of the runtime of GPUs: one that works, and the ways to go wrong."""

from __future__ import annotations

FRAME = r"""
#include <cuda_runtime.h>
#include <cstdint>
#include <new>
#include <vector>
#include <kerneltui/kernel.h>

namespace {
struct State {
    const kt_context *ctx;
    int64_t first, rows, n, k;
    std::vector<uint64_t> bytes;
    cudaStream_t other;
    cudaEvent_t joined;
};
__global__ void spin_for_ever(volatile uint64_t *word) { while (*word != 0xffffffffffffull) {} }
__global__ void write_far(char *place) { place[(1ll << 40) + threadIdx.x] = 1; }
__global__ void greedy() { extern __shared__ char memory[]; memory[threadIdx.x] = 1; }
__global__ void spoil(char *place) { place[1] ^= 0x80; }
__global__ void delay(uint64_t ns) {
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - begin < ns);
}
}

extern "C" int kerneltui_requirements(const kt_named_value *, uint32_t, const kt_named_value *, uint32_t,
                                      uint32_t, uint32_t, kt_requirements *out) {
    out->abi_version = KERNELTUI_ABI_VERSION;
    out->host_collectives = 1;
    out->signal_words = 16;
    out->side_streams = 1;
    return 0;
}
extern "C" int kerneltui_setup(const kt_context *ctx, void **out) {
    State *s = new State{};
    s->ctx = ctx;
    const int64_t m = kt_value(ctx->dimensions, ctx->dimension_count, "M", 0);
    s->n = kt_value(ctx->dimensions, ctx->dimension_count, "N", 0);
    s->k = kt_value(ctx->dimensions, ctx->dimension_count, "K", 0);
    s->first = kt_first_row(m, ctx->rank, ctx->ranks);
    s->rows = kt_first_row(m, ctx->rank + 1, ctx->ranks) - s->first;
    for (uint32_t r = 0; r < ctx->ranks; ++r)
        s->bytes.push_back(2 * s->n * (kt_first_row(m, r + 1, ctx->ranks) - kt_first_row(m, r, ctx->ranks)));
    *out = s;
    SETUP
    return 0;
}
extern "C" int kerneltui_run(void *state, uint32_t set, uint64_t epoch, void *stream) {
    State *s = static_cast<State *>(state);
    const kt_context *ctx = s->ctx;
    cudaStream_t st = static_cast<cudaStream_t>(stream);
    (void)epoch; (void)st;
    const kt_tensor *a = kt_find(&ctx->buffers[set], "A"), *b = kt_find(&ctx->buffers[set], "B");
    const kt_tensor *c = kt_find(&ctx->buffers[set], "C");
    char *own = static_cast<char *>(c->local) + s->first * s->n * 2;
    auto multiply = [&](void *where) {
        return s->rows ? ctx->vendor->gemm(ctx->vendor->self, s->rows, s->n, s->k, a->local, s->k, b->local,
                                           s->n, own, s->n, where) : 0;
    };
    auto gather = [&] {
        return ctx->host->all_gather(ctx->host->self, own, c->local, s->bytes.data(), stream);
    };
    (void)multiply; (void)gather;
    RUN
    return 0;
}
extern "C" int kerneltui_teardown(void *state) { delete static_cast<State *>(state); return 0; }
"""

RIGHT = "if (int e = multiply(stream)) return e; if (int e = gather()) return e;"
HANG = "spin_for_ever<<<1, 1, 0, st>>>(ctx->signals[ctx->rank]);"
FAULT = RIGHT + "write_far<<<1, 32, 0, st>>>(static_cast<char *>(c->local));"
SHARED_MEMORY = (
    "if (cudaFuncSetAttribute(greedy, cudaFuncAttributeMaxDynamicSharedMemorySize, 400000) != cudaSuccess)"
    "{ ctx->fail(ctx->fail_self, cudaGetErrorString(cudaGetLastError())); return 7; }"
    "greedy<<<1, 32, 400000, st>>>();"
)
WRONG = RIGHT + "spoil<<<1, 1, 0, st>>>(static_cast<char *>(c->local));"
UNJOINED = (
    RIGHT + "cudaStream_t side = static_cast<cudaStream_t>(ctx->side_streams[0]);"
    "cudaMemcpyAsync(c->local, a->local, 64, cudaMemcpyDeviceToDevice, side);"
)
OWN_STREAM = (
    "if (!s->other) cudaStreamCreateWithFlags(&s->other, cudaStreamNonBlocking);"
    + RIGHT
    + "delay<<<1, 1, 0, s->other>>>(20000000);"
    "cudaMemsetAsync(c->local, 1, 64, s->other);"
)
# Joined to the caller's stream at the end, but begun before the caller's earlier work is done.
EARLY = (
    "if (!s->other) {"
    " cudaStreamCreateWithFlags(&s->other, cudaStreamNonBlocking);"
    " cudaEventCreateWithFlags(&s->joined, cudaEventDisableTiming); }"
    "if (int e = multiply(s->other)) return e;"
    "cudaEventRecord(s->joined, s->other); cudaStreamWaitEvent(st, s->joined, 0);"
    "if (int e = gather()) return e;"
)
ONE_RANK_HANGS = (
    "if (ctx->rank == 1) { spin_for_ever<<<1, 1, 0, st>>>(ctx->signals[1]); return 0; }" + RIGHT
)
SYNCHRONISES = RIGHT + "cudaStreamSynchronize(st);"
ONE_RANK_SYNCHRONISES = RIGHT + "if (ctx->rank == 0) cudaStreamSynchronize(st);"
ALL_MEMORY = (
    "size_t room = 0, whole = 0; cudaMemGetInfo(&room, &whole); void *p = nullptr;"
    "if (cudaMalloc(&p, room - (64u << 20)) != cudaSuccess) return 9;"
)
TOO_MUCH_MEMORY = (
    "void *p = nullptr; if (cudaMalloc(&p, 1ull << 42) != cudaSuccess)"
    "{ ctx->fail(ctx->fail_self, cudaGetErrorString(cudaGetLastError())); return 9; }"
)


def kernel(run: str = RIGHT, setup: str = "") -> str:
    """The source of a kernel with this body of `run` and this end of `setup`."""
    return FRAME.replace("SETUP", setup).replace("RUN", run)
