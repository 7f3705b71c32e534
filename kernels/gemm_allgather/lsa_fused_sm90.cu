/* lsa_fused_sm90.cu - C = A B with the rows of A sharded over the ranks, one kernel: a persistent GEMM
 * (TMA, WGMMA, bf16 in, fp32 sums) whose epilogue stores every tile to all ranks' C.
 *
 *   warp 0       loads tiles of A and B into a ring of STAGES in shared memory (TMA)
 *   warps 1, 2   store finished boxes of C, 64 x 64, from shared memory to the peers and to the own C (TMA)
 *   warp 3       of the first CTA: waits for the peers' flags
 *   warps 4-11   two warpgroups, each multiplies 64 x TILE_N of the tile and writes it to shared memory
 *
 * B is row major, [K, N], and WGMMA reads it so ("MN-major"): nothing is transposed. With CLUSTER 2, two
 * CTAs, one above the other, share a tile of B: each loads one half for both (multicast within the
 * cluster's shared memory). The boxes of C drain under the main loop of the next tile.
 *
 * Memory order. The signal area of rank q has, for every source rank p, one word per CTA and warpgroup.
 * The storer waits until all its bulk stores have completed (wait_group 0, not .read), fences the async
 * proxy, and stores the epoch to the peers with release order at system scope. The peer's waiting warp
 * loads the words until each is at least the epoch, then fences with acquire order, and the kernel ends
 * after it: so when the stream has passed the kernel, all rows of all ranks are in this rank's C. Epochs
 * only grow: a word is never reset, and `>=` also lets a peer be one call ahead. With a single buffer set
 * the ranks first meet (`gate` words), because a peer's C may still be read.
 *
 * Tiles that would leave most SMs idle in the last round are shared out along K, each over equally many
 * clusters: so those that are at the same step find each other's A and B in the L2 cache. A cluster leaves
 * its sums in scratch; then each of a tile's clusters adds all parts of some of its boxes, always in the same
 * order, and stores them. That needs all clusters on the GPU at once, so no more are launched than fit.
 *
 * With BACKEND copy_engine the kernel stores only to its own C and counts finished tiles per block of C;
 * copies to the peers stand ready on a side stream behind waits for those counts.
 *
 * All ranks must have the same kind of GPU: the number of CTAs, thus of flags, follows from its SM count.
 * Rows that do not begin on 16 bytes (N or K no multiple of 8) cannot be read by TMA: then the vendor GEMM
 * and plain copies do the work.
 */
#include <cuda.h>
#include <cuda_bf16.h>
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
// kerneltui: directive placement fused
// kerneltui: directive sync flag_per_chunk
// kerneltui: directive chunk_bytes = 8192

// Who brings a tile to the peers: the epilogue itself, or the copy engine behind counters.
// kerneltui: tunable BACKEND in lsa copy_engine
#define BACKEND lsa
// Columns of a tile of C; it has 128 rows.
// kerneltui: tunable TILE_N in 256 128
#define TILE_N 256
// Depth of the ring of A and B tiles.
// kerneltui: tunable STAGES in 3 4 5 6 if STAGES * (16384 + 128 * TILE_N) + 16384 * C_BOXES <= 230000
#define STAGES 3
// Boxes of C, 64 x 64, that a warpgroup may have in shared memory. What has no room there stays in registers
// until the middle of the next tile's main loop.
// kerneltui: tunable C_BOXES in 4 2 if C_BOXES * 64 <= TILE_N
#define C_BOXES 4
// CTAs that share a tile of B.
// kerneltui: tunable CLUSTER in 2 1
#define CLUSTER 2
// Row tiles of a super-block: tiles are visited down its rows, then along N.
// kerneltui: runtime GROUP_M in 4 8 16 32 default 16
// Most CTAs of the grid; 0: one for every SM.
// kerneltui: runtime MAX_CTAS in 0 112 120 128 default 0
// Whether a box goes to the peers before it goes to the own C.
// kerneltui: runtime PEER_FIRST in 0 1 default 1
// Rank r begins r * N / RANKS columns to the right (1), so that ranks do not write one place at once.
// kerneltui: runtime RANK_OFFSET in 0 1 default 0
// Whether the tiles of the last round over the SMs are computed in two halves, only with TILE_N 256: never
// (0), always (1: the first half is stored under the second), or if no SM then gets more than one half (2).
// A half takes about two thirds of a tile's time.
// kerneltui: runtime HALVE_LAST in 0 1 2 default 2
// Steps over K (64 each) that must be saved if the tiles of the last round are shared out along K; 0: never.
// What is shared is not halved.
// kerneltui: runtime SHARE_LAST in 0 8 16 24 48 default 16
// Clusters that share a tile, at most.
// kerneltui: runtime MOST_PARTS in 2 4 8 16 default 4
// Whether tiles of 256 columns have a ring of 4 stages and room for 2 boxes, whatever STAGES and C_BOXES say,
// if all are whole.
// kerneltui: runtime DEEP in 0 1 default 1
// Whether the kernel may be placed on the SMs while its predecessor on the stream ends, if that allows it
// (programmatic dependent launch). It touches no memory before the predecessor has ended.
// kerneltui: runtime EARLY_LAUNCH in 0 1 default 1
// Percent of a tile's main loop over which its predecessor's boxes are spread on their way to the peers.
// All CTAs finish a tile at about the same time: without it the link sees bursts, and loads wait behind them.
// kerneltui: runtime PACE in 0 25 50 75 100 default 75
// Whether warpgroups and CTAs take turns in that.
// kerneltui: runtime STAGGER in 0 1 default 1
// Tiles of 128 columns are used if those of TILE_N would be done in this many rounds over the SMs, or fewer.
// kerneltui: runtime NARROW_ROUNDS in 0 1 2 3 4 default 2
// Whether a CTA's tiles go along K forwards and backwards in turn. Its next tile has the same rows of A, of
// which the last steps over K are still in the L2 cache.
// kerneltui: runtime TURN_K in 0 1 default 1
// How many steps over K (64 each) a cluster's loads may be ahead of the mean, if what all read in a round is
// more than twice the L2 cache; 0: any number. Clusters that drift apart along K find less of each other in it.
// kerneltui: runtime LEAD in 0 8 16 32 default 8
// Column tiles of one copy, if BACKEND is copy_engine; 0: whole rows.
// kerneltui: runtime BAND in 0 2 4 8 16 default 8

namespace {

enum Backend { lsa, copy_engine };

constexpr Backend backend = BACKEND;
constexpr int tile_m = 128;
constexpr int tile_k = 64; /* 128 bytes: one swizzle row */
constexpr int cluster = CLUSTER;

constexpr int box = 64;
constexpr int box_bytes = box * box * 2;
constexpr int a_bytes = tile_m * tile_k * 2;
constexpr int groups = 2; /* consumer warpgroups */
constexpr int threads = 128 * (1 + groups);

constexpr int max_ranks = 8;
constexpr int source_words = 512; /* words of a source rank in the signal area; the last one is the gate */
constexpr int gate_word = source_words - 1;
constexpr int max_ctas = (source_words - 2) / groups;

/* What the size of a tile decides. `all`: also halves and parts of tiles, else whole ones only. */
template <int columns, int depth, int buffered, bool all = true>
struct Config {
    static constexpr bool whole_only = !all;
    static constexpr int tile_n = columns;
    static constexpr int stages = depth;
    static constexpr int c_boxes = buffered; /* of a warpgroup */
    static constexpr int boxes_n = tile_n / box;
    static constexpr int b_bytes = tile_k * tile_n * 2;

