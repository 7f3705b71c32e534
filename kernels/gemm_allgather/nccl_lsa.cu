/* nccl_lsa.cu - C = A B with the rows of A sharded over the ranks: the vendor GEMM in chunks of rows, each
 * chunk stored into the peers' windows by a few CTAs, by NCCL's device API.
 *
 *   stream        gemm(0)  gemm(1)  gemm(2)  ...   join
 *   side stream            push(0)  push(1)  ...   barrier
 *
 * The windows and the device communicator are made by the harness (`nccl_windows`); the kernel takes the
 * communicator by value. ncclGetLsaPointer gives the place of a peer's C in this GPU's address space. The
 * barrier is one session of the LSA team: its release covers the pushes, which ended before it on the same
 * stream, and its acquire the peers' ones. A call ends when all ranks have pushed everything, so that a rank
 * is at most one call ahead, on another buffer set.
 *
 * Ranks of another host or without NVLink are not reached: setup says so.
 */
#include <cuda_runtime.h>
#include <kerneltui/kernel.h>
#include <nccl.h>
#include <nccl_device.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <new>
#include <vector>

// kerneltui: directive backend lsa
// kerneltui: directive issuer dedicated
// kerneltui: directive placement from PLACEMENT
// kerneltui: directive sync world
// kerneltui: directive chunk_bytes = CHUNK_ROWS * N * 2

// Chunks are pushed on a side stream, under the next chunk's product, or on the caller's stream.
// kerneltui: tunable PLACEMENT in stream_overlap split_put_wait
#define PLACEMENT stream_overlap
// Rows of a chunk.
// kerneltui: runtime CHUNK_ROWS in 256 512 1024 2048 4096 default 512
// CTAs of one push.
// kerneltui: runtime COMM_CTAS in 4 8 16 32 64 default 16

namespace {

enum Placement { stream_overlap, split_put_wait };
constexpr Placement placement = PLACEMENT;
constexpr int threads = 512;
constexpr int unroll = 4;

// kerneltui: evolve begin push
/* Copies `bytes` at `offset` of the own window to the same place of every peer's, in units of T. */
template <typename T>
__global__ void __launch_bounds__(threads) push(ncclDevComm comm, ncclWindow_t window, size_t offset, size_t bytes) {
    const T *source = static_cast<const T *>(ncclGetLocalPointer(window, offset));
    const size_t count = bytes / sizeof(T), step = size_t(gridDim.x) * threads * unroll;
    for (size_t base = size_t(blockIdx.x) * threads * unroll; base < count; base += step) {
        T value[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const size_t i = base + size_t(u) * threads + threadIdx.x;
            if (i < count) value[u] = source[i];
        }
        for (int step_to = 1; step_to < comm.lsaSize; ++step_to) {
            const int peer = (comm.lsaRank + step_to) % comm.lsaSize; /* no two ranks hit one first */
            T *target = static_cast<T *>(ncclGetLsaPointer(window, offset, peer));
#pragma unroll
            for (int u = 0; u < unroll; ++u) {
                const size_t i = base + size_t(u) * threads + threadIdx.x;
                if (i < count) target[i] = value[u];
            }
        }
    }
}

/* Ends the call on all ranks. One CTA. */
__global__ void meet(ncclDevComm comm) {
    ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), 0);
    barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
}
// kerneltui: evolve end

struct Chunk {
    int64_t first, rows; /* among this rank's rows */
    cudaEvent_t multiplied;
};

struct State {
    const kt_context *ctx;
    ncclDevComm comm;
    int64_t n, k, first_row;
    uint64_t element, row_bytes;
    int comm_ctas;
    std::vector<Chunk> chunks;
    cudaEvent_t met;
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

int make_events(State &s) {
    cudaError_t error = cudaEventCreateWithFlags(&s.met, cudaEventDisableTiming);
    for (Chunk &chunk : s.chunks)
        if (!error) error = cudaEventCreateWithFlags(&chunk.multiplied, cudaEventDisableTiming);
    return error ? fail(s.ctx, "setup", error) : 0;
}

/* The rows go in units of 16 bytes where everything lies on them, else of an element's two bytes. */
void push_chunk(const State &s, const kt_tensor *c, const Chunk &chunk, cudaStream_t stream) {
    const uint64_t offset = kt_window_offset(c) + uint64_t(s.first_row + chunk.first) * s.row_bytes;
    const uint64_t bytes = uint64_t(chunk.rows) * s.row_bytes;
    ncclWindow_t window = static_cast<ncclWindow_t>(c->window);
    if (offset % 16 == 0 && bytes % 16 == 0)
        push<uint4><<<s.comm_ctas, threads, 0, stream>>>(s.comm, window, offset, bytes);
    else
        push<uint16_t><<<s.comm_ctas, threads, 0, stream>>>(s.comm, window, offset, bytes);
}

}  // namespace

