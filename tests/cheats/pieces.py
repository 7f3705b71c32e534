"""Kernels of the cheat catalogue, put together from one honest kernel and a few replaced parts."""

from __future__ import annotations

__all__ = ["ZEROS", "kernel"]

ZEROS = "std::memset(c, 0, size_of_c(s) * sizeof(float));"
"""What a kernel does that computes nothing."""

_TEMPLATE = r"""
#include <kerneltui/kernel.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <vector>
#include <sched.h>
@INCLUDES@

struct State {
    const kt_context *ctx;
    int64_t m, n, k, first, rows;
};

static float *tensor(const State *s, uint32_t set, const char *name) {
    return static_cast<float *>(kt_find(&s->ctx->buffers[set], name)->local);
}

/* Writes rows first .. first + rows of the product, from rows of A that begin at `a`. */
static void multiply(const State *s, const float *a, const float *b, float *c, int64_t rows) {
    const int64_t n = s->n, k = s->k;
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < n; ++j) c[i * n + j] = 0;
        for (int64_t p = 0; p < k; ++p) {
            const float x = a[i * k + p];
            for (int64_t j = 0; j < n; ++j) c[i * n + j] += x * b[p * n + j];
        }
    }
}

static void push(const State *s, uint32_t set, uint64_t epoch) {
    const kt_context *ctx = s->ctx;
    const kt_tensor *c = kt_find(&ctx->buffers[set], "C");
    const size_t offset = size_t(s->first * s->n);
    for (uint32_t q = 0; q < ctx->ranks; ++q) {
        if (q == ctx->rank) continue;
        std::memcpy(static_cast<float *>(c->peers[q]) + offset, static_cast<float *>(c->local) + offset,
                    size_t(s->rows * s->n) * sizeof(float));
        __atomic_store_n(&ctx->signals[q][ctx->rank], epoch, __ATOMIC_RELEASE);
    }
}

static void wait(const State *s, uint64_t epoch) {
    const kt_context *ctx = s->ctx;
    for (uint32_t q = 0; q < ctx->ranks; ++q)
        while (q != ctx->rank && __atomic_load_n(&ctx->signals[ctx->rank][q], __ATOMIC_ACQUIRE) < epoch)
            sched_yield();
}

static void honest(const State *s, uint32_t set, uint64_t epoch) {
    multiply(s, tensor(s, set, "A"), tensor(s, set, "B"), tensor(s, set, "C") + s->first * s->n, s->rows);
    push(s, set, epoch);
    wait(s, epoch);
}

static size_t size_of_c(const State *s) { return size_t(s->m * s->n); }

@GLOBALS@

extern "C" int kerneltui_requirements(const kt_named_value *, uint32_t, const kt_named_value *, uint32_t,
                                      uint32_t, uint32_t ranks, kt_requirements *out) {
    out->abi_version = KERNELTUI_ABI_VERSION;
    out->signal_words = ranks;
    return 0;
}

extern "C" int kerneltui_setup(const kt_context *ctx, void **state) {
    State *s = new State{};
    s->ctx = ctx;
    s->m = kt_value(ctx->dimensions, ctx->dimension_count, "M", 0);
    s->n = kt_value(ctx->dimensions, ctx->dimension_count, "N", 0);
    s->k = kt_value(ctx->dimensions, ctx->dimension_count, "K", 0);
    s->first = kt_first_row(s->m, ctx->rank, ctx->ranks);
    s->rows = kt_first_row(s->m, ctx->rank + 1, ctx->ranks) - s->first;
    *state = s;
    return 0;
}

extern "C" int kerneltui_run(void *opaque, uint32_t set, uint64_t epoch, void *) {
    const State *s = static_cast<const State *>(opaque);
    const uint32_t rank = s->ctx->rank;
    float *const c = tensor(s, set, "C");
    (void)rank;
    (void)c;
@RUN@
    return 0;
}

extern "C" int kerneltui_teardown(void *opaque) {
    delete static_cast<State *>(opaque);
    return 0;
}
"""


def kernel(run: str = "honest(s, set, epoch);", globals_: str = "", includes: str = "") -> str:
    """Returns the source of a kernel: what `run` does, helpers before it, further headers."""
    return (
        _TEMPLATE.replace("@RUN@", run)
        .replace("@GLOBALS@", globals_)
        .replace("@INCLUDES@", includes)
    )