    struct Barriers {
        uint64_t full[stages];             /* A and B have arrived */
        uint64_t empty[stages];            /* all consumers of the cluster have read them */
        uint64_t c_full[groups][c_boxes];  /* a box of C is written */
        uint64_t c_empty[groups][c_boxes]; /* and may be written again */
    };

    struct Shared {
        char *a, *b, *c;
        Barriers *barriers;
    };

    static constexpr int shared_bytes = stages * (a_bytes + b_bytes) + groups * c_boxes * box_bytes +
                                        int(sizeof(Barriers)) + 1024; /* 1024: alignment of the swizzle */

    static_assert(tile_n == 128 || tile_n == 256, "wgmma is written for these");
    static_assert(boxes_n % cluster == 0, "a CTA of the cluster loads whole boxes of B");
    static_assert(c_boxes >= 1 && c_boxes <= boxes_n, "boxes of one tile");
    static_assert(shared_bytes <= 232448, "more shared memory than a CTA may have");
};

using Main = Config<TILE_N, STAGES, C_BOXES>;
using Deep = Config<256, 4, 2, false>; /* half of C waits in registers */
using Narrow = Config<128, 6, 2>;      /* for products of few tiles */

struct Counts {
    int of[max_ranks];
};

struct Words {
    uint64_t *at[max_ranks];
};

struct Params {
    CUtensorMap a, b;
    CUtensorMap c[max_ranks];  /* this rank's rows: first in the own C, then in the peers' */
    uint64_t *flag[max_ranks]; /* of the peers, in the same order from 1 on */
    const uint64_t *mine;
    unsigned *counters; /* copy_engine: tiles finished, per group of rows and band of columns */
    Counts flags;       /* words to wait for, of every source rank */
    uint64_t epoch;
    int rank, ranks;
    int n, k, rows;
    int tiles_m, tiles_n; /* rows of tiles in units of `cluster` */
    int group_m;          /* likewise */
    int first_n;          /* the column tile at which this rank begins */
    int whole;            /* tiles that are not halved: the first ones */
    int items;            /* whole tiles and halves */
    int shared, parts;    /* tiles behind them that are shared out along K, each over so many clusters */
    float4 *sums;         /* their parts */
    uint64_t *sum_flags;  /* the epoch at which a part is there */
    int peer_first;
    int pace;    /* clocks between two boxes of a warpgroup */
    int stagger; /* whether warpgroups and CTAs begin at different times */
    int band, bands;
    bool turn_k;
    int lead;
    uint64_t *begun; /* pieces of main loops, by all clusters in all calls */
    uint64_t calls;  /* before this one */
};

/* ---- The machine. --------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return uint32_t(__cvta_generic_to_shared(pointer));
}

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

__device__ __forceinline__ uint64_t load_relaxed(const uint64_t *word) {
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

/* What was written before words that have been seen is seen behind it. */
__device__ __forceinline__ void acquire() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

__device__ __forceinline__ void barrier_init(uint64_t *barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
                 : "memory");
}

__device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over:\n"
        "}\n" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/* Arrives at the same barrier of another CTA of the cluster. */
__device__ __forceinline__ void barrier_arrive_at(uint64_t *barrier, uint32_t cta) {
    asm volatile(
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(shared_address(barrier)),
        "r"(cta)
        : "memory");
}

__device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void cluster_sync() {
    if (cluster > 1) {
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    } else {
        __syncthreads();
    }
}

/* The end of the predecessor on the stream, and the sign that the successor may be placed. */
__device__ __forceinline__ void wait_for_predecessor() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void allow_successor() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void prefetch(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void load_box(const CUtensorMap *map, void *target, uint64_t *barrier, int x,
                                         int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(shared_address(target)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
        : "memory");
}

/* The same offset in the shared memory of every CTA of the cluster, and the barrier of each. */
__device__ __forceinline__ void load_box_cluster(const CUtensorMap *map, void *target, uint64_t *barrier,
                                                 int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(target)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "h"(uint16_t((1 << cluster) - 1))
        : "memory");
}

__device__ __forceinline__ void store_box(const CUtensorMap *map, const void *source, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(shared_address(source)), "r"(x), "r"(y)
                 : "memory");
}

__device__ __forceinline__ void commit_stores() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* At most `pending` groups of stores have not been read from shared memory. */
template <int pending>
__device__ __forceinline__ void wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

__device__ __forceinline__ void wait_stores_done() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* Operands of WGMMA in shared memory, 128-byte swizzle. A is K-major: rows of 128 bytes, 8 of them an atom
 * of 1024. B is MN-major: atoms of 64 columns x 8 rows of K, 1024 bytes; next 8 rows after 1024 bytes, next
 * 64 columns after a whole box. */
__device__ __forceinline__ uint64_t operand(const void *pointer, int leading, int stride) {
    return (uint64_t(shared_address(pointer) & 0x3ffff) >> 4) | (uint64_t(leading >> 4) << 16) |
           (uint64_t(stride >> 4) << 32) | (uint64_t(1) << 62);
}

__device__ __forceinline__ void wgmma_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int pending>
[[maybe_unused]] __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/* d += A B (or d = A B) for 64 rows and 16 of K. */
[[maybe_unused]] __device__ __forceinline__ void wgmma(float (&d)[64], uint64_t a, uint64_t b,
                                                       int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 1; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),
          "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),
          "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),
          "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
          "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(accumulate));
}

[[maybe_unused]] __device__ __forceinline__ void wgmma(float (&d)[128], uint64_t a, uint64_t b,
                                                       int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %130, 0; "
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, p, 1, 1, 0, 1; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),
          "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),
          "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),
          "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
          "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]),
          "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]),
          "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]),
          "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]),
          "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]),
          "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]),
          "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]),
          "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]),
          "+f"(d[127])
        : "l"(a), "l"(b), "r"(accumulate));
}

// kerneltui: evolve begin raster
/* ---- Which tile when. ----------------------------------------------------------------------------- */

struct Item {
    int m, n;   /* tile; m in units of the cluster */
    int column; /* of C */
    bool half;  /* 128 columns */
};

/* Super-blocks of group_m rows of tiles; within one, down the rows and then along N. */
template <class T>
__device__ __forceinline__ Item tile_at(const Params &p, int index) {
    const int block = p.group_m * p.tiles_n;
    const int group = index / block;
    const int first = group * p.group_m;
    const int height = min(p.group_m, p.tiles_m - first);
    const int within = index - group * block;
    int n = within / height + p.first_n;
    if (n >= p.tiles_n) n -= p.tiles_n;
    return Item{first + within % height, n, n * T::tile_n, false};
}

