/* lsa_chunked.cu - C = A B with the rows of A sharded over the ranks: the vendor GEMM in chunks of rows,
 * each chunk pushed to the peers while the next one is multiplied.
 *
 *   stream        gemm(0)  gemm(1)  gemm(2)  ...   join   wait for the peers' flags
 *   side stream            push(0)  push(1)  ...
 *
 * A push is the copy engine's work (it takes no SM) or that of a few CTAs, which store 16 bytes a thread
 * or move 16 KB blocks through shared memory with the bulk copy engine of their SM.
 *
 * Flags. The signal area of rank q has one word per source rank and chunk. The source writes the epoch
 * there after the chunk's rows: by an 8-byte copy that follows on the same stream (copy engine), or by the
 * CTA that finishes last, with release order at system scope. At the end of the call one warp loads the
 * words of all peers with acquire order until each is at least the epoch. Epochs only grow, so a word is
 * never reset, and `>=` also lets a peer be one call ahead. When the stream has passed that warp, all rows
 * of all ranks are in this rank's C.
 *
 * One call ahead, and not more: a call ends only when every peer has published its last chunk of that
 * epoch. With two or more buffer sets a rank that is ahead stores to a set that no other rank works on.
 * With a single set the ranks first meet (`gate` words).
 */
#include <cuda_runtime.h>
#include <kerneltui/kernel.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <new>
#include <vector>

/* ---- The directive. ------------------------------------------------------------------------------ */

// kerneltui: directive backend from BACKEND
// kerneltui: directive issuer dedicated
// kerneltui: directive placement from PLACEMENT
// kerneltui: directive sync flag_per_chunk
// kerneltui: directive chunk_bytes = (M / RANKS / CHUNKS) * N * 2

// Who copies a chunk: the copy engine, or CTAs that store to the peers' memory.
// kerneltui: tunable BACKEND in copy_engine lsa
#define BACKEND lsa
// Chunks are pushed on a side stream, under the next chunk's product, or on the caller's stream.
// kerneltui: tunable PLACEMENT in stream_overlap split_put_wait
#define PLACEMENT stream_overlap
// How CTAs copy: 16-byte loads and stores, or bulk copies through shared memory.
// kerneltui: tunable COPY_KIND in STORE BULK if BACKEND == lsa or COPY_KIND == STORE
#define COPY_KIND STORE
// Chunks of a rank's rows.
// kerneltui: runtime CHUNKS in 1 2 4 8 16 default 4
// CTAs of one push, if BACKEND is lsa.
// kerneltui: runtime COMM_CTAS in 4 8 16 32 64 default 16
// Peers are served from rank 0 (0) or from one's right neighbour (1).
// kerneltui: runtime PEER_OFFSET in 0 1 default 1
// Rows of a chunk are a multiple of this, so that the GEMM's tiles are whole.
// kerneltui: runtime CHUNK_ALIGN in 128 256 512 default 256
// Chunks of equal size (0), or ever smaller ones (1): the copy of the last one hides under nothing.
// kerneltui: runtime TAPER in 0 1 default 1

