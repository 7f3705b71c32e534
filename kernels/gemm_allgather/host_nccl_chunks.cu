/* host_nccl_chunks.cu - C = A B with the rows of A sharded over the ranks, driven by the host, in chunks:
 * NCCL gathers a chunk of every rank's rows while the next chunk is multiplied.
 *
 *   stream   gemm(0)  gemm(1)    gemm(2)    ...        join
 *   side 0            gather(0)  gather(1)  gather(2)
 *   side 1                       copy(0)    copy(1)    copy(2)
 *
 * The chunks of all ranks do not lie one behind the other in C, as NCCL wants them. They are gathered into a
 * staging block, of which there are two, and copied from there into the rows where they belong; the copies
 * take no SM of the product. With one chunk there is nothing to be staged: it is gathered in place.
 *
 * With WINDOWS, the memory that NCCL gathers into is an NCCL window, and NCCL takes its kernel for symmetric
 * memory.
 */
#include <cuda_runtime.h>
#include <kerneltui/kernel.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <new>
#include <vector>

// kerneltui: directive backend host
// kerneltui: directive issuer dedicated
// kerneltui: directive placement stream_overlap
// kerneltui: directive sync world
// kerneltui: directive chunk_bytes = (M / RANKS / CHUNKS) * N * 2

// Whether symmetric memory is registered with NCCL.
// kerneltui: tunable WINDOWS in 0 1
#define WINDOWS 0
// Chunks of a rank's rows.
// kerneltui: runtime CHUNKS in 1 2 4 8 16 default 4