template <class T>
__device__ __forceinline__ Item item_at(const Params &p, int item) {
    if (T::whole_only || item < p.whole) return tile_at<T>(p, item);
    Item half = tile_at<T>(p, p.whole + (item - p.whole) / 2);
    half.column += (item - p.whole) % 2 * (T::tile_n / 2);
    half.half = true;
    return half;
}

/* A part of a shared tile: `count` steps over K, the `index`-th of p.parts; nothing if `count` is 0. */
struct Part {
    int tile; /* behind the whole ones */
    int first_k, count;
    int index;

    __device__ __forceinline__ bool adds(const Params &p, int j, int boxes) const {
        return j * p.parts / boxes == index;
    }
};

template <class T>
__device__ __forceinline__ Part part_of(const Params &p, int who, int k_tiles) {
    if (T::whole_only || who >= p.shared * p.parts) return Part{};
    const int index = who % p.parts;
    const int first_k = int(int64_t(k_tiles) * index / p.parts);
    return Part{who / p.parts, first_k, int(int64_t(k_tiles) * (index + 1) / p.parts) - first_k, index};
}

/* Where the q-th part of a tile lies, for a CTA of the cluster and a warpgroup. */
__device__ __forceinline__ int place_of(const Params &p, const Part &part, int q, int rank, int group) {
    return ((part.tile * p.parts + q) * cluster + rank) * groups + group;
}
// kerneltui: evolve end

// kerneltui: evolve begin roles
/* ---- The roles. ----------------------------------------------------------------------------------- */

struct Ring {
    int index;
    uint32_t parity;

    __device__ __forceinline__ void next(int size) {
        if (++index == size) {
            index = 0;
            parity ^= 1;
        }
    }
};

/* Holds a cluster's loads back that are too far ahead of the mean. */
struct Lead {
    static constexpr int piece = 8; /* steps over K */

    const Params &p;
    int clusters, all; /* pieces that each cluster begins in a call, or adds at its end */
    int own;
    uint64_t seen; /* of all clusters, when last looked at */

    /* Before each step. What is looked at comes some steps later, when it is needed. */
    __device__ __forceinline__ void step(int k) {
        if (k % piece == piece / 2) look();
        if (k % piece) return;
        add(1);
        const int64_t least = int64_t(++own - p.lead / piece) * clusters;
        if (least <= 0) return;
        const uint64_t wanted = p.calls * uint64_t(clusters) * uint64_t(all) + uint64_t(least);
        while (seen < wanted) {
            __nanosleep(50);
            look();
        }
    }

    __device__ __forceinline__ void end() {
        if (own < all) add(all - own);
    }

    __device__ __forceinline__ void look() {
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(p.begun) : "memory");
    }

    __device__ __forceinline__ void add(int count) {
        asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p.begun), "l"(uint64_t(count))
                     : "memory");
    }
};

/* Loads `count` steps over K of this CTA's tile of A and its part of the cluster's tile of B. */
template <class T>
__device__ __forceinline__ void load_tile(const Params &p, const typename T::Shared &s, Ring &stage,
                                          const Item &item, int first_k, int count, bool back, int rank,
                                          Lead &lead, bool leads) {
    const int row = (item.m * cluster + rank) * tile_m;
    const int boxes = (item.half ? T::boxes_n / 2 : T::boxes_n) / cluster;
    const uint32_t bytes = a_bytes + (item.half ? T::b_bytes / 2 : T::b_bytes);
    for (int i = 0; i < count; ++i) {
        if (leads) lead.step(i);
        const int k = first_k + (back ? count - 1 - i : i);
        barrier_wait(&s.barriers->empty[stage.index], stage.parity);
        uint64_t *full = &s.barriers->full[stage.index];
        barrier_expect(full, bytes);
        load_box(&p.a, s.a + stage.index * a_bytes, full, k * tile_k, row);
#pragma unroll
        for (int own = 0; own < T::boxes_n / cluster; ++own) {
            if (own == boxes) break;
            const int j = rank * boxes + own;
            char *target = s.b + stage.index * T::b_bytes + j * box_bytes;
            if (cluster > 1)
                load_box_cluster(&p.b, target, full, item.column + j * box, k * tile_k);
            else
                load_box(&p.b, target, full, item.column + j * box, k * tile_k);
        }
        stage.next(T::stages);
    }
}

/* One thread loads all that this CTA multiplies. */
template <class T>
__device__ __forceinline__ void load_tiles(const Params &p, const typename T::Shared &s, int first,
                                           int step, int k_tiles, int rank) {
    Ring stage{0, 1}; /* the ring begins empty */
    bool back = false;
    Lead lead{p, step, (p.items + step - 1) / step * ((k_tiles + Lead::piece - 1) / Lead::piece), 0, 0};
    const bool leads = p.lead > 0 && rank == 0;
    for (int index = first; index < p.items; index += step) {
        load_tile<T>(p, s, stage, item_at<T>(p, index), 0, k_tiles, back, rank, lead, leads);
        back = back != p.turn_k;
    }
    if (leads) lead.end();
    const Part part = part_of<T>(p, first, k_tiles);
    if (part.count)
        load_tile<T>(p, s, stage, tile_at<T>(p, p.whole + part.tile), part.first_k, part.count, back, rank,
                     lead, false);
}

/* One thread stores the boxes of one consumer warpgroup. */
template <class T>
struct Storer {
    const Params &p;
    const typename T::Shared &s;
    int group, rank;
    Ring slot;
    int held; /* boxes that are stored but not given back */

    __device__ __forceinline__ void store(const Item &item, int j) {
        const char *source = s.c + (group * T::c_boxes + slot.index) * box_bytes;
        const int x = item.column + j * box;
        const int row = (item.m * cluster + rank) * tile_m + group * box;
        if (x < p.n && row < p.rows) {
            if (backend == lsa && p.peer_first)
                for (int q = 1; q < p.ranks; ++q) store_box(&p.c[q], source, x, row);
            store_box(&p.c[0], source, x, row);
            if (backend == lsa && !p.peer_first)
                for (int q = 1; q < p.ranks; ++q) store_box(&p.c[q], source, x, row);
        }
        commit_stores();
        slot.next(T::c_boxes);
        ++held;
        if (T::c_boxes < T::boxes_n) { /* the next one is waited for: by its turn this one has been read */
            give_back();
        } else if (held == T::c_boxes) { /* the oldest has been read when at most the others are pending */
            wait_stores_read<T::c_boxes - 1>();
            barrier_arrive(&s.barriers->c_empty[group][slot.index]);
            --held;
        }
    }

    __device__ __forceinline__ void give_back() {
        wait_stores_read<0>();
        for (; held > 0; --held)
            barrier_arrive(&s.barriers->c_empty[group][(slot.index + T::c_boxes - held) % T::c_boxes]);
    }

    /* Behind the last of `boxes` boxes of a tile. */
    __device__ __forceinline__ void end(const Item &item, int boxes) {
        if (backend == copy_engine) {
            wait_stores_done();
            __threadfence_system();
            const int counter = item.m / p.group_m * p.bands + item.n / p.band;
            asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(p.counters + counter), "r"(boxes)
                         : "memory");
        }
        give_back();
    }
};