namespace {

enum Backend { copy_engine, lsa };
enum Placement { stream_overlap, split_put_wait };
enum CopyKind { STORE, BULK };

constexpr Backend backend = BACKEND;
constexpr Placement placement = PLACEMENT;
constexpr CopyKind copy_kind = COPY_KIND;

constexpr int max_ranks = 8;
constexpr int max_chunks = 64; /* words of a source rank in the signal area; the last one is the gate */
constexpr int gate_word = max_chunks - 1;

/* ---- Flags. -------------------------------------------------------------------------------------- */

struct Words {
    uint64_t *at[max_ranks];
};

__device__ __forceinline__ void store_release(uint64_t *word, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ uint64_t load_acquire(const uint64_t *word) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ void wait_for(const uint64_t *word, uint64_t epoch) {
    while (load_acquire(word) < epoch) __nanosleep(64);
}

/* Waits until the first counts[p] words of every source rank p have reached the epoch. One warp. */
struct Counts {
    int of[max_ranks];
};

__global__ void wait_kernel(const uint64_t *mine, Counts counts, int rank, int ranks, uint64_t epoch) {
    for (int p = 0; p < ranks; ++p) {
        if (p == rank) continue;
        for (int c = int(threadIdx.x); c < counts.of[p]; c += 32)
            wait_for(mine + p * max_chunks + c, epoch);
    }
    __syncwarp();
}

/* Meets the peers: nobody passes before all ranks have entered this call. */
__global__ void gate_kernel(const uint64_t *mine, Words peers, int rank, int ranks, uint64_t epoch) {
    const int q = int(threadIdx.x);
    if (q >= ranks || q == rank) return;
    store_release(peers.at[q] + rank * max_chunks + gate_word, epoch);
    wait_for(mine + q * max_chunks + gate_word, epoch);
}

__global__ void epoch_kernel(uint64_t *word, uint64_t epoch) { *word = epoch; }

// kerneltui: evolve begin push
/* ---- CTAs that push a chunk. ---------------------------------------------------------------------- */

struct Push {
    const char *source;
    char *target[max_ranks];   /* in serving order */
    uint64_t *flag[max_ranks]; /* likewise */
    unsigned *finished;        /* counts CTAs; the last one sets it back */
    uint64_t bytes;
    uint64_t epoch;
    int peers;
};

/* The CTA that finishes last publishes the chunk. Its own and the others' stores come before the count,
 * and the count before the flag. */
__device__ __forceinline__ void publish(const Push &push) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    __threadfence_system();
    if (atomicAdd(push.finished, 1u) != gridDim.x - 1) return;
    *push.finished = 0;
    __threadfence_system();
    for (int i = 0; i < push.peers; ++i) store_release(push.flag[i], push.epoch);
}

constexpr int store_threads = 512;
constexpr int store_unroll = 8;

__global__ void __launch_bounds__(store_threads) push_store_kernel(const __grid_constant__ Push push) {
    const uint64_t vectors = push.bytes / 16;
    const uint4 *source = reinterpret_cast<const uint4 *>(push.source);
    const uint64_t step = uint64_t(gridDim.x) * store_threads * store_unroll;
    for (uint64_t base = uint64_t(blockIdx.x) * store_threads * store_unroll; base < vectors;
         base += step) {
        uint4 value[store_unroll];
#pragma unroll
        for (int u = 0; u < store_unroll; ++u) {
            const uint64_t i = base + uint64_t(u) * store_threads + threadIdx.x;
            if (i < vectors) value[u] = source[i];
        }
        for (int q = 0; q < push.peers; ++q) {
            uint4 *target = reinterpret_cast<uint4 *>(push.target[q]);
#pragma unroll
            for (int u = 0; u < store_unroll; ++u) {
                const uint64_t i = base + uint64_t(u) * store_threads + threadIdx.x;
                if (i < vectors) target[i] = value[u];
            }
        }
    }
    publish(push);
}

constexpr int bulk_block = 16384;
constexpr int bulk_slots = 8;

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return uint32_t(__cvta_generic_to_shared(pointer));
}

__global__ void __launch_bounds__(32) push_bulk_kernel(const __grid_constant__ Push push) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char buffer[];
    __shared__ __align__(8) uint64_t full[bulk_slots];
    if (threadIdx.x == 0) {
        for (int s = 0; s < bulk_slots; ++s)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[s]))
                         : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        const uint64_t blocks = (push.bytes + bulk_block - 1) / bulk_block;
        const uint64_t mine = blockIdx.x < blocks ? (blocks - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
        auto begin = [&](uint64_t i) { return (blockIdx.x + i * gridDim.x) * uint64_t(bulk_block); };
        auto size = [&](uint64_t i) {
            const uint64_t left = push.bytes - begin(i);
            return uint32_t(left < bulk_block ? left : bulk_block);
        };
        auto load = [&](uint64_t i) {
            const int slot = int(i % bulk_slots);
            asm volatile(
                "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&full[slot])),
                "r"(size(i))
                : "memory");
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
                    "r"(shared_address(buffer + slot * bulk_block)),
                "l"(push.source + begin(i)), "r"(size(i)), "r"(shared_address(&full[slot]))
                : "memory");
        };
        /* Half of the slots are being read in, the other half written out. */
        for (uint64_t i = 0; i < mine && i < bulk_slots / 2; ++i) load(i);
        for (uint64_t i = 0; i < mine; ++i) {
            const int slot = int(i % bulk_slots);
            const uint32_t parity = uint32_t(i / bulk_slots) & 1;
            uint32_t done = 0;
            while (!done)
                asm volatile(
                    "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, "
                    "0, p; }"
                    : "=r"(done)
                    : "r"(shared_address(&full[slot])), "r"(parity)
                    : "memory");
            for (int q = 0; q < push.peers; ++q)
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                                 push.target[q] + begin(i)),
                             "r"(shared_address(buffer + slot * bulk_block)), "r"(size(i))
                             : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            if (i + bulk_slots / 2 < mine) {
                asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(bulk_slots / 2) : "memory");
                load(i + bulk_slots / 2);
            }
        }
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    publish(push);
#else
    (void)push;
