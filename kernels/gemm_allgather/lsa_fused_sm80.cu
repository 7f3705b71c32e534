/* lsa_fused_sm80.cu - C = A B with the rows of A sharded over the ranks, one GEMM for GPUs without TMA and
 * WGMMA (A100): cp.async, ldmatrix, mma.sync, bf16 in, fp32 sums. The epilogue stores every tile to all
 * ranks' C, 16 bytes a thread.
 *
 * A CTA of 128 threads multiplies 128 x 128; each warp 64 x 64. Two CTAs share an SM, so one stores while
 * the other multiplies. B is row major, [K, N], and ldmatrix.trans reads it so: nothing is transposed.
 *
 * Memory order. The CTA that finishes last - a count in private memory says which - stores the epoch with
 * release order at system scope into its rank's word in the peers' signal areas; every CTA fences at system
 * scope between its stores and the count. A warp at the end of the call loads the words of all peers with
 * acquire order until each is at least the epoch. Epochs only grow: a word is never reset, and `>=` also
 * lets a peer be one call ahead. With a single buffer set the ranks first meet (`gate` words), because a
 * peer's C may still be read.
 *
 * Rows that do not begin on 16 bytes (N or K no multiple of 8): the vendor GEMM and plain copies.
 */
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <kerneltui/kernel.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <new>
#include <vector>

/* ---- The directive. ------------------------------------------------------------------------------ */

// kerneltui: directive backend lsa
// kerneltui: directive issuer thread
// kerneltui: directive placement fused
// kerneltui: directive sync counter
// kerneltui: directive chunk_bytes = 128 * 128 * 2

// Depth of the ring of A and B tiles; each stage has 16 KB.
// kerneltui: tunable STAGES in 4 3 5
#define STAGES 4
// Row tiles of a super-block: tiles are visited down its rows, then along N.
// kerneltui: runtime GROUP_M in 4 8 16 32 default 8
// Whether a tile goes to the peers before it goes to the own C.
// kerneltui: runtime PEER_FIRST in 0 1 default 1