/* Stores all boxes of a warpgroup, and says when all of them have arrived. */
template <class T>
__device__ __forceinline__ void store_tiles(const Params &p, const typename T::Shared &s, int first,
                                            int step, int k_tiles, int group, int rank) {
    Storer<T> storer{p, s, group, rank, Ring{0, 0}, 0};
    const Part part = part_of<T>(p, first, k_tiles);
    long long due = 0;
    for (int index = first; index < p.items; index += step) {
        const Item item = item_at<T>(p, index);
        const int boxes = item.half ? T::boxes_n / 2 : T::boxes_n;
        const int pace = index + step < p.items ? p.pace : part.count ? p.pace / p.parts : 0;
#pragma unroll 1
        for (int j = 0; j < boxes; ++j) {
            barrier_wait(&s.barriers->c_full[group][storer.slot.index], storer.slot.parity);
            if (backend == lsa && pace > 0) {
                /* Warpgroups and CTAs take turns. */
                const int turn = p.stagger ? int(blockIdx.x * groups + group) % 8 * pace / 8 : 0;
                if (j == 0) due = clock64() + turn;
                while (clock64() < due) __nanosleep(100);
                due = clock64() + pace;
            }
            storer.store(item, j);
        }
        storer.end(item, boxes);
    }
    if (part.count) {
        const Item item = tile_at<T>(p, p.whole + part.tile);
        int boxes = 0;
#pragma unroll 1
        for (int j = 0; j < T::boxes_n; ++j) {
            if (!part.adds(p, j, T::boxes_n)) continue;
            barrier_wait(&s.barriers->c_full[group][storer.slot.index], storer.slot.parity);
            storer.store(item, j);
            ++boxes;
        }
        if (boxes) storer.end(item, boxes);
    }
    wait_stores_done();
    if (backend == lsa) {
        for (int q = 1; q < p.ranks; ++q) store_release(p.flag[q] + blockIdx.x * groups + group, p.epoch);
    }
}

/* One warp waits until the other ranks' words have reached the epoch. They come at about the same time, the last
 * ones at the very end of the call: a lane has several loads on their way, not one after the other. */
__device__ __forceinline__ void wait_for_peers(const Params &p, int lane) {
    constexpr int at_once = 8;
    for (int q = 0; q < p.ranks; ++q) {
        if (q == p.rank) continue;
        const uint64_t *words = p.mine + q * source_words;
        for (int first = lane; first < p.flags.of[q]; first += 32 * at_once) {
            for (bool there = false; !there;) {
                uint64_t seen[at_once];
#pragma unroll
                for (int i = 0; i < at_once; ++i) /* the last word again where there are no more */
                    seen[i] = load_relaxed(words + min(first + 32 * i, p.flags.of[q] - 1));
                there = true;
#pragma unroll
                for (int i = 0; i < at_once; ++i) there = there && seen[i] >= p.epoch;
                if (!there) __nanosleep(64);
            }
        }
    }
    acquire();
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t &>(both);
}

/* The consumers of this CTA have read a stage: says so to all CTAs that write it. */
template <class T>
__device__ __forceinline__ void release_stage(const typename T::Shared &s, int stage, int lane) {
    if (cluster > 1) {
        if (lane < cluster) barrier_arrive_at(&s.barriers->empty[stage], uint32_t(lane));
    } else {
        if (lane == 0) barrier_arrive(&s.barriers->empty[stage]);
    }
}

/* One warpgroup: the ring it reads, the boxes of C it writes, and boxes that have no room there yet. */
template <class T>
struct Consumer {
    static constexpr int spare = T::boxes_n - T::c_boxes;

    const typename T::Shared &s;
    int group;
    Ring stage, slot;
    uint32_t kept[spare > 0 ? spare : 1][16];
    bool keeps;

    /* A box: of every 8 columns a thread has two neighbours, in row lane / 4 and 8 below. */
    __device__ __forceinline__ void put(const uint32_t (&words)[16]) {
        const int lane = int(threadIdx.x) % 32;
        const int row = int(threadIdx.x) / 32 % 4 * 16 + lane % 16;
        barrier_wait(&s.barriers->c_empty[group][slot.index], slot.parity);
        const uint32_t base =
            shared_address(s.c + (group * T::c_boxes + slot.index) * box_bytes) + uint32_t(row * 128);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t address = base + uint32_t(((i * 2 + lane / 16) ^ (row & 7)) << 4);
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                         "r"(words[i * 4]), "r"(words[i * 4 + 1]), "r"(words[i * 4 + 2]),
                         "r"(words[i * 4 + 3])
                         : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (lane == 0) barrier_arrive(&s.barriers->c_full[group][slot.index]);
        slot.next(T::c_boxes);
    }

    __device__ __forceinline__ void put_kept() {
        if constexpr (spare > 0) {
            if (keeps) {
#pragma unroll
                for (int j = 0; j < spare; ++j) put(kept[j]);
                keeps = false;
            }
        }
    }

    /* d = A B for its 64 rows of a tile and `count` steps over K. */
    template <int columns>
    __device__ __forceinline__ void multiply(float (&d)[columns / 2], int count) {
        const int lane = int(threadIdx.x) % 32;
        int previous = 0;
        for (int k = 0; k < count; ++k) {
            barrier_wait(&s.barriers->full[stage.index], stage.parity);
            const uint64_t a = operand(s.a + stage.index * a_bytes + group * box * tile_k * 2, 16, 1024);
            const uint64_t b = operand(s.b + stage.index * T::b_bytes, box_bytes, 1024);
            wgmma_begin();
#pragma unroll
            for (int i = 0; i < tile_k / 16; ++i) /* 16 of K: 32 bytes of A's rows, 16 rows of B */
                wgmma(d, a + uint64_t(i * 32 >> 4), b + uint64_t(i * 2048 >> 4), k > 0 || i > 0);
            wgmma_commit();
            if (spare > 0 && k == count / 2) put_kept();
            wgmma_wait<1>();
            if (k > 0) release_stage<T>(s, previous, lane);
            previous = stage.index;
            stage.next(T::stages);
        }
        wgmma_wait<0>();
        release_stage<T>(s, previous, lane);
    }

    template <int columns>
    __device__ __forceinline__ void multiply_tile(int k_tiles) {
        float d[columns / 2];
        multiply<columns>(d, k_tiles);
#pragma unroll
        for (int j = 0; j < columns / box; ++j) {
            uint32_t words[16];
#pragma unroll
            for (int i = 0; i < 16; ++i) words[i] = pack(d[j * 32 + i * 2], d[j * 32 + i * 2 + 1]);
            if (spare > 0 && j >= T::c_boxes) {
#pragma unroll
                for (int i = 0; i < 16; ++i) kept[j >= T::c_boxes ? j - T::c_boxes : 0][i] = words[i];
                keeps = true;
            } else {
                put(words);
            }
        }
    }
};