#endif
}
// kerneltui: evolve end

/* ---- The call. ------------------------------------------------------------------------------------ */

struct Chunk {
    int64_t first, rows; /* among this rank's rows */
    cudaEvent_t multiplied;
};

struct State {
    const kt_context *ctx;
    int64_t n, k, rows, first_row;
    uint64_t row_bytes;
    int comm_ctas;
    uint64_t *epoch_word;   /* scratch: the epoch in device memory, the source of the copy engine's flags */
    unsigned *finished;     /* scratch: one counter for every chunk */
    std::vector<int> peers; /* in serving order */
    std::vector<Chunk> chunks;
    Counts counts; /* chunks of every rank */
    cudaEvent_t pushed;
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

/* The chunks of a rank with `rows` rows; at least one, which may be empty. Sizes are as chunks, chunks - 1,
 * .., 1 if they taper. */
std::vector<Chunk> cut(int64_t rows, int64_t chunks, int64_t align, bool taper) {
    std::vector<Chunk> out;
    int64_t first = 0;
    for (int64_t left = chunks; left > 0 && (first < rows || out.empty()); --left) {
        const int64_t wanted = (rows - first) * (taper ? 2 : 1) / (taper ? left + 1 : left);
        int64_t next = std::max<int64_t>(align, (wanted + align / 2) / align * align);
        if (left == 1 || next > rows - first) next = rows - first;
        out.push_back(Chunk{first, next, nullptr});
        first += next;
    }
    return out;
}

Words words_of(const kt_context *ctx) {
    Words words{};
    for (uint32_t q = 0; q < ctx->ranks; ++q) words.at[q] = ctx->signals[q];
    return words;
}

// kerneltui: evolve begin schedule
int push_by_copy_engine(State &s, const kt_tensor *c, int index, cudaStream_t stream) {
    const Chunk &chunk = s.chunks[size_t(index)];
    const uint64_t offset = uint64_t(s.first_row + chunk.first) * s.row_bytes;
    const uint64_t bytes = uint64_t(chunk.rows) * s.row_bytes;
    for (int q : s.peers) {
        cudaError_t error = cudaSuccess;
        if (bytes)
            error = cudaMemcpyAsync(static_cast<char *>(c->peers[q]) + offset,
                                    static_cast<const char *>(c->local) + offset, bytes,
                                    cudaMemcpyDeviceToDevice, stream);
        if (!error)
            error = cudaMemcpyAsync(s.ctx->signals[q] + s.ctx->rank * max_chunks + uint32_t(index),
                                    s.epoch_word, sizeof(uint64_t), cudaMemcpyDeviceToDevice, stream);
        if (error) return fail(s.ctx, "copy to a peer", error);
    }
    return 0;
}

int push_by_ctas(State &s, const kt_tensor *c, int index, uint64_t epoch, cudaStream_t stream) {
    const Chunk &chunk = s.chunks[size_t(index)];
    const uint64_t offset = uint64_t(s.first_row + chunk.first) * s.row_bytes;
    Push push{};
    push.source = static_cast<const char *>(c->local) + offset;
    push.bytes = uint64_t(chunk.rows) * s.row_bytes;
    push.epoch = epoch;
    push.finished = s.finished + index;
    for (int q : s.peers) {
        push.target[push.peers] = static_cast<char *>(c->peers[q]) + offset;
        push.flag[push.peers++] = s.ctx->signals[q] + s.ctx->rank * max_chunks + uint32_t(index);
    }
    if (copy_kind == BULK)
        push_bulk_kernel<<<s.comm_ctas, 32, bulk_slots * bulk_block, stream>>>(push);
    else
        push_store_kernel<<<s.comm_ctas, store_threads, 0, stream>>>(push);
    const cudaError_t error = cudaGetLastError();
    return error ? fail(s.ctx, "launch of a push", error) : 0;
}

int multiply(State &s, const kt_tensor *a, const kt_tensor *b, const kt_tensor *c, const Chunk &chunk,
             void *stream) {
    if (!chunk.rows) return 0;
    const uint64_t a_row = uint64_t(s.k) * (s.row_bytes / uint64_t(s.n));
    return s.ctx->vendor->gemm(
               s.ctx->vendor->self, chunk.rows, s.n, s.k,
               static_cast<const char *>(a->local) + uint64_t(chunk.first) * a_row, s.k, b->local, s.n,
               static_cast<char *>(c->local) + uint64_t(s.first_row + chunk.first) * s.row_bytes, s.n,
               stream)
               ? fail(s.ctx, "the vendor GEMM failed")
               : 0;
}

int run(State &s, const kt_tensor *a, const kt_tensor *b, const kt_tensor *c, uint64_t epoch,
        cudaStream_t stream) {
    const kt_context *ctx = s.ctx;
    const cudaStream_t side =
        placement == stream_overlap ? static_cast<cudaStream_t>(ctx->side_streams[0]) : stream;
    if (ctx->sets < 2)
        gate_kernel<<<1, 32, 0, stream>>>(ctx->signals[ctx->rank], words_of(ctx), int(ctx->rank),
                                          int(ctx->ranks), epoch);
    if (backend == copy_engine) epoch_kernel<<<1, 1, 0, stream>>>(s.epoch_word, epoch);
    /* 16-byte copies need rows that begin on 16 bytes; the copy engine takes any. */
    const bool by_engine =
        backend == copy_engine || uint64_t(s.first_row) * s.row_bytes % 16 != 0 || s.row_bytes % 16 != 0;
    if (by_engine && backend != copy_engine) epoch_kernel<<<1, 1, 0, stream>>>(s.epoch_word, epoch);
    for (size_t i = 0; i < s.chunks.size(); ++i) {
        if (multiply(s, a, b, c, s.chunks[i], stream)) return 1;
        if (side != stream) {
            cudaError_t error = cudaEventRecord(s.chunks[i].multiplied, stream);
            if (!error) error = cudaStreamWaitEvent(side, s.chunks[i].multiplied, 0);
            if (error) return fail(ctx, "hand a chunk over", error);
        }
        if (by_engine ? push_by_copy_engine(s, c, int(i), side) : push_by_ctas(s, c, int(i), epoch, side))
            return 1;
    }
    if (side != stream) {
        cudaError_t error = cudaEventRecord(s.pushed, side);
        if (!error) error = cudaStreamWaitEvent(stream, s.pushed, 0);
        if (error) return fail(ctx, "join the side stream", error);
    }
    wait_kernel<<<1, 32, 0, stream>>>(ctx->signals[ctx->rank], s.counts, int(ctx->rank), int(ctx->ranks),
                                      epoch);
    const cudaError_t error = cudaGetLastError();
    return error ? fail(ctx, "launch of the wait", error) : 0;
}
// kerneltui: evolve end

int make_events(State &s) {
    cudaError_t error = cudaEventCreateWithFlags(&s.pushed, cudaEventDisableTiming);
    for (Chunk &chunk : s.chunks)
        if (!error) error = cudaEventCreateWithFlags(&chunk.multiplied, cudaEventDisableTiming);
    if (!error) error = cudaMemset(s.ctx->scratch, 0, 4096);
    if (!error)
        error = cudaFuncSetAttribute(push_bulk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     bulk_slots * bulk_block);
    return error ? fail(s.ctx, "setup", error) : 0;
}

}  // namespace