namespace {

constexpr int tile_m = 128, tile_n = 128, tile_k = 32;
constexpr int stages = STAGES;
constexpr int threads = 128;
constexpr int a_bytes = tile_m * tile_k * 2;
constexpr int b_bytes = tile_k * tile_n * 2;
constexpr int stage_bytes = a_bytes + b_bytes;
constexpr int shared_bytes = stages * stage_bytes;
static_assert(shared_bytes >= tile_m * tile_n * 2, "a tile of C goes through the ring's memory");

constexpr int max_ranks = 8;
constexpr int source_words = 2; /* words of a source rank in the signal area: the flag and the gate */
constexpr int gate_word = 1;

struct Params {
    const __nv_bfloat16 *a, *b;
    __nv_bfloat16 *c[max_ranks]; /* this rank's rows, in serving order */
    uint64_t *flag[max_ranks];   /* of the peers */
    unsigned *finished;          /* CTAs; the last one sets it back */
    uint64_t epoch;
    int targets, peers;
    int rows, n, k;
    int tiles_m, tiles_n, group_m;
};

struct Words {
    uint64_t *at[max_ranks];
};

/* ---- The machine. --------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return uint32_t(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void store_release(uint64_t *word, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ void wait_for(const uint64_t *word, uint64_t epoch) {
    uint64_t value;
    for (;;) {
        asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
        if (value >= epoch) return;
        __nanosleep(64);
    }
}

/* 16 bytes to shared memory, or zeros. */
__device__ __forceinline__ void copy_async(uint32_t target, const void *source, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// kerneltui: evolve begin gemm
/* Where 16 bytes are in shared memory: the order within a row is mixed, so that eight rows of one column
 * lie in different banks. */
__device__ __forceinline__ uint32_t a_offset(int row, int chunk) {
    return uint32_t(row * 64 + ((chunk ^ (row >> 1 & 3)) << 4));
}
__device__ __forceinline__ uint32_t wide_offset(int row, int chunk) {
    return uint32_t(row * 256 + ((chunk ^ (row & 7)) << 4));
}

__device__ __forceinline__ void load_stage(const Params &p, uint32_t stage, int row, int column, int k) {
    const int thread = int(threadIdx.x);
#pragma unroll
    for (int i = 0; i < a_bytes / 16 / threads; ++i) {
        const int item = i * threads + thread;
        const int r = item / 4, chunk = item % 4;
        const bool valid = row + r < p.rows && k + chunk * 8 < p.k;
        const __nv_bfloat16 *source = p.a + (valid ? int64_t(row + r) * p.k + k + chunk * 8 : 0);
        copy_async(stage + a_offset(r, chunk), source, valid);
    }
#pragma unroll
    for (int i = 0; i < b_bytes / 16 / threads; ++i) {
        const int item = i * threads + thread;
        const int r = item / 16, chunk = item % 16;
        const bool valid = k + r < p.k && column + chunk * 8 < p.n;
        const __nv_bfloat16 *source = p.b + (valid ? int64_t(k + r) * p.n + column + chunk * 8 : 0);
        copy_async(stage + a_bytes + wide_offset(r, chunk), source, valid);
    }
}

__global__ void __launch_bounds__(threads, 2) gemm_kernel(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) char raw[];
    const uint32_t ring = shared_address(raw);
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int warp_row = warp / 2 * 64, warp_column = warp % 2 * 64;

    const int block = p.group_m * p.tiles_n;
    const int group = int(blockIdx.x) / block;
    const int height = min(p.group_m, p.tiles_m - group * p.group_m);
    const int within = int(blockIdx.x) - group * block;
    const int row = (group * p.group_m + within % height) * tile_m;
    const int column = within / height * tile_n;
    const int k_tiles = (p.k + tile_k - 1) / tile_k;

    float d[4][8][4] = {};
#pragma unroll
    for (int s = 0; s < stages - 1; ++s) {
        if (s < k_tiles) load_stage(p, ring + s * stage_bytes, row, column, s * tile_k);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int t = 0; t < k_tiles; ++t) {
        asm volatile("cp.async.wait_group %0;" ::"n"(stages - 2) : "memory");
        __syncthreads(); /* the tile is there, and the one that is loaded over has been read */
        const int ahead = t + stages - 1;
        if (ahead < k_tiles)
            load_stage(p, ring + ahead % stages * stage_bytes, row, column, ahead * tile_k);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const uint32_t at = ring + t % stages * stage_bytes;
#pragma unroll
        for (int kk = 0; kk < tile_k / 16; ++kk) {
            uint32_t a[4][4], b[4][4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                load_matrices(a[i], at + a_offset(warp_row + i * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
            for (int j = 0; j < 4; ++j)
                load_matrices_transposed(
                    b[j],
                    at + a_bytes + wide_offset(kk * 16 + lane % 16, warp_column / 8 + j * 2 + lane / 16));
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    multiply(d[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();

#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int r = warp_row + i * 16 + h * 8 + lane / 4;
                const uint32_t offset = wide_offset(r, warp_column / 8 + j) + uint32_t(lane % 4 * 4);
                *reinterpret_cast<__nv_bfloat162 *>(raw + offset) =
                    __floats2bfloat162_rn(d[i][j][h * 2], d[i][j][h * 2 + 1]);
            }
    __syncthreads();
    for (int q = 0; q < p.targets; ++q) {
        __nv_bfloat16 *const target = p.c[q];
#pragma unroll 4
        for (int item = int(threadIdx.x); item < tile_m * tile_n / 8; item += threads) {
            const int r = item / 16, chunk = item % 16;
            if (row + r < p.rows && column + chunk * 8 < p.n)
                *reinterpret_cast<uint4 *>(target + int64_t(row + r) * p.n + column + chunk * 8) =
                    *reinterpret_cast<const uint4 *>(raw + wide_offset(r, chunk));
        }
    }

    __syncthreads();
    if (threadIdx.x != 0) return;
    __threadfence_system();
    if (atomicAdd(p.finished, 1u) != gridDim.x - 1) return;
    *p.finished = 0;
    __threadfence_system();
    for (int q = 0; q < p.peers; ++q) store_release(p.flag[q], p.epoch);
}
// kerneltui: evolve end

/* ---- Small kernels. ------------------------------------------------------------------------------- */

__global__ void wait_kernel(const uint64_t *mine, int rank, int ranks, uint64_t epoch) {
    const int q = int(threadIdx.x);
    if (q < ranks && q != rank) wait_for(mine + q * source_words, epoch);
}

__global__ void flag_kernel(const __grid_constant__ Words peers, int rank, int ranks, uint64_t epoch) {
    const int q = int(threadIdx.x);
    __threadfence_system();
    if (q < ranks && q != rank) store_release(peers.at[q] + rank * source_words, epoch);
}

__global__ void gate_kernel(const uint64_t *mine, const __grid_constant__ Words peers, int rank, int ranks,
                            uint64_t epoch) {
    const int q = int(threadIdx.x);
    if (q >= ranks || q == rank) return;
    store_release(peers.at[q] + rank * source_words + gate_word, epoch);
    wait_for(mine + q * source_words + gate_word, epoch);
}

/* ---- The call. ------------------------------------------------------------------------------------ */

struct State {
    const kt_context *ctx;
    int64_t n, k, rows, first_row;
    bool fused; /* else: vendor GEMM and copies */
    Words words;
    std::vector<int> peers;     /* in serving order */
    std::vector<Params> params; /* of every set */
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

void fill_params(State &s) {
    const kt_context *ctx = s.ctx;
    const bool peer_first = kt_value(ctx->tunables, ctx->tunable_count, "PEER_FIRST", 1) != 0;
    for (uint32_t i = 0; i < ctx->sets; ++i) {
        const kt_tensor *c = kt_find(&ctx->buffers[i], "C");
        const int64_t offset = s.first_row * s.n;
        Params p{};
        p.a = static_cast<const __nv_bfloat16 *>(kt_find(&ctx->buffers[i], "A")->local);
        p.b = static_cast<const __nv_bfloat16 *>(kt_find(&ctx->buffers[i], "B")->local);
        if (!peer_first) p.c[p.targets++] = static_cast<__nv_bfloat16 *>(c->local) + offset;
        for (int q : s.peers) p.c[p.targets++] = static_cast<__nv_bfloat16 *>(c->peers[q]) + offset;
        if (peer_first) p.c[p.targets++] = static_cast<__nv_bfloat16 *>(c->local) + offset;
        for (int q : s.peers) p.flag[p.peers++] = ctx->signals[q] + ctx->rank * source_words;
        p.finished = static_cast<unsigned *>(ctx->scratch);
        p.rows = int(s.rows);
        p.n = int(s.n);
        p.k = int(s.k);
        p.tiles_m = int((s.rows + tile_m - 1) / tile_m);
        p.tiles_n = int((s.n + tile_n - 1) / tile_n);
        const int64_t group = kt_value(ctx->tunables, ctx->tunable_count, "GROUP_M", 8);
        p.group_m = int(std::clamp<int64_t>(group, 1, std::max(1, p.tiles_m)));
        s.params.push_back(p);
    }
}

// kerneltui: evolve begin schedule
int run_fused(State &s, uint32_t set, uint64_t epoch, cudaStream_t stream) {
    Params &p = s.params[set];
    p.epoch = epoch;
    gemm_kernel<<<unsigned(p.tiles_m * p.tiles_n), threads, shared_bytes, stream>>>(p);
    const cudaError_t error = cudaGetLastError();
    return error ? fail(s.ctx, "launch of the GEMM", error) : 0;
}

int run_vendor(State &s, uint32_t set, uint64_t epoch, cudaStream_t stream) {
    const kt_context *ctx = s.ctx;
    const kt_tensor *a = kt_find(&ctx->buffers[set], "A");
    const kt_tensor *b = kt_find(&ctx->buffers[set], "B");
    const kt_tensor *c = kt_find(&ctx->buffers[set], "C");
    const uint64_t offset = uint64_t(s.first_row) * uint64_t(s.n) * 2;
    const uint64_t bytes = uint64_t(s.rows) * uint64_t(s.n) * 2;
    if (s.rows > 0 && ctx->vendor->gemm(ctx->vendor->self, s.rows, s.n, s.k, a->local, s.k, b->local, s.n,
                                        static_cast<char *>(c->local) + offset, s.n, stream))
        return fail(ctx, "the vendor GEMM failed");
    for (int q : s.peers) {
        cudaError_t error = cudaSuccess;
        if (bytes)
            error = cudaMemcpyAsync(static_cast<char *>(c->peers[q]) + offset,
                                    static_cast<char *>(c->local) + offset, bytes, cudaMemcpyDeviceToDevice,
                                    stream);
        if (error) return fail(ctx, "copy to a peer", error);
    }
    flag_kernel<<<1, 32, 0, stream>>>(s.words, int(ctx->rank), int(ctx->ranks), epoch);
    const cudaError_t error = cudaGetLastError();
    return error ? fail(ctx, "launch of the flags", error) : 0;
}
// kerneltui: evolve end

}  // namespace

int kerneltui_requirements(const kt_named_value *, uint32_t, const kt_named_value *, uint32_t, uint32_t,
                           uint32_t ranks, kt_requirements *out) {
    out->abi_version = KERNELTUI_ABI_VERSION;
    out->signal_words = ranks * source_words;
    out->scratch_bytes = 4096;
    return 0;
}

int kerneltui_setup(const kt_context *ctx, void **out) {
    const int64_t m = kt_value(ctx->dimensions, ctx->dimension_count, "M", 0);
    const int64_t n = kt_value(ctx->dimensions, ctx->dimension_count, "N", 0);
    const int64_t k = kt_value(ctx->dimensions, ctx->dimension_count, "K", 0);
    if (m < 1 || n < 1 || k < 1) return fail(ctx, "gemm_allgather needs the dimensions M, N and K");
    if (m > INT32_MAX - tile_m || n > INT32_MAX - tile_n || k > INT32_MAX - tile_k * stages)
        return fail(ctx, "a dimension does not fit 31 bits");
    if (ctx->ranks > max_ranks) return fail(ctx, "at most 8 ranks");
    if (!ctx->sets) return fail(ctx, "no buffer sets");
    for (uint32_t i = 0; i < ctx->sets; ++i) {
        const kt_tensor *c = kt_find(&ctx->buffers[i], "C");
        if (!kt_find(&ctx->buffers[i], "A") || !kt_find(&ctx->buffers[i], "B") || !c || !c->peers)
            return fail(ctx, "gemm_allgather needs A, B and a symmetric C");
        if (c->dtype != KT_BFLOAT16) return fail(ctx, "this kernel multiplies bfloat16");
    }
    State *s = new (std::nothrow) State{};
    if (!s) return fail(ctx, "out of memory in setup");
    s->ctx = ctx;
    s->n = n;
    s->k = k;
    s->first_row = kt_first_row(m, ctx->rank, ctx->ranks);
    s->rows = kt_first_row(m, ctx->rank + 1, ctx->ranks) - s->first_row;
    s->fused = n % 8 == 0 && k % 8 == 0 && m >= ctx->ranks; /* the same on every rank */
    for (uint32_t q = 0; q < ctx->ranks; ++q) s->words.at[q] = ctx->signals[q];
    for (uint32_t i = 1; i < ctx->ranks; ++i) s->peers.push_back(int((ctx->rank + i) % ctx->ranks));
    *out = s;
    cudaError_t error = cudaMemset(ctx->scratch, 0, 4096);
    if (!error)
        error =
            cudaFuncSetAttribute(gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error) return fail(ctx, "setup", error);
    fill_params(*s);
    return 0;
}

int kerneltui_run(void *opaque, uint32_t set, uint64_t epoch, void *opaque_stream) {
    State &s = *static_cast<State *>(opaque);
    const kt_context *ctx = s.ctx;
    const cudaStream_t stream = static_cast<cudaStream_t>(opaque_stream);
    const int rank = int(ctx->rank), ranks = int(ctx->ranks);
    if (ctx->sets < 2) gate_kernel<<<1, 32, 0, stream>>>(ctx->signals[rank], s.words, rank, ranks, epoch);
    if (s.fused ? run_fused(s, set, epoch, stream) : run_vendor(s, set, epoch, stream)) return 1;
    wait_kernel<<<1, 32, 0, stream>>>(ctx->signals[rank], rank, ranks, epoch);
    const cudaError_t error = cudaGetLastError();
    return error ? fail(ctx, "launch of the wait", error) : 0;
}

int kerneltui_teardown(void *opaque) {
    delete static_cast<State *>(opaque);
    return 0;
}