/* Leaves the sums of a warpgroup in scratch: value i of a thread beside value i of its neighbours. */
template <class T>
__device__ __forceinline__ void leave_sums(const Params &p, const float (&d)[T::tile_n / 2], int place,
                                           int group) {
    const int thread = int(threadIdx.x) % 128;
    float4 *sums = p.sums + int64_t(place) * (T::tile_n * box / 4);
#pragma unroll
    for (int i = 0; i < T::tile_n / 8; ++i)
        __stcg(sums + i * 128 + thread, make_float4(d[i * 4], d[i * 4 + 1], d[i * 4 + 2], d[i * 4 + 3]));
    if (group == 0) /* each warpgroup has a barrier of its own */
        asm volatile("bar.sync 1, 128;" ::: "memory");
    else
        asm volatile("bar.sync 2, 128;" ::: "memory");
    if (thread == 0) {
        __threadfence();
        asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p.sum_flags + place), "l"(p.epoch)
                     : "memory");
    }
}

/* Box j of a shared tile: all its parts, added in their order. */
template <class T>
__device__ __forceinline__ void add_parts(const Params &p, const Part &part, int j, int rank, int group,
                                          uint32_t (&words)[16]) {
    const int thread = int(threadIdx.x) % 128;
    for (int q = 0; q < p.parts; ++q) {
        const uint64_t *flag = p.sum_flags + place_of(p, part, q, rank, group);
        for (uint64_t seen = 0;;) {
            asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(flag) : "memory");
            if (seen >= p.epoch) break;
            __nanosleep(20);
        }
    }
    float4 v[8] = {};
#pragma unroll 2
    for (int q = 0; q < p.parts; ++q) {
        const int place = place_of(p, part, q, rank, group);
        const float4 *sums = p.sums + int64_t(place) * (T::tile_n * box / 4) + j * 1024 + thread;
        float4 x[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = __ldcg(sums + i * 128);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            v[i].x += x[i].x;
            v[i].y += x[i].y;
            v[i].z += x[i].z;
            v[i].w += x[i].w;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        words[i * 2] = pack(v[i].x, v[i].y);
        words[i * 2 + 1] = pack(v[i].z, v[i].w);
    }
}

template <class T>
__device__ __forceinline__ void multiply_tiles(const Params &p, const typename T::Shared &s, int first,
                                               int step, int k_tiles, int group, int rank) {
    Consumer<T> consumer{s, group, Ring{0, 0}, Ring{0, 1}, {}, false}; /* the boxes begin empty */
    int index = first;
    for (; index < p.whole; index += step) consumer.template multiply_tile<T::tile_n>(k_tiles);
    if constexpr (T::tile_n == 256 && !T::whole_only)
        for (; index < p.items; index += step) consumer.template multiply_tile<T::tile_n / 2>(k_tiles);
    const Part part = part_of<T>(p, first, k_tiles);
    if (part.count) {
        float d[T::tile_n / 2];
        consumer.template multiply<T::tile_n>(d, part.count);
        leave_sums<T>(p, d, place_of(p, part, part.index, rank, group), group);
    }
    consumer.put_kept();
    if (part.count) {
#pragma unroll 1
        for (int j = 0; j < T::boxes_n; ++j) {
            if (!part.adds(p, j, T::boxes_n)) continue;
            uint32_t words[16];
            add_parts<T>(p, part, j, rank, group, words);
            consumer.put(words);
        }
    }
}

template <class T>
__global__ void __launch_bounds__(threads, 1) gemm_kernel(const __grid_constant__ Params p) {
    extern __shared__ char raw[];
    typename T::Shared s;
    s.a = raw + (1024 - shared_address(raw) % 1024) % 1024;
    s.b = s.a + T::stages * a_bytes;
    s.c = s.b + T::stages * T::b_bytes;
    s.barriers = reinterpret_cast<typename T::Barriers *>(s.c + groups * T::c_boxes * box_bytes);

    const int rank = cluster > 1 ? int(cluster_rank()) : 0;
    const int first = int(blockIdx.x) / cluster;
    const int step = int(gridDim.x) / cluster;
    const int k_tiles = (p.k + tile_k - 1) / tile_k;
    const int warp = int(threadIdx.x) / 32;
    const int lane = int(threadIdx.x) % 32;

    if (threadIdx.x == 0) {
        for (int i = 0; i < T::stages; ++i) {
            barrier_init(&s.barriers->full[i], 1);
            barrier_init(&s.barriers->empty[i], cluster * groups * 4);
        }
        for (int g = 0; g < groups; ++g)
            for (int i = 0; i < T::c_boxes; ++i) {
                barrier_init(&s.barriers->c_full[g][i], 4);
                barrier_init(&s.barriers->c_empty[g][i], 1);
            }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        prefetch(&p.a);
        prefetch(&p.b);
    }
    cluster_sync();
    wait_for_predecessor();
    allow_successor();

    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (warp == 0 && lane == 0) load_tiles<T>(p, s, first, step, k_tiles, rank);
        if ((warp == 1 || warp == 2) && lane == 0) store_tiles<T>(p, s, first, step, k_tiles, warp - 1, rank);
        if (warp == 3 && blockIdx.x == 0 && backend == lsa) wait_for_peers(p, lane);
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        multiply_tiles<T>(p, s, first, step, k_tiles, warp / 4 - 1, rank);
    }
    cluster_sync(); /* no CTA leaves while the other may still arrive at its barriers */
}
// kerneltui: evolve end

/* ---- Small kernels. ------------------------------------------------------------------------------- */

__global__ void wait_kernel(const uint64_t *mine, Counts counts, int rank, int ranks, uint64_t epoch) {
    for (int q = 0; q < ranks; ++q) {
        if (q == rank) continue;
        for (int i = int(threadIdx.x); i < counts.of[q]; i += 32)
            wait_for(mine + q * source_words + i, epoch);
    }
    __syncwarp();
}

__global__ void gate_kernel(const uint64_t *mine, const __grid_constant__ Words peers, int rank, int ranks,
                            uint64_t epoch) {
    const int q = int(threadIdx.x);
    if (q >= ranks || q == rank) return;
    store_release(peers.at[q] + rank * source_words + gate_word, epoch);
    wait_for(mine + q * source_words + gate_word, epoch);
}

__global__ void epoch_kernel(uint64_t *word, uint64_t epoch) { *word = epoch; }

/* ---- The call. ------------------------------------------------------------------------------------ */

using EncodeFunction = decltype(&cuTensorMapEncodeTiled);
using WaitFunction = decltype(&cuStreamWaitValue32);

/* What is launched. */
struct Kernel {
    void (*function)(Params);
    int tile_n, shared_bytes;
};

template <class T>
Kernel kernel_of() {
    return Kernel{gemm_kernel<T>, T::tile_n, T::shared_bytes};
}