int kerneltui_requirements(const kt_named_value *, uint32_t, const kt_named_value *, uint32_t, uint32_t,
                           uint32_t ranks, kt_requirements *out) {
    out->abi_version = KERNELTUI_ABI_VERSION;
    out->signal_words = ranks * max_chunks;
    out->scratch_bytes = 4096;
    out->side_streams = 1;
    return 0;
}

int kerneltui_setup(const kt_context *ctx, void **out) {
    const int64_t m = kt_value(ctx->dimensions, ctx->dimension_count, "M", 0);
    const int64_t n = kt_value(ctx->dimensions, ctx->dimension_count, "N", 0);
    const int64_t k = kt_value(ctx->dimensions, ctx->dimension_count, "K", 0);
    if (m < 1 || n < 1 || k < 1) return fail(ctx, "gemm_allgather needs the dimensions M, N and K");
    if (ctx->ranks > max_ranks) return fail(ctx, "at most 8 ranks");
    if (!ctx->sets) return fail(ctx, "no buffer sets");
    for (uint32_t i = 0; i < ctx->sets; ++i) {
        const kt_tensor *c = kt_find(&ctx->buffers[i], "C");
        if (!kt_find(&ctx->buffers[i], "A") || !kt_find(&ctx->buffers[i], "B") || !c || !c->peers)
            return fail(ctx, "gemm_allgather needs A, B and a symmetric C");
    }
    State *s = new (std::nothrow) State{};
    if (!s) return fail(ctx, "out of memory in setup");
    s->ctx = ctx;
    s->n = n;
    s->k = k;
    s->first_row = kt_first_row(m, ctx->rank, ctx->ranks);
    s->rows = kt_first_row(m, ctx->rank + 1, ctx->ranks) - s->first_row;
    const kt_tensor *c = kt_find(&ctx->buffers[0], "C");
    s->row_bytes = c->bytes / uint64_t(c->shape[0]);
    s->epoch_word = static_cast<uint64_t *>(ctx->scratch);
    s->finished = reinterpret_cast<unsigned *>(static_cast<char *>(ctx->scratch) + 256);
    s->comm_ctas = int(kt_value(ctx->tunables, ctx->tunable_count, "COMM_CTAS", 16));
    const int64_t chunks =
        std::clamp<int64_t>(kt_value(ctx->tunables, ctx->tunable_count, "CHUNKS", 4), 1, max_chunks - 1);
    const int64_t align = kt_value(ctx->tunables, ctx->tunable_count, "CHUNK_ALIGN", 256);
    const bool taper = kt_value(ctx->tunables, ctx->tunable_count, "TAPER", 1) != 0;
    for (uint32_t r = 0; r < ctx->ranks; ++r) {
        const int64_t rows = kt_first_row(m, r + 1, ctx->ranks) - kt_first_row(m, r, ctx->ranks);
        s->counts.of[r] = int(cut(rows, chunks, align, taper).size());
    }
    s->chunks = cut(s->rows, chunks, align, taper);
    const int64_t offset = kt_value(ctx->tunables, ctx->tunable_count, "PEER_OFFSET", 1);
    for (uint32_t i = 0; i < ctx->ranks; ++i) {
        const uint32_t q = (i + (offset ? ctx->rank : 0)) % ctx->ranks;
        if (q != ctx->rank) s->peers.push_back(int(q));
    }
    *out = s;
    return make_events(*s);
}

int kerneltui_run(void *opaque, uint32_t set, uint64_t epoch, void *stream) {
    State &s = *static_cast<State *>(opaque);
    return run(s, kt_find(&s.ctx->buffers[set], "A"), kt_find(&s.ctx->buffers[set], "B"),
               kt_find(&s.ctx->buffers[set], "C"), epoch, static_cast<cudaStream_t>(stream));
}

int kerneltui_teardown(void *opaque) {
    State *s = static_cast<State *>(opaque);
    if (s->pushed) cudaEventDestroy(s->pushed);
    for (Chunk &chunk : s->chunks)
        if (chunk.multiplied) cudaEventDestroy(chunk.multiplied);
    delete s;
    return 0;
}