namespace {

constexpr int slots = 2;               /* staging blocks */
constexpr uint64_t largest_element = 4; /* what is multiplied is not known before setup */

struct Chunk {
    int64_t first, rows;            /* among this rank's rows */
    std::vector<uint64_t> place;    /* of every rank's part: where it begins in C */
    std::vector<uint64_t> bytes;    /* of every rank's part */
    cudaEvent_t multiplied, gathered, copied;
};

struct State {
    const kt_context *ctx;
    int64_t n, k;
    uint64_t row_bytes; /* of C */
    uint64_t slot_bytes;
    std::vector<Chunk> chunks;
    cudaEvent_t begun;
};

int fail(const kt_context *ctx, const char *reason) {
    ctx->fail(ctx->fail_self, reason);
    return 1;
}

int fail(const kt_context *ctx, const char *what, cudaError_t error) {
    char text[256];
    std::snprintf(text, sizeof text, "%s: %s", what, cudaGetErrorString(error));
    return fail(ctx, text);
}

/* Most rows that chunk `c` has over all ranks, for any c. */
int64_t most_rows(int64_t m, int64_t ranks, int64_t chunks) {
    int64_t most = 0;
    for (int64_t c = 0; c < chunks; ++c) {
        int64_t rows = 0;
        for (int64_t r = 0; r < ranks; ++r) {
            const int64_t own = kt_first_row(m, r + 1, ranks) - kt_first_row(m, r, ranks);
            rows += kt_first_row(own, c + 1, chunks) - kt_first_row(own, c, chunks);
        }
        most = std::max(most, rows);
    }
    return most;
}

void cut(State &s, int64_t m, int64_t chunks) {
    const int64_t ranks = s.ctx->ranks;
    for (int64_t c = 0; c < chunks; ++c) {
        Chunk chunk{};
        for (int64_t r = 0; r < ranks; ++r) {
            const int64_t begin = kt_first_row(m, r, ranks);
            const int64_t own = kt_first_row(m, r + 1, ranks) - begin;
            const int64_t first = kt_first_row(own, c, chunks), end = kt_first_row(own, c + 1, chunks);
            chunk.place.push_back(uint64_t(begin + first) * s.row_bytes);
            chunk.bytes.push_back(uint64_t(end - first) * s.row_bytes);
            if (r == int64_t(s.ctx->rank)) {
                chunk.first = first;
                chunk.rows = end - first;
            }
        }
        s.chunks.push_back(chunk);
    }
}

int make_events(State &s) {
    cudaError_t error = cudaEventCreateWithFlags(&s.begun, cudaEventDisableTiming);
    for (Chunk &chunk : s.chunks)
        for (cudaEvent_t *event : {&chunk.multiplied, &chunk.gathered, &chunk.copied})
            if (!error) error = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    return error ? fail(s.ctx, "setup", error) : 0;
}

/* `after` goes on only when what stands on `before` is done. */
cudaError_t order(cudaStream_t before, cudaEvent_t event, cudaStream_t after) {
    const cudaError_t error = cudaEventRecord(event, before);
    return error ? error : cudaStreamWaitEvent(after, event, 0);
}

int multiply(const State &s, const kt_tensor *a, const kt_tensor *b, const kt_tensor *c, const Chunk &chunk,
             cudaStream_t stream) {
    if (!chunk.rows) return 0;
    const uint64_t element = s.row_bytes / uint64_t(s.n);
    const char *rows = static_cast<const char *>(a->local) + uint64_t(chunk.first * s.k) * element;
    char *product = static_cast<char *>(c->local) + chunk.place[s.ctx->rank];
    if (s.ctx->vendor->gemm(s.ctx->vendor->self, chunk.rows, s.n, s.k, rows, s.k, b->local, s.n, product, s.n,
                            stream))
        return fail(s.ctx, "the vendor GEMM failed");
    return 0;
}

// kerneltui: evolve begin schedule
/* Gathers a chunk into a staging block. */
int gather(const State &s, const kt_tensor *c, const Chunk &chunk, char *staging, cudaStream_t stream) {
    const char *own = static_cast<const char *>(c->local) + chunk.place[s.ctx->rank];
    if (s.ctx->host->all_gather(s.ctx->host->self, own, staging, chunk.bytes.data(), stream))
        return fail(s.ctx, "the all-gather of a chunk failed");
    return 0;
}

/* Copies the peers' parts from a staging block to where they belong. */
cudaError_t spread(const State &s, const kt_tensor *c, const Chunk &chunk, const char *staging,
                   cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
    for (uint32_t r = 0; r < s.ctx->ranks && !error; staging += chunk.bytes[r++])
        if (r != s.ctx->rank && chunk.bytes[r])
            error = cudaMemcpyAsync(static_cast<char *>(c->local) + chunk.place[r], staging, chunk.bytes[r],
                                    cudaMemcpyDeviceToDevice, stream);
    return error;
}

int run_chunks(State &s, const kt_tensor *a, const kt_tensor *b, const kt_tensor *c, cudaStream_t stream) {
    const kt_context *ctx = s.ctx;
    const cudaStream_t gathering = static_cast<cudaStream_t>(ctx->side_streams[0]);
    const cudaStream_t copying = static_cast<cudaStream_t>(ctx->side_streams[1]);
    char *staging = static_cast<char *>(ctx->window[ctx->rank]);
    cudaError_t error = order(stream, s.begun, gathering); /* also a rank without rows follows what stands here */
    for (size_t i = 0; i < s.chunks.size() && !error; ++i) {
        Chunk &chunk = s.chunks[i];
        char *slot = staging + i % slots * s.slot_bytes;
        if (multiply(s, a, b, c, chunk, stream)) return 1;
        error = order(stream, chunk.multiplied, gathering);
        if (!error && i >= slots) error = cudaStreamWaitEvent(gathering, s.chunks[i - slots].copied, 0);
        if (error) break;
        if (gather(s, c, chunk, slot, gathering)) return 1;
        error = order(gathering, chunk.gathered, copying);
        if (!error) error = spread(s, c, chunk, slot, copying);
        if (!error) error = cudaEventRecord(chunk.copied, copying);
    }
    if (!error) error = cudaStreamWaitEvent(stream, s.chunks.back().copied, 0);
    return error ? fail(ctx, "a chunk", error) : 0;
}

int run_whole(State &s, const kt_tensor *a, const kt_tensor *b, const kt_tensor *c, cudaStream_t stream) {
    const Chunk &all = s.chunks.front();
    if (multiply(s, a, b, c, all, stream)) return 1;
    const char *own = static_cast<const char *>(c->local) + all.place[s.ctx->rank];
    if (s.ctx->host->all_gather(s.ctx->host->self, own, c->local, all.bytes.data(), stream))
        return fail(s.ctx, "the all-gather failed");
    return 0;
}
// kerneltui: evolve end

}  // namespace