struct State {
    const kt_context *ctx;
    int64_t n, k, rows, first_row;
    bool fused; /* else: vendor GEMM and copies */
    int ctas;
    bool early_launch, halve;
    int sms; /* at most so many CTAs */
    int64_t cache_bytes; /* L2 */
    int tile_n;
    Kernel kernel;
    Counts flags;
    std::vector<int> peers;     /* in serving order */
    std::vector<Params> params; /* of every set */
    uint64_t *epoch_word;       /* scratch */
    unsigned *counters;         /* scratch */
    unsigned calls;             /* so far: what counts grows by a known number in each */
    WaitFunction wait_value;
    cudaEvent_t begun, pushed;
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

/* Scratch: epoch word, how far all are, counters, flags of the sums; behind them the sums, a tile for each
 * CTA. */
constexpr uint64_t begun_at = 128;
constexpr uint64_t counters_at = 4096;
constexpr uint64_t sum_flags_at = 57344;
constexpr uint64_t sums_at = 65536;
constexpr int max_counters = (sum_flags_at - counters_at) / 4;
constexpr uint64_t sums_bytes = 4 * tile_m * 256; /* of a CTA */
static_assert(sum_flags_at + max_ctas * groups * 8 <= sums_at, "a flag for each part");

int sm_count() {
    int device = 0, count = 0;
    if (cudaGetDevice(&device)) return 0;
    if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device)) return 0;
    return std::min(count, max_ctas);
}

int encode(EncodeFunction function, const kt_context *ctx, CUtensorMap *map, void *base, int64_t columns,
           int64_t rows, int box_columns, int box_rows) {
    const cuuint64_t size[2] = {cuuint64_t(columns), cuuint64_t(rows)};
    const cuuint64_t stride[1] = {cuuint64_t(columns) * 2};
    const cuuint32_t extent[2] = {cuuint32_t(box_columns), cuuint32_t(box_rows)};
    const cuuint32_t steps[2] = {1, 1};
    const CUresult result = function(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, base, size, stride, extent,
                                     steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result == CUDA_SUCCESS) return 0;
    char text[128];
    std::snprintf(text, sizeof text, "cuTensorMapEncodeTiled failed with error %d", int(result));
    return fail(ctx, text);
}

template <class Function>
int driver_function(const kt_context *ctx, const char *name, cudaError_t error,
                    cudaDriverEntryPointQueryResult result, void *found, Function *out) {
    if (error) return fail(ctx, name, error);
    if (result != cudaDriverEntryPointSuccess || !found) return fail(ctx, name);
    *out = reinterpret_cast<Function>(found);
    return 0;
}

int tiles_down(int64_t rows) { return int((rows + tile_m * cluster - 1) / (tile_m * cluster)); }

/* What the clusters of a rank do: whole tiles in rounds, then what is left in halves or shared out along K. */
struct Plan {
    int clusters, whole, items, shared, parts;
};

Plan plan_of(const State &s, int64_t rows) {
    const kt_context *ctx = s.ctx;
    const int tiles = tiles_down(rows) * int((s.n + s.tile_n - 1) / s.tile_n);
    const int64_t k_tiles = (s.k + tile_k - 1) / tile_k;
    const int most = s.sms / cluster;
    const int left = tiles % most;
    const int64_t least = kt_value(ctx->tunables, ctx->tunable_count, "SHARE_LAST", 16);
    const int64_t limit = kt_value(ctx->tunables, ctx->tunable_count, "MOST_PARTS", 4);
    const int parts = left ? int(std::min<int64_t>(most / left, limit)) : 1;
    if (least > 0 && k_tiles * (parts - 1) >= least * parts && k_tiles >= parts) {
        const int whole = tiles - left;
        return Plan{whole ? most : left * parts, whole, whole, left, parts};
    }
    if (!s.halve) return Plan{std::min(tiles, most), tiles, tiles, 0, 1};
    const int clusters = std::min(tiles * 2, most);
    const int whole = (tiles - 1) / clusters * clusters; /* of whole rounds, without the last */
    return Plan{clusters, whole, whole + 2 * (tiles - whole), 0, 1};
}

int fill_params(State &s, EncodeFunction function) {
    const kt_context *ctx = s.ctx;
    for (uint32_t i = 0; i < ctx->sets; ++i) {
        const kt_tensor *a = kt_find(&ctx->buffers[i], "A");
        const kt_tensor *b = kt_find(&ctx->buffers[i], "B");
        const kt_tensor *c = kt_find(&ctx->buffers[i], "C");
        Params p{};
        p.rank = int(ctx->rank);
        p.ranks = int(ctx->ranks);
        p.n = int(s.n);
        p.k = int(s.k);
        p.rows = int(s.rows);
        p.tiles_m = tiles_down(s.rows);
        p.tiles_n = int((s.n + s.tile_n - 1) / s.tile_n);
        const int64_t group = kt_value(ctx->tunables, ctx->tunable_count, "GROUP_M", 16) / cluster;
        p.group_m = int(std::clamp<int64_t>(group, 1, p.tiles_m));
        p.peer_first = int(kt_value(ctx->tunables, ctx->tunable_count, "PEER_FIRST", 1));
        if (kt_value(ctx->tunables, ctx->tunable_count, "RANK_OFFSET", 0))
            p.first_n = int(int64_t(p.tiles_n) * ctx->rank / ctx->ranks);
        const Plan plan = plan_of(s, s.rows);
        p.whole = plan.whole;
        p.items = plan.items;
        p.shared = plan.shared;
        p.parts = plan.parts;
        p.sums = reinterpret_cast<float4 *>(static_cast<char *>(ctx->scratch) + sums_at);
        p.sum_flags = reinterpret_cast<uint64_t *>(static_cast<char *>(ctx->scratch) + sum_flags_at);
        const int64_t pace = kt_value(ctx->tunables, ctx->tunable_count, "PACE", 75);
        const int64_t k_tiles = (s.k + tile_k - 1) / tile_k;
        p.pace = int(std::min<int64_t>(
            k_tiles * (tile_m * s.tile_n * tile_k / 2048) * pace / 100 * box / s.tile_n, 1 << 20));
        p.band = int(kt_value(ctx->tunables, ctx->tunable_count, "BAND", 8));
        if (p.band <= 0) p.band = p.tiles_n;
        p.stagger = int(kt_value(ctx->tunables, ctx->tunable_count, "STAGGER", 1));
        p.bands = (p.tiles_n + p.band - 1) / p.band;
        p.turn_k = kt_value(ctx->tunables, ctx->tunable_count, "TURN_K", 1) != 0;
        const int across = std::min((plan.clusters + p.group_m - 1) / p.group_m, p.tiles_n);
        const int blocks = (plan.clusters + p.group_m * p.tiles_n - 1) / (p.group_m * p.tiles_n);
        const int down = std::min(blocks * p.group_m, p.tiles_m) * cluster;
        const int64_t round_bytes = (int64_t(down) * tile_m + int64_t(across) * s.tile_n) * s.k * 2;
        if (round_bytes > 2 * s.cache_bytes)
            p.lead = int(kt_value(ctx->tunables, ctx->tunable_count, "LEAD", 8));
        p.begun = reinterpret_cast<uint64_t *>(static_cast<char *>(ctx->scratch) + begun_at);
        p.mine = ctx->signals[ctx->rank];
        p.flags = s.flags;
        p.counters = s.counters;
        if (encode(function, ctx, &p.a, a->local, s.k, s.rows, tile_k, tile_m)) return 1;
        if (encode(function, ctx, &p.b, b->local, s.n, s.k, box, tile_k)) return 1;
        const uint64_t offset = uint64_t(s.first_row) * uint64_t(s.n) * 2;
        if (encode(function, ctx, &p.c[0], static_cast<char *>(c->local) + offset, s.n, s.rows, box, box))
            return 1;
        for (size_t q = 0; q < s.peers.size(); ++q) {
            char *base = static_cast<char *>(c->peers[s.peers[q]]) + offset;
            if (encode(function, ctx, &p.c[q + 1], base, s.n, s.rows, box, box)) return 1;
            p.flag[q + 1] = ctx->signals[s.peers[q]] + ctx->rank * source_words;
        }
        if (backend == copy_engine && (p.tiles_m + p.group_m - 1) / p.group_m * p.bands > max_counters)
            return fail(ctx, "more blocks of C than counters: make GROUP_M or BAND larger");
        s.params.push_back(p);
    }
    return 0;
}

