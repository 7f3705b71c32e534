"""Short excerpts of kernels for a made-up session."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from kerneltui.model.directive import Backend, Directive, Issuer, Placement, Sync

HOST = """/* host.cpp - the vendor GEMM, then the host all-gather. */
#include <kerneltui/kernel.h>

struct State {
    const kt_context *ctx;
    int64_t m, n, k;
};

extern "C" int kt_run(void *state, uint64_t set, uint64_t epoch, void *stream) {
    auto *s = static_cast<State *>(state);
    const kt_context *ctx = s->ctx;
    float *c = kt_output(ctx, set);
    if (int error = ctx->gemm(ctx, s->m, s->n, s->k, kt_input(ctx, set, 0), c)) return error;
    return ctx->all_gather(ctx, c, s->m * s->n * sizeof(float), stream);
}
"""

WINDOW = """/* window.cpp - C = A B, rows of A sharded over the ranks, written to the peers' windows. */
#include <kerneltui/kernel.h>

#include <algorithm>
#include <cstring>
#include <immintrin.h>

// kerneltui: tunable PLACEMENT in sequential split_put_wait fused
#define PLACEMENT {placement}
// kerneltui: tunable SYNC in world flag_per_chunk
#define SYNC {sync}
// kerneltui: tunable COPY_KIND in COPY_MEMCPY COPY_STREAM COPY_MOVSB
#define COPY_KIND {copy}
// kerneltui: tunable CHUNK_ROWS in 8 24 48 96 192 if CHUNK_ROWS <= M / RANKS
#define CHUNK_ROWS {chunk}
// kerneltui: tunable KC in 128 256 512
#define KC {kc}

namespace {{

struct State {{
    const kt_context *ctx;
    int64_t m, n, k;
    int64_t first_row, chunks;
    float *packed_b, *packed_a;
}};

// kerneltui: evolve begin copies

/* Copies the rows of one chunk to a peer. */
inline void copy_rows(float *target, const float *source, int64_t count) {{
    if (COPY_KIND == COPY_MEMCPY) {{
        std::memcpy(target, source, count * sizeof(float));
        return;
    }}
    for (int64_t i = 0; i < count; i += 8)
        _mm256_stream_ps(target + i, _mm256_load_ps(source + i));
}}

inline void publish(uint64_t *flag, uint64_t epoch) {{
{fence}    __atomic_store_n(flag, epoch, __ATOMIC_RELEASE);
}}

// kerneltui: evolve end

/* One chunk of rows: C[first, first + rows) = A B. */
void multiply_chunk(const State &s, const float *a, float *c, int64_t first, int64_t rows) {{
    for (int64_t k0 = 0; k0 < s.k; k0 += KC) {{
        const int64_t depth = std::min<int64_t>(KC, s.k - k0);
{pack}        for (int64_t j = 0; j < s.n; j += 16)
            micro_kernel(s.packed_a, s.packed_b + j * depth, c + first * s.n + j, rows, depth);
    }}
}}

}}  // namespace

extern "C" int kt_run(void *state, uint64_t set, uint64_t epoch, void *stream) {{
    State &s = *static_cast<State *>(state);
    const float *a = kt_input(s.ctx, set, 0);
    float *c = kt_output(s.ctx, set);
{loop}    return 0;
}}
"""

LOOP_SEQUENTIAL = """    for (int64_t chunk = 0; chunk < s.chunks; ++chunk)
        multiply_chunk(s, a, c, chunk * CHUNK_ROWS, CHUNK_ROWS);
    for (uint32_t peer = 0; peer < s.ctx->ranks; ++peer) {
        if (peer == s.ctx->rank) continue;
        copy_rows(kt_window(s.ctx, set, peer) + s.first_row * s.n, c, s.m * s.n);
        publish(kt_flag(s.ctx, peer, 0), epoch);
    }
"""
LOOP_SPLIT = """    for (int64_t chunk = 0; chunk < s.chunks; ++chunk) {
        const int64_t first = chunk * CHUNK_ROWS;
        multiply_chunk(s, a, c, first, CHUNK_ROWS);
        for (uint32_t step = 1; step < s.ctx->ranks; ++step) {
            const uint32_t peer = (s.ctx->rank + step) % s.ctx->ranks;
            float *target = kt_window(s.ctx, set, peer) + (s.first_row + first) * s.n;
            copy_rows(target, c + first * s.n, CHUNK_ROWS * s.n);
            publish(kt_flag(s.ctx, peer, chunk), epoch);
        }
    }
"""


@dataclass(frozen=True)
class Kernel:
    """The choices behind one text of window.cpp."""

    placement: str = "sequential"
    sync: str = "world"
    copy: str = "COPY_MEMCPY"
    chunk: int = 8
    kc: int = 128
    packed: bool = False
    fence: bool = False

    def text(self) -> str:
        pack = "        pack_a(a + first * s.k + k0, s.k, s.packed_a, rows, depth);\n"
        return WINDOW.format(
            placement=self.placement,
            sync=self.sync,
            copy=self.copy,
            chunk=self.chunk,
            kc=self.kc,
            fence="    if (COPY_KIND == COPY_STREAM) _mm_sfence();\n" if self.fence else "",
            pack=pack if self.packed else "",
            loop=LOOP_SEQUENTIAL if self.placement == "sequential" else LOOP_SPLIT,
        )

    def configuration(self) -> dict[str, str]:
        return {
            "PLACEMENT": self.placement,
            "SYNC": self.sync,
            "COPY_KIND": self.copy,
            "CHUNK_ROWS": str(self.chunk),
            "KC": str(self.kc),
        }

    def directive(self) -> Directive:
        return Directive(
            Backend.LSA,
            Placement(self.placement),
            Sync(self.sync),
            Issuer.THREAD,
            self.chunk * 1024 * 4,
            {"copy": self.copy.removeprefix("COPY_").lower()},
        )


def sha_of(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()