int kerneltui_requirements(const kt_named_value *dimensions, uint32_t dimension_count,
                           const kt_named_value *tunables, uint32_t tunable_count, uint32_t, uint32_t ranks,
                           kt_requirements *out) {
    const int64_t chunks = kt_value(tunables, tunable_count, "CHUNKS", 4);
    const int64_t m = kt_value(dimensions, dimension_count, "M", 0);
    const int64_t n = kt_value(dimensions, dimension_count, "N", 0);
    out->abi_version = KERNELTUI_ABI_VERSION;
    out->host_collectives = 1;
    out->nccl_windows = WINDOWS;
    if (chunks > 1) {
        const uint64_t slot = uint64_t(most_rows(m, ranks, chunks)) * uint64_t(n) * largest_element;
        out->window_bytes = slots * ((slot + 255) / 256 * 256);
        out->side_streams = 2;
    }
    return 0;
}

int kerneltui_setup(const kt_context *ctx, void **out) {
    const int64_t m = kt_value(ctx->dimensions, ctx->dimension_count, "M", 0);
    const int64_t n = kt_value(ctx->dimensions, ctx->dimension_count, "N", 0);
    const int64_t k = kt_value(ctx->dimensions, ctx->dimension_count, "K", 0);
    const int64_t chunks = kt_value(ctx->tunables, ctx->tunable_count, "CHUNKS", 4);
    if (m < 1 || n < 1 || k < 1 || chunks < 1) return fail(ctx, "gemm_allgather needs M, N and K, and CHUNKS");
    for (uint32_t i = 0; i < ctx->sets; ++i)
        if (!kt_find(&ctx->buffers[i], "A") || !kt_find(&ctx->buffers[i], "B") || !kt_find(&ctx->buffers[i], "C"))
            return fail(ctx, "gemm_allgather needs the tensors A, B and C");
    const kt_tensor *c = kt_find(&ctx->buffers[0], "C");
    if (c->dtype != KT_BFLOAT16 && c->dtype != KT_FLOAT16 && c->dtype != KT_FLOAT32)
        return fail(ctx, "gemm_allgather needs the tensor C in bfloat16, float16 or float32");
    State *s = new (std::nothrow) State{};
    if (!s) return fail(ctx, "out of memory in setup");
    *out = s;
    s->ctx = ctx;
    s->n = n;
    s->k = k;
    s->row_bytes = c->bytes / uint64_t(c->shape[0]);
    s->slot_bytes = ctx->window_bytes / slots;
    cut(*s, m, chunks);
    return make_events(*s);
}

int kerneltui_run(void *opaque, uint32_t set, uint64_t, void *caller) {
    State &s = *static_cast<State *>(opaque);
    const kt_buffer_set *tensors = &s.ctx->buffers[set];
    const kt_tensor *a = kt_find(tensors, "A"), *b = kt_find(tensors, "B"), *c = kt_find(tensors, "C");
    const cudaStream_t stream = static_cast<cudaStream_t>(caller);
    return s.chunks.size() == 1 ? run_whole(s, a, b, c, stream) : run_chunks(s, a, b, c, stream);
}

int kerneltui_teardown(void *opaque) {
    State *s = static_cast<State *>(opaque);
    if (s->begun) cudaEventDestroy(s->begun);
    for (Chunk &chunk : s->chunks)
        for (cudaEvent_t event : {chunk.multiplied, chunk.gathered, chunk.copied})
            if (event) cudaEventDestroy(event);
    delete s;
    return 0;
}