/* A launch of the GEMM. Its attributes point into itself. */
struct LaunchConfig {
    cudaLaunchConfig_t config{};
    cudaLaunchAttribute attributes[2];

    LaunchConfig(const State &s, const Kernel &kernel, unsigned ctas, cudaStream_t stream) {
        config.gridDim = dim3(ctas);
        config.blockDim = dim3(threads);
        config.dynamicSmemBytes = size_t(kernel.shared_bytes);
        config.stream = stream;
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim.x = cluster;
        attributes[0].val.clusterDim.y = 1;
        attributes[0].val.clusterDim.z = 1;
        attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[1].val.programmaticStreamSerializationAllowed = 1;
        config.attrs = attributes;
        config.numAttrs = s.early_launch ? 2 : 1;
    }
    LaunchConfig(const LaunchConfig &) = delete;
};

int launch(State &s, const Params &p, cudaStream_t stream) {
    const LaunchConfig how(s, s.kernel, unsigned(s.ctas), stream);
    const cudaError_t error = cudaLaunchKernelEx(&how.config, s.kernel.function, p);
    return error ? fail(s.ctx, "launch of the GEMM", error) : 0;
}

/* CTAs of the GEMM that are on the GPU at once, if nothing else is: one for each SM at most, of every kind. */
int resident_ctas(const State &s, int *out) {
    const Kernel kernel = kernel_of<Main>();
    cudaError_t error = cudaFuncSetAttribute(
        kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes);
    const LaunchConfig how(s, kernel, unsigned(s.sms / cluster * cluster), nullptr);
    int clusters = 0;
    if (!error) error = cudaOccupancyMaxActiveClusters(&clusters, kernel.function, &how.config);
    if (error) return fail(s.ctx, "how many clusters fit", error);
    if (clusters < 1) return fail(s.ctx, "no cluster of CTAs fits on this GPU");
    *out = clusters * cluster;
    return 0;
}

/* Publishes `epoch` in the peers' first word, behind whatever the stream holds, and waits for theirs. */
int finish(State &s, const Counts &words, uint64_t epoch, cudaStream_t pushing, cudaStream_t stream) {
    const kt_context *ctx = s.ctx;
    cudaError_t error = cudaSuccess;
    for (int q : s.peers)
        if (!error)
            error = cudaMemcpyAsync(ctx->signals[q] + ctx->rank * source_words, s.epoch_word,
                                    sizeof(uint64_t), cudaMemcpyDeviceToDevice, pushing);
    if (!error && pushing != stream) {
        error = cudaEventRecord(s.pushed, pushing);
        if (!error) error = cudaStreamWaitEvent(stream, s.pushed, 0);
    }
    if (error) return fail(ctx, "publish the rows", error);
    wait_kernel<<<1, 32, 0, stream>>>(ctx->signals[ctx->rank], words, int(ctx->rank), int(ctx->ranks),
                                      epoch);
    error = cudaGetLastError();
    return error ? fail(ctx, "launch of the wait", error) : 0;
}

Counts one_word_each(const kt_context *ctx) {
    Counts words{};
    for (uint32_t q = 0; q < ctx->ranks; ++q) words.of[q] = 1;
    return words;
}

// kerneltui: evolve begin schedule
/* The copies to the peers, each behind the count of its block of C. */
int enqueue_copies(State &s, const Params &p, const kt_tensor *c, cudaStream_t side) {
    const uint64_t pitch = uint64_t(s.n) * 2;
    const int rows_of_group = p.group_m * cluster * tile_m;
    for (int first = 0, group = 0; first < p.tiles_m; first += p.group_m, ++group) {
        const int height = std::min(p.group_m, p.tiles_m - first) * cluster;
        const int64_t row = int64_t(group) * rows_of_group;
        const int64_t rows = std::min<int64_t>(rows_of_group, s.rows - row);
        for (int i = 0; i < p.bands; ++i) {
            const int band = (i + p.first_n / p.band) % p.bands;
            const int width = std::min(p.band, p.tiles_n - band * p.band);
            const int64_t column = int64_t(band) * p.band * s.tile_n;
            const int64_t columns = std::min<int64_t>(int64_t(p.band) * s.tile_n, s.n - column);
            const unsigned target = s.calls * unsigned(height * width * groups * (s.tile_n / box));
            const CUresult waited =
                s.wait_value(side, reinterpret_cast<CUdeviceptr>(s.counters + group * p.bands + band),
                             target, CU_STREAM_WAIT_VALUE_GEQ);
            if (waited != CUDA_SUCCESS) return fail(s.ctx, "cuStreamWaitValue32 failed");
            const uint64_t offset = uint64_t(s.first_row + row) * pitch + uint64_t(column) * 2;
            for (int q : s.peers) {
                const cudaError_t error = cudaMemcpy2DAsync(
                    static_cast<char *>(c->peers[q]) + offset, pitch,
                    static_cast<const char *>(c->local) + offset, pitch, uint64_t(columns) * 2,
                    uint64_t(rows), cudaMemcpyDeviceToDevice, side);
                if (error) return fail(s.ctx, "copy to a peer", error);
            }
        }
    }
    return 0;
}

int run_fused(State &s, uint32_t set, uint64_t epoch, cudaStream_t stream) {
    Params &p = s.params[set];
    p.epoch = epoch;
    p.calls = s.calls++;
    if (backend == lsa) return launch(s, p, stream);
    const cudaStream_t side = static_cast<cudaStream_t>(s.ctx->side_streams[0]);
    epoch_kernel<<<1, 1, 0, stream>>>(s.epoch_word, epoch);
    cudaError_t error = cudaEventRecord(s.begun, stream);
    if (!error) error = cudaStreamWaitEvent(side, s.begun, 0);
    if (error) return fail(s.ctx, "begin of the side stream", error);
    if (launch(s, p, stream)) return 1;
    if (enqueue_copies(s, p, kt_find(&s.ctx->buffers[set], "C"), side)) return 1;
    return finish(s, one_word_each(s.ctx), epoch, side, stream);
}

