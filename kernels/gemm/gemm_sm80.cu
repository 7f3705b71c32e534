/* gemm_sm80.cu - C = A B, row major, fp16 or bf16 in and out, sums in fp32, for GPUs without TMA and WGMMA
 * (A100) and as the seed for those that have them: cp.async, ldmatrix, mma.sync.
 *
 * A CTA of four warps multiplies one tile, 128 x 128 or, for products of few tiles, 64 x 64, over one range of
 * K. If K is shared out, the CTAs of a tile write their sums to scratch, and the one that comes last adds
 * them in a fixed order. B is row major, [K, N], and ldmatrix.trans reads it so: nothing is transposed.
 *
 * Rows that do not begin on 16 bytes (N or K no multiple of 8) are read element by element.
 */
#include <cuda_runtime.h>
#include <kerneltui/kernel.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <new>
#include <vector>

/* ---- The directive. One GPU: nothing is communicated. The seed, thus `host`. ------------------------ */

// kerneltui: directive backend host
// kerneltui: directive issuer thread
// kerneltui: directive placement sequential
// kerneltui: directive sync none
// kerneltui: directive chunk_bytes = 0

// Depth of the ring of A and B tiles.
// kerneltui: tunable STAGES in 4 3 5
#define STAGES 4
// Row tiles of a super-block: tiles are visited down its rows, then along N.
// kerneltui: runtime GROUP_M in 4 8 16 32 default 8
// Which tile: 0 by rule, 1 is 128 x 128, 2 is 64 x 64.
// kerneltui: runtime TILE in 0 1 2 default 0
// CTAs that share out K; 0 by rule.
// kerneltui: runtime PARTS in 0 1 2 4 8 16 default 0

namespace {

/* The element type, of which there is one in a build: its bits, and its name for the machine and for people.
 * CUDA's headers of such types take a second to compile. */
using element = uint16_t;
#if KT_ELEMENT == KT_ELEMENT_FLOAT16
#define ELEMENT_PTX "f16"
#define ELEMENT_NAME "float16"
constexpr kt_dtype element_dtype = KT_FLOAT16;
#elif KT_ELEMENT == KT_ELEMENT_BFLOAT16 || KT_ELEMENT == KT_ELEMENT_UNKNOWN
#define ELEMENT_PTX "bf16"
#define ELEMENT_NAME "bfloat16"
constexpr kt_dtype element_dtype = KT_BFLOAT16;
#else
#error "this kernel multiplies float16 or bfloat16"
#endif
#define PRODUCT_PTX "f32." ELEMENT_PTX "." ELEMENT_PTX

constexpr int tile_k = 32;
constexpr int stages = STAGES;
constexpr int threads = 128;

struct Params {
    const element *a, *b;
    element *c;
    float4 *sums;       /* scratch, if parts > 1 */
    unsigned *counters; /* of every tile: CTAs that have written their sums */
    int m, n, k;
    int tiles_m, tiles_n, group_m;
    int parts; /* of K */
};

/* ---- The machine. --------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return uint32_t(__cvta_generic_to_shared(pointer));
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
        "mma.sync.aligned.m16n8k16.row.col." PRODUCT_PTX ".f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t both;
    asm("cvt.rn." ELEMENT_PTX "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

template <int tile_size, int most_ctas>
struct Tile {
    static constexpr int size = tile_size, ctas_of_sm = most_ctas;
    static constexpr int a_bytes = size * tile_k * 2, b_bytes = tile_k * size * 2;
    static constexpr int ring_bytes = stages * (a_bytes + b_bytes);
    static constexpr int shared_bytes = ring_bytes > size * size * 2 ? ring_bytes : size * size * 2;
    static constexpr int rows = size / 2 / 16, columns = size / 2 / 8; /* of a warp, in units of an mma */
};

// kerneltui: evolve begin gemm
/* Where 16 bytes are in shared memory: the order within a row is mixed, so that eight rows of one column
 * lie in different banks. */
__device__ __forceinline__ uint32_t a_offset(int row, int chunk) {
    return uint32_t(row * 64 + ((chunk ^ (row >> 1 & 3)) << 4));
}
template <class T>
__device__ __forceinline__ uint32_t wide_offset(int row, int chunk) {
    return uint32_t(row * T::size * 2 + ((chunk ^ (row & 7)) << 4));
}

