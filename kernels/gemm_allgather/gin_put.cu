/* gin_put.cu - C = A B with the rows of A sharded over the ranks: the vendor GEMM in chunks of rows, each
 * chunk put into the peers' windows over the network by one CTA, with NCCL's GIN.
 *
 *   stream        gemm(0)  gemm(1)  gemm(2)  ...   join
 *   side stream            put(0)   put(1)   ...   wait
 *
 * A put carries a signal that the peer sees only when the rows are there, and those of earlier puts. Signal
 * `source * CHUNKS_MOST + chunk` of a rank counts the calls in which that chunk of that source has come, so
 * nobody resets it and a source may be one call ahead. Signals and puts go by context 0 alone: signals are
 * reached through the context that they were put on.
 *
 * `wait` also flushes the puts: their source, this rank's rows of C, is written again in a later call.
 *
 * Needs a machine whose NCCL has GIN, which is an RDMA network; elsewhere this file only compiles.
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

// kerneltui: directive backend gin
// kerneltui: directive issuer cta
// kerneltui: directive placement from PLACEMENT
// kerneltui: directive sync flag_per_chunk
// kerneltui: directive chunk_bytes = M / RANKS / CHUNKS * N * 2

// Chunks are put on a side stream, under the next chunk's product, or on the caller's stream.
// kerneltui: tunable PLACEMENT in stream_overlap split_put_wait
#define PLACEMENT stream_overlap
// Chunks of a rank's rows.
// kerneltui: runtime CHUNKS in 1 2 4 8 16 default 4

namespace {

enum Placement { stream_overlap, split_put_wait };
constexpr Placement placement = PLACEMENT;
constexpr int CHUNKS_MOST = 16;
constexpr int ranks_most = 64;

struct Counts {
    uint8_t chunks[ranks_most]; /* of every rank */
};

// kerneltui: evolve begin put
/* Puts one chunk to every peer. One CTA, whose threads are the peers: each puts to one. */
__global__ void put_chunk(ncclDevComm comm, ncclWindow_t window, size_t offset, size_t bytes, int chunk) {
    ncclGin gin(comm, 0);
    const ncclTeam world = ncclTeamWorld(comm);
    for (int step = 1 + int(threadIdx.x); step < world.nRanks; step += int(blockDim.x)) {
        const int peer = (world.rank + step) % world.nRanks; /* no two ranks begin with one peer */
        const ncclGinSignal_t signal = ncclGinSignal_t(world.rank * CHUNKS_MOST + chunk);
        gin.put(world, peer, window, offset, window, offset, bytes, ncclGin_SignalInc{signal});
    }
}

/* Waits until all chunks of all peers have come in `calls` calls, and until the own rows have left. */
__global__ void wait_for_peers(ncclDevComm comm, Counts counts, uint64_t calls) {
    ncclGin gin(comm, 0);
    const ncclTeam world = ncclTeamWorld(comm);
    for (int source = int(threadIdx.x); source < world.nRanks; source += int(blockDim.x)) {
        if (source == world.rank) continue;
        for (int chunk = 0; chunk < counts.chunks[source]; ++chunk)
            gin.waitSignal(ncclCoopThread(), ncclGinSignal_t(source * CHUNKS_MOST + chunk), calls);
    }
    gin.flush(ncclCoopThread());
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
    uint64_t element, row_bytes, calls;
    Counts counts;
    std::vector<Chunk> chunks;
    cudaEvent_t waited;
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

std::vector<Chunk> cut(int64_t rows, int64_t chunks) {
    std::vector<Chunk> out;
    for (int64_t i = 0; i < chunks; ++i) {
        const int64_t first = i * rows / chunks, next = (i + 1) * rows / chunks;
        if (next > first) out.push_back(Chunk{first, next - first, nullptr});
    }
    return out;
}

int make_events(State &s) {
    cudaError_t error = cudaEventCreateWithFlags(&s.waited, cudaEventDisableTiming);
    for (Chunk &chunk : s.chunks)
        if (!error) error = cudaEventCreateWithFlags(&chunk.multiplied, cudaEventDisableTiming);
    return error ? fail(s.ctx, "setup", error) : 0;
}

}  // namespace

int kerneltui_requirements(const kt_named_value *, uint32_t, const kt_named_value *, uint32_t, uint32_t,
                           uint32_t ranks, kt_requirements *out) {
    out->abi_version = KERNELTUI_ABI_VERSION;
    out->nccl_windows = 1;
    out->gin_signals = ranks * CHUNKS_MOST;
    out->side_streams = 1;
    return 0;
}

int kerneltui_setup(const kt_context *ctx, void **out) {
    if (!ctx->device_comm) return fail(ctx, "needs NCCL windows and a device communicator");
    const ncclDevComm &comm = *static_cast<const ncclDevComm *>(ctx->device_comm);
    if (!comm.ginContextCount) return fail(ctx, "needs NCCL with GIN: there is no context");
    if (ctx->ranks > ranks_most) return fail(ctx, "at most 64 ranks");
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
    const kt_tensor *c = kt_find(&ctx->buffers[0], "C");
    s->row_bytes = c->bytes / uint64_t(c->shape[0]);
    s->element = s->row_bytes / uint64_t(s->n);
    const int64_t chunks =
        std::clamp<int64_t>(kt_value(ctx->tunables, ctx->tunable_count, "CHUNKS", 4), 1, CHUNKS_MOST);
    for (uint32_t r = 0; r < ctx->ranks; ++r) {
        const int64_t rows = kt_first_row(m, r + 1, ctx->ranks) - kt_first_row(m, r, ctx->ranks);
        s->counts.chunks[r] = uint8_t(cut(rows, chunks).size());
        if (r == ctx->rank) s->chunks = cut(rows, chunks);
    }
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
    int number = 0;
    for (Chunk &chunk : s.chunks) {
        const uint64_t place = uint64_t(s.first_row + chunk.first) * s.row_bytes;
        const char *rows = static_cast<const char *>(a->local) + uint64_t(chunk.first * s.k) * s.element;
        char *product = static_cast<char *>(c->local) + place;
        if (ctx->vendor->gemm(ctx->vendor->self, chunk.rows, s.n, s.k, rows, s.k, b->local, s.n, product, s.n, stream))
            return fail(ctx, "the vendor GEMM failed");
        if (side != stream) {
            error = cudaEventRecord(chunk.multiplied, stream);
            if (!error) error = cudaStreamWaitEvent(side, chunk.multiplied, 0);
            if (error) return fail(ctx, "hand a chunk over", error);
        }
        put_chunk<<<1, 32, 0, side>>>(s.comm, static_cast<ncclWindow_t>(c->window), kt_window_offset(c) + place,
                                      uint64_t(chunk.rows) * s.row_bytes, number++);
    }
    wait_for_peers<<<1, 32, 0, side>>>(s.comm, s.counts, ++s.calls);
    error = cudaGetLastError();
    if (side != stream) {
        if (!error) error = cudaEventRecord(s.waited, side);
        if (!error) error = cudaStreamWaitEvent(stream, s.waited, 0);
    }
    // kerneltui: evolve end
    return error ? fail(ctx, "launch", error) : 0;
}

int kerneltui_teardown(void *opaque) {
    State *s = static_cast<State *>(opaque);
    if (s->waited) cudaEventDestroy(s->waited);
    for (Chunk &chunk : s->chunks)
        if (chunk.multiplied) cudaEventDestroy(chunk.multiplied);
    delete s;
    return 0;
}