int run_vendor(State &s, uint32_t set, uint64_t epoch, cudaStream_t stream) {
    const kt_context *ctx = s.ctx;
    const kt_tensor *a = kt_find(&ctx->buffers[set], "A");
    const kt_tensor *b = kt_find(&ctx->buffers[set], "B");
    const kt_tensor *c = kt_find(&ctx->buffers[set], "C");
    const uint64_t offset = uint64_t(s.first_row) * uint64_t(s.n) * 2;
    const uint64_t bytes = uint64_t(s.rows) * uint64_t(s.n) * 2;
    epoch_kernel<<<1, 1, 0, stream>>>(s.epoch_word, epoch);
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
    return finish(s, one_word_each(ctx), epoch, stream, stream);
}
// kerneltui: evolve end

int prepare(State &s) {
    const kt_context *ctx = s.ctx;
    cudaError_t error = cudaMemset(ctx->scratch, 0, sums_at);
    if (!error) error = cudaEventCreateWithFlags(&s.begun, cudaEventDisableTiming);
    if (!error) error = cudaEventCreateWithFlags(&s.pushed, cudaEventDisableTiming);
    if (error) return fail(ctx, "setup", error);
    if (!s.fused) return 0;

    s.early_launch = kt_value(ctx->tunables, ctx->tunable_count, "EARLY_LAUNCH", 1) != 0;
    const int64_t limit = kt_value(ctx->tunables, ctx->tunable_count, "MAX_CTAS", 0);
    s.sms = sm_count();
    if (s.sms < cluster) return fail(ctx, "no cluster of CTAs fits on this GPU");
    if (limit > 0) s.sms = int(std::clamp<int64_t>(limit, cluster, s.sms));
    int resident = 0;
    if (resident_ctas(s, &resident)) return 1;
    int device = 0, cache_bytes = 0;
    error = cudaGetDevice(&device);
    if (!error) error = cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, device);
    if (error) return fail(ctx, "size of the L2 cache", error);
    s.cache_bytes = cache_bytes;
    s.sms = std::min(s.sms, resident);
    const int64_t m = kt_value(ctx->dimensions, ctx->dimension_count, "M", 0);
    const int64_t most = (m + ctx->ranks - 1) / ctx->ranks; /* rows of a rank: all must choose alike */
    const int64_t tiles = int64_t(tiles_down(most)) * ((s.n + TILE_N - 1) / TILE_N) * cluster;
    const bool narrow = tiles <= s.sms * kt_value(ctx->tunables, ctx->tunable_count, "NARROW_ROUNDS", 2);
    s.tile_n = narrow ? Narrow::tile_n : Main::tile_n;
    const int64_t halve = kt_value(ctx->tunables, ctx->tunable_count, "HALVE_LAST", 2);
    const int64_t last = tiles % (s.sms / cluster * cluster); /* CTAs that the last round needs */
    s.halve = s.tile_n == 256 && (halve == 1 || (halve == 2 && last > 0 && last * 2 <= s.sms));
    for (uint32_t r = 0; r < ctx->ranks; ++r) {
        const int64_t rows = kt_first_row(m, r + 1, ctx->ranks) - kt_first_row(m, r, ctx->ranks);
        s.flags.of[r] = plan_of(s, rows).clusters * cluster * groups;
    }
    s.ctas = s.flags.of[ctx->rank] / groups;
    const Plan own = plan_of(s, s.rows);
    const uint64_t parts_of_ctas = uint64_t(own.shared) * own.parts * cluster;
    if (ctx->scratch_bytes < sums_at + parts_of_ctas * sums_bytes)
        return fail(ctx, "less scratch than the shared tiles need");
    const bool whole_only = own.whole == own.items && own.shared == 0;
    const bool deep = whole_only && kt_value(ctx->tunables, ctx->tunable_count, "DEEP", 1);
    s.kernel = narrow ? kernel_of<Narrow>()
               : deep && Main::tile_n == Deep::tile_n ? kernel_of<Deep>()
                                                      : kernel_of<Main>();
    error = cudaFuncSetAttribute(s.kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 s.kernel.shared_bytes);
    if (error) return fail(ctx, "setup", error);

    EncodeFunction function = nullptr;
    /* Names of functions are literals where they are looked up: others are refused. */
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                             &result);
    if (driver_function(ctx, "cuTensorMapEncodeTiled", error, result, found, &function)) return 1;
    error = cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, 12000, cudaEnableDefault, &result);
    if (driver_function(ctx, "cuStreamWaitValue32", error, result, found, &s.wait_value)) return 1;
    return fill_params(s, function);
}

}  // namespace

int kerneltui_requirements(const kt_named_value *, uint32_t, const kt_named_value *, uint32_t, uint32_t,
                           uint32_t ranks, kt_requirements *out) {
    out->abi_version = KERNELTUI_ABI_VERSION;
    out->signal_words = ranks * source_words;
    out->scratch_bytes = sums_at + sm_count() * sums_bytes;
    out->side_streams = 1;
    out->cluster_size = cluster;
    return 0;
}

int kerneltui_setup(const kt_context *ctx, void **out) {
    const int64_t m = kt_value(ctx->dimensions, ctx->dimension_count, "M", 0);
    const int64_t n = kt_value(ctx->dimensions, ctx->dimension_count, "N", 0);
    const int64_t k = kt_value(ctx->dimensions, ctx->dimension_count, "K", 0);
    if (m < 1 || n < 1 || k < 1) return fail(ctx, "gemm_allgather needs the dimensions M, N and K");
    if (m > INT32_MAX || n > INT32_MAX - 256 || k > INT32_MAX - tile_k)
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
    s->epoch_word = static_cast<uint64_t *>(ctx->scratch);
    s->counters = reinterpret_cast<unsigned *>(static_cast<char *>(ctx->scratch) + counters_at);
    for (uint32_t i = 1; i < ctx->ranks; ++i) s->peers.push_back(int((ctx->rank + i) % ctx->ranks));
    *out = s;
    return prepare(*s);
}

int kerneltui_run(void *opaque, uint32_t set, uint64_t epoch, void *opaque_stream) {
    State &s = *static_cast<State *>(opaque);
    const kt_context *ctx = s.ctx;
    const cudaStream_t stream = static_cast<cudaStream_t>(opaque_stream);
    if (ctx->sets < 2) {
        Words words{};
        for (uint32_t q = 0; q < ctx->ranks; ++q) words.at[q] = ctx->signals[q];
        gate_kernel<<<1, 32, 0, stream>>>(ctx->signals[ctx->rank], words, int(ctx->rank), int(ctx->ranks),
                                          epoch);
        const cudaError_t error = cudaGetLastError();
        if (error) return fail(ctx, "launch of the gate", error);
    }
    return s.fused ? run_fused(s, set, epoch, stream) : run_vendor(s, set, epoch, stream);
}

int kerneltui_teardown(void *opaque) {
    State *s = static_cast<State *>(opaque);
    if (s->begun) cudaEventDestroy(s->begun);
    if (s->pushed) cudaEventDestroy(s->pushed);
    delete s;
    return 0;
}