template <class T>
__device__ __forceinline__ void load_stage(const Params &p, uint32_t stage, int row, int column, int k) {
    const int thread = int(threadIdx.x);
    constexpr int chunks = T::size / 8;
#pragma unroll
    for (int i = 0; i < T::a_bytes / 16 / threads; ++i) {
        const int item = i * threads + thread;
        const int r = item / 4, chunk = item % 4;
        const bool valid = row + r < p.m && k + chunk * 8 < p.k;
        const element *source = p.a + (valid ? int64_t(row + r) * p.k + k + chunk * 8 : 0);
        copy_async(stage + a_offset(r, chunk), source, valid);
    }
#pragma unroll
    for (int i = 0; i < T::b_bytes / 16 / threads; ++i) {
        const int item = i * threads + thread;
        const int r = item / chunks, chunk = item % chunks;
        const bool valid = k + r < p.k && column + chunk * 8 < p.n;
        const element *source = p.b + (valid ? int64_t(k + r) * p.n + column + chunk * 8 : 0);
        copy_async(stage + T::a_bytes + wide_offset<T>(r, chunk), source, valid);
    }
}

/* d = A B for a tile, over the steps of K from `from` to `to`. */
template <class T>
__device__ __forceinline__ void multiply_tile(const Params &p, uint32_t ring, int row, int column, int from,
                                              int to, float (&d)[T::rows][T::columns][4]) {
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int warp_row = warp / 2 * (T::size / 2), warp_column = warp % 2 * (T::size / 2);
    constexpr int stage_bytes = T::a_bytes + T::b_bytes;
#pragma unroll
    for (int s = 0; s < stages - 1; ++s) {
        if (from + s < to) load_stage<T>(p, ring + s * stage_bytes, row, column, (from + s) * tile_k);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int t = 0; t < to - from; ++t) {
        asm volatile("cp.async.wait_group %0;" ::"n"(stages - 2) : "memory");
        __syncthreads(); /* the tile is there, and the one that is loaded over has been read */
        const int ahead = t + stages - 1;
        if (from + ahead < to)
            load_stage<T>(p, ring + ahead % stages * stage_bytes, row, column, (from + ahead) * tile_k);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const uint32_t at = ring + t % stages * stage_bytes;
#pragma unroll
        for (int kk = 0; kk < tile_k / 16; ++kk) {
            uint32_t a[T::rows][4], b[T::columns / 2][4];
#pragma unroll
            for (int i = 0; i < T::rows; ++i)
                load_matrices(a[i], at + a_offset(warp_row + i * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
            for (int j = 0; j < T::columns / 2; ++j) {
                const uint32_t offset =
                    wide_offset<T>(kk * 16 + lane % 16, warp_column / 8 + j * 2 + lane / 16);
                load_matrices_transposed(b[j], at + T::a_bytes + offset);
            }
#pragma unroll
            for (int i = 0; i < T::rows; ++i)
#pragma unroll
                for (int j = 0; j < T::columns; ++j)
                    multiply(d[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
}

/* A tile by way of shared memory, so that stores are 16 bytes long. */
template <class T>
__device__ __forceinline__ void store_tile(const Params &p, char *raw, int row, int column,
                                           const float (&d)[T::rows][T::columns][4]) {
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int warp_row = warp / 2 * (T::size / 2), warp_column = warp % 2 * (T::size / 2);
#pragma unroll
    for (int i = 0; i < T::rows; ++i)
#pragma unroll
        for (int j = 0; j < T::columns; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int r = warp_row + i * 16 + h * 8 + lane / 4;
                const uint32_t offset = wide_offset<T>(r, warp_column / 8 + j) + uint32_t(lane % 4 * 4);
                *reinterpret_cast<uint32_t *>(raw + offset) = pack(d[i][j][h * 2], d[i][j][h * 2 + 1]);
            }
    __syncthreads();
    constexpr int chunks = T::size / 8;
#pragma unroll 4
    for (int item = int(threadIdx.x); item < T::size * chunks; item += threads) {
        const int r = item / chunks, chunk = item % chunks;
        if (row + r < p.m && column + chunk * 8 < p.n)
            *reinterpret_cast<uint4 *>(p.c + int64_t(row + r) * p.n + column + chunk * 8) =
                *reinterpret_cast<const uint4 *>(raw + wide_offset<T>(r, chunk));
    }
}

template <class T>
__global__ void __launch_bounds__(threads, T::ctas_of_sm) tile_kernel(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) char raw[];
    __shared__ int last;
    const int block = p.group_m * p.tiles_n;
    const int tile = int(blockIdx.x) / p.parts, part = int(blockIdx.x) % p.parts;
    const int group = tile / block;
    const int height = min(p.group_m, p.tiles_m - group * p.group_m);
    const int within = tile - group * block;
    const int row = (group * p.group_m + within % height) * T::size;
    const int column = within / height * T::size;
    const int k_tiles = (p.k + tile_k - 1) / tile_k;
    const int from = int(int64_t(k_tiles) * part / p.parts);
    const int to = int(int64_t(k_tiles) * (part + 1) / p.parts);

    float d[T::rows][T::columns][4] = {};
    multiply_tile<T>(p, shared_address(raw), row, column, from, to, d);
    if (p.parts > 1) {
        constexpr int pieces = T::rows * T::columns;
        float4 *const sums = p.sums + int64_t(tile) * p.parts * pieces * threads + threadIdx.x;
#pragma unroll
        for (int i = 0; i < T::rows; ++i)
#pragma unroll
            for (int j = 0; j < T::columns; ++j)
                __stcg(sums + (part * pieces + i * T::columns + j) * threads,
                       float4{d[i][j][0], d[i][j][1], d[i][j][2], d[i][j][3]});
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) last = atomicAdd(p.counters + tile, 1u) == unsigned(p.parts - 1);
        __syncthreads();
        if (!last) return;
        __threadfence();
        if (threadIdx.x == 0) p.counters[tile] = 0;
#pragma unroll
        for (int i = 0; i < T::rows; ++i)
#pragma unroll
            for (int j = 0; j < T::columns; ++j) {
                const float4 *at = sums + (i * T::columns + j) * threads;
                float4 v = __ldcg(at);
                for (int g = 1; g < p.parts; ++g) {
                    const float4 more = __ldcg(at + g * pieces * threads);
                    v = float4{v.x + more.x, v.y + more.y, v.z + more.z, v.w + more.w};
                }
                d[i][j][0] = v.x;
                d[i][j][1] = v.y;
                d[i][j][2] = v.z;
                d[i][j][3] = v.w;
            }
    }
    store_tile<T>(p, raw, row, column, d);
}
// kerneltui: evolve end

/* ---- Rows that do not begin on 16 bytes. ---------------------------------------------------------- */

struct PlainParams {
    const element *a, *b;
    element *c;
    int m, n, k;
};

constexpr int plain_tile = 64, plain_k = 32, plain_threads = 128;
constexpr int plain_a_pitch = plain_k + 8, plain_b_pitch = plain_tile + 8; /* no bank twice in 8 rows */

/* 64 x 64 of C; a warp has 32 x 32. */
__global__ void __launch_bounds__(plain_threads, 4) plain_kernel(const __grid_constant__ PlainParams p) {
    __shared__ __align__(16) element a[plain_tile * plain_a_pitch];
    __shared__ __align__(16) element b[plain_k * plain_b_pitch];
    constexpr int count = plain_tile * plain_k / plain_threads;
    const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int row = int(blockIdx.x) * plain_tile, column = int(blockIdx.y) * plain_tile;
    const element zero = 0;
    float d[2][4][4] = {};
    for (int k = 0; k < p.k; k += plain_k) {
        __syncthreads();
#pragma unroll 8
        for (int i = 0; i < count; ++i) {
            const int item = i * plain_threads + thread;
            const int ra = item / plain_k, ka = item % plain_k;
            const bool inside_a = row + ra < p.m && k + ka < p.k;
            a[ra * plain_a_pitch + ka] = inside_a ? p.a[int64_t(row + ra) * p.k + k + ka] : zero;
            const int kb = item / plain_tile, cb = item % plain_tile;
            const bool inside_b = k + kb < p.k && column + cb < p.n;
            b[kb * plain_b_pitch + cb] = inside_b ? p.b[int64_t(k + kb) * p.n + column + cb] : zero;
        }
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < plain_k; kk += 16) {
            uint32_t x[2][4], y[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int r = warp / 2 * 32 + i * 16 + lane % 16;
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(x[i][0]), "=r"(x[i][1]), "=r"(x[i][2]), "=r"(x[i][3])
                             : "r"(shared_address(a + r * plain_a_pitch + kk + lane / 16 * 8))
                             : "memory");
                const int c = warp % 2 * 32 + i * 16 + lane / 16 * 8;
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(y[i][0]), "=r"(y[i][1]), "=r"(y[i][2]), "=r"(y[i][3])
                             : "r"(shared_address(b + (kk + lane % 16) * plain_b_pitch + c))
                             : "memory");
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    asm volatile(
                        "mma.sync.aligned.m16n8k16.row.col." PRODUCT_PTX ".f32 {%0, %1, %2, %3}, "
                        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                        : "+f"(d[i][j][0]), "+f"(d[i][j][1]), "+f"(d[i][j][2]), "+f"(d[i][j][3])
                        : "r"(x[i][0]), "r"(x[i][1]), "r"(x[i][2]), "r"(x[i][3]),
                          "r"(y[j / 2][j % 2 * 2]), "r"(y[j / 2][j % 2 * 2 + 1]));
        }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int r = row + warp / 2 * 32 + i * 16 + e / 2 * 8 + lane / 4;
                const int c = column + warp % 2 * 32 + j * 8 + lane % 4 * 2 + e % 2;
                if (r < p.m && c < p.n) p.c[int64_t(r) * p.n + c] = element(pack(d[i][j][e], 0.0f));
            }
}

/* ---- The call. ------------------------------------------------------------------------------------ */

using Large = Tile<128, 2>;
using Small = Tile<64, 4>;

/* What is launched for a shape. */
struct Choice {
    int size; /* of a tile; 0: the plain kernel */
    int parts;
};

struct State {
    const kt_context *ctx;
    Choice choice;
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

int64_t up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

int sm_count() {
    int device = 0, sms = 0;
    if (cudaGetDevice(&device) || cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device))
        return 108;
    return sms;
}

// kerneltui: evolve begin rule
/* Large tiles if they fill the SMs; K is shared out until the tiles do, as long as a range has 8 steps. */
Choice choose(int64_t m, int64_t n, int64_t k, const kt_named_value *tunables, uint32_t count) {
    if (n % 8 || k % 8) return Choice{0, 1};
    const int sms = sm_count();
    const int64_t tile = kt_value(tunables, count, "TILE", 0), wanted = kt_value(tunables, count, "PARTS", 0);
    const bool large = tile ? tile == 1 : up(m, 128) * up(n, 128) >= sms;
    Choice c{large ? 128 : 64, int(std::max<int64_t>(wanted, 1))};
    const int64_t tiles = up(m, c.size) * up(n, c.size);
    const int64_t full = int64_t(sms) * (large ? Large::ctas_of_sm : Small::ctas_of_sm);
    if (!wanted)
        while (c.parts < 16 && tiles * c.parts * 2 <= full && up(k, tile_k) >= c.parts * 16) c.parts *= 2;
    if (tiles * c.parts > 4 * full || c.parts > up(k, tile_k)) c.parts = 1;
    return c;
}
// kerneltui: evolve end

constexpr uint64_t counter_bytes = 1 << 16;

/* Scratch: counters, then sums. */
uint64_t scratch_bytes(const Choice &c, int64_t m, int64_t n) {
    if (c.parts == 1) return 0;
    const uint64_t tiles = uint64_t(up(m, c.size) * up(n, c.size));
    return counter_bytes + tiles * uint64_t(c.parts) * uint64_t(c.size * c.size) * 4;
}

int fill_params(State &s, int64_t m, int64_t n, int64_t k) {
    const kt_context *ctx = s.ctx;
    for (uint32_t i = 0; i < ctx->sets; ++i) {
        const kt_tensor *a = kt_find(&ctx->buffers[i], "A");
        const kt_tensor *b = kt_find(&ctx->buffers[i], "B");
        const kt_tensor *c = kt_find(&ctx->buffers[i], "C");
        if (!a || !b || !c) return fail(ctx, "gemm needs A, B and C");
        if (c->dtype != element_dtype) return fail(ctx, "this build multiplies " ELEMENT_NAME);
        Params p{};
        p.a = static_cast<const element *>(a->local);
        p.b = static_cast<const element *>(b->local);
        p.c = static_cast<element *>(c->local);
        p.counters = static_cast<unsigned *>(ctx->scratch);
        if (s.choice.parts > 1)
            p.sums = reinterpret_cast<float4 *>(static_cast<char *>(ctx->scratch) + counter_bytes);
        p.m = int(m);
        p.n = int(n);
        p.k = int(k);
        const int size = s.choice.size ? s.choice.size : plain_tile;
        p.tiles_m = int(up(m, size));
        p.tiles_n = int(up(n, size));
        const int64_t group = kt_value(ctx->tunables, ctx->tunable_count, "GROUP_M", 8);
        p.group_m = int(std::clamp<int64_t>(group, 1, p.tiles_m));
        p.parts = s.choice.parts;
        s.params.push_back(p);
    }
    return 0;
}

}  // namespace

int kerneltui_requirements(const kt_named_value *dimensions, uint32_t dimension_count,
                           const kt_named_value *tunables, uint32_t tunable_count, uint32_t, uint32_t,
                           kt_requirements *out) {
    const int64_t m = kt_value(dimensions, dimension_count, "M", 1);
    const int64_t n = kt_value(dimensions, dimension_count, "N", 1);
    const int64_t k = kt_value(dimensions, dimension_count, "K", 1);
    out->abi_version = KERNELTUI_ABI_VERSION;
    out->graph_safe = 1;
    out->scratch_bytes = scratch_bytes(choose(m, n, k, tunables, tunable_count), m, n);
    return 0;
}

int kerneltui_setup(const kt_context *ctx, void **out) {
    const int64_t m = kt_value(ctx->dimensions, ctx->dimension_count, "M", 0);
    const int64_t n = kt_value(ctx->dimensions, ctx->dimension_count, "N", 0);
    const int64_t k = kt_value(ctx->dimensions, ctx->dimension_count, "K", 0);
    if (m < 1 || n < 1 || k < 1) return fail(ctx, "gemm needs the dimensions M, N and K");
    if (m > INT32_MAX - 128 || n > INT32_MAX - 128 || k > INT32_MAX - tile_k * stages)
        return fail(ctx, "a dimension does not fit 31 bits");
    State *s = new (std::nothrow) State{};
    if (!s) return fail(ctx, "out of memory in setup");
    *out = s;
    s->ctx = ctx;
    s->choice = choose(m, n, k, ctx->tunables, ctx->tunable_count);
    const uint64_t needed = scratch_bytes(s->choice, m, n);
    if (ctx->scratch_bytes < needed) return fail(ctx, "less scratch than required");
    cudaError_t error = needed ? cudaMemset(ctx->scratch, 0, counter_bytes) : cudaSuccess;
    if (!error)
        error = cudaFuncSetAttribute(tile_kernel<Large>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     Large::shared_bytes);
    if (!error)
        error = cudaFuncSetAttribute(tile_kernel<Small>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     Small::shared_bytes);
    if (error) return fail(ctx, "setup", error);
    return fill_params(*s, m, n, k);
}

int kerneltui_run(void *opaque, uint32_t set, uint64_t, void *opaque_stream) {
    const State &s = *static_cast<const State *>(opaque);
    const Params &p = s.params[set];
    const cudaStream_t stream = static_cast<cudaStream_t>(opaque_stream);
    const unsigned ctas = unsigned(p.tiles_m) * unsigned(p.tiles_n) * unsigned(p.parts);
    if (s.choice.size == Large::size)
        tile_kernel<Large><<<ctas, threads, Large::shared_bytes, stream>>>(p);
    else if (s.choice.size == Small::size)
        tile_kernel<Small><<<ctas, threads, Small::shared_bytes, stream>>>(p);
    else
        plain_kernel<<<dim3(unsigned(p.tiles_m), unsigned(p.tiles_n)), plain_threads, 0, stream>>>(
            PlainParams{p.a, p.b, p.c, p.m, p.n, p.k});
    const cudaError_t error = cudaGetLastError();
    return error ? fail(s.ctx, "launch of the GEMM", error) : 0;
}

int kerneltui_teardown(void *opaque) {
    delete static_cast<State *>(opaque);
    return 0;
}