int kerneltui_requirements(const kt_named_value *, uint32_t, const kt_named_value *, uint32_t, uint32_t,
                           uint32_t, kt_requirements *out) {
    out->abi_version = KERNELTUI_ABI_VERSION;
    out->nccl_windows = 1;
    out->barriers = 1;
    out->side_streams = 1;
    return 0;
}

int kerneltui_setup(const kt_context *ctx, void **out) {
    if (!ctx->device_comm) return fail(ctx, "needs NCCL windows and a device communicator");
    const ncclDevComm &comm = *static_cast<const ncclDevComm *>(ctx->device_comm);
    if (comm.lsaSize != int(ctx->ranks)) return fail(ctx, "needs GPUs that all reach one another by NVLink");
    if (ctx->sets < 2) return fail(ctx, "needs two buffer sets, since a peer may be one call ahead");
    for (uint32_t i = 0; i < ctx->sets; ++i) {
        const kt_tensor *c = kt_find(&ctx->buffers[i], "C");
        if (!kt_find(&ctx->buffers[i], "A") || !kt_find(&ctx->buffers[i], "B") || !c || !c->window)
            return fail(ctx, "gemm_allgather needs A, B and a symmetric C with a window");
    }
    State *s = new (std::nothrow) State{};
    if (!s) return fail(ctx, "out of memory in setup");
    *out = s;
    s->ctx = ctx;
    s->comm = comm;
    const int64_t m = kt_value(ctx->dimensions, ctx->dimension_count, "M", 0);
    s->n = kt_value(ctx->dimensions, ctx->dimension_count, "N", 0);
    s->k = kt_value(ctx->dimensions, ctx->dimension_count, "K", 0);
    s->first_row = kt_first_row(m, ctx->rank, ctx->ranks);
    const int64_t rows = kt_first_row(m, ctx->rank + 1, ctx->ranks) - s->first_row;
    const kt_tensor *c = kt_find(&ctx->buffers[0], "C");
    s->row_bytes = c->bytes / uint64_t(c->shape[0]);
    s->element = s->row_bytes / uint64_t(s->n);
    s->comm_ctas = int(kt_value(ctx->tunables, ctx->tunable_count, "COMM_CTAS", 16));
    const int64_t size = kt_value(ctx->tunables, ctx->tunable_count, "CHUNK_ROWS", 512);
    for (int64_t first = 0; first < rows; first += size)
        s->chunks.push_back(Chunk{first, std::min(size, rows - first), nullptr});
    return make_events(*s);
}

int kerneltui_run(void *opaque, uint32_t set, uint64_t, void *caller) {
    State &s = *static_cast<State *>(opaque);
    const kt_context *ctx = s.ctx;
    const kt_tensor *a = kt_find(&ctx->buffers[set], "A");
    const kt_tensor *b = kt_find(&ctx->buffers[set], "B");
    const kt_tensor *c = kt_find(&ctx->buffers[set], "C");
    const cudaStream_t stream = static_cast<cudaStream_t>(caller);
    // kerneltui: evolve begin schedule
    const cudaStream_t side =
        placement == stream_overlap ? static_cast<cudaStream_t>(ctx->side_streams[0]) : stream;
    cudaError_t error = cudaSuccess;
    if (side != stream) { /* the barrier of a rank without rows comes after what stands on the stream, too */
        error = cudaEventRecord(s.met, stream);
        if (!error) error = cudaStreamWaitEvent(side, s.met, 0);
        if (error) return fail(ctx, "begin", error);
    }
    for (Chunk &chunk : s.chunks) {
        const char *rows = static_cast<const char *>(a->local) + uint64_t(chunk.first * s.k) * s.element;
        char *product = static_cast<char *>(c->local) + uint64_t(s.first_row + chunk.first) * s.row_bytes;
        if (ctx->vendor->gemm(ctx->vendor->self, chunk.rows, s.n, s.k, rows, s.k, b->local, s.n, product, s.n, stream))
            return fail(ctx, "the vendor GEMM failed");
        if (side != stream) {
            error = cudaEventRecord(chunk.multiplied, stream);
            if (!error) error = cudaStreamWaitEvent(side, chunk.multiplied, 0);
            if (error) return fail(ctx, "hand a chunk over", error);
        }
        push_chunk(s, c, chunk, side);
    }
    meet<<<1, 128, 0, side>>>(s.comm);
    error = cudaGetLastError();
    if (side != stream) {
        if (!error) error = cudaEventRecord(s.met, side);
        if (!error) error = cudaStreamWaitEvent(stream, s.met, 0);
    }
    // kerneltui: evolve end
    return error ? fail(ctx, "launch", error) : 0;
}

int kerneltui_teardown(void *opaque) {
    State *s = static_cast<State *>(opaque);
    if (s->met) cudaEventDestroy(s->met);
    for (Chunk &chunk : s->chunks)
        if (chunk.multiplied) cudaEventDestroy(chunk.multiplied);
    delete s;
    return 0;
}
