/* gemm_sm90.cu - C = A B, row major, fp16 or bf16 in and out, sums in fp32: TMA and WGMMA.
 *
 * Two kernels and one that is plain, chosen when a shape is set up (`choose`):
 *
 *   wide    for large products. Persistent, tiles of 128 x TILE_N; one warp loads A and B into a ring (TMA),
 *           two warpgroups multiply, two warps store finished boxes of C (TMA) under the next tile's main
 *           loop. With CLUSTER 2, two CTAs, one above the other, share a tile of B. Tiles that would leave
 *           many SMs idle in the last round are shared out along K, each over equally many clusters: so those
 *           that are at the same step find each other's A and B in the L2 cache. A cluster leaves its sums in
 *           scratch; then each of a tile's clusters adds all parts of some boxes, in the same order in each
 *           call. That needs all clusters on the GPU at once, so no more are launched than fit.
 *   turns   the same with tiles of 128 x TURNS_N that the warpgroups multiply in turn, so one writes its sums
 *           while the other keeps the tensor cores busy.
 *   split   for products of few tiles. One tile and one range of K per CTA. Ranges of K are shared out over
 *           the CTAs of a cluster, which send their sums to each other's shared memory (each CTA adds one
 *           part of the tile), and over clusters, whose sums meet in scratch: the cluster that comes last
 *           adds them. The order of the additions is fixed, so a call gives the same bits each time.
 *   plain   rows that do not begin on 16 bytes (N or K no multiple of 8) cannot be read by TMA: mma.sync.
 *
 * B is row major, [K, N], and WGMMA reads it so ("MN-major"): nothing is transposed. Rows and columns beyond
 * the edge are read as zeros and not stored.
 */
#include <cuda.h>
#include <cuda_runtime.h>
#include <kerneltui/kernel.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <new>
#include <vector>

/* ---- The directive. One GPU: nothing is communicated. --------------------------------------------- */

// kerneltui: directive backend lsa
// kerneltui: directive issuer dedicated
// kerneltui: directive placement persistent
// kerneltui: directive sync none
// kerneltui: directive chunk_bytes = 0

// Columns of a wide tile; it has 128 rows.
// kerneltui: tunable TILE_N in 256 192 128
#define TILE_N 256
// Depth of the ring of a wide tile.
// kerneltui: tunable STAGES in 3 4 5 6 if STAGES * (16384 + 128 * TILE_N) + 16384 * C_BOXES <= 230000
#define STAGES 3
// Boxes of C, 64 x 64, that a warpgroup of a wide tile may have in shared memory.
// kerneltui: tunable C_BOXES in 4 3 2 1 if C_BOXES * 64 <= TILE_N
#define C_BOXES 4
// Columns of a tile that warpgroups multiply in turn; it has 128 rows.
// kerneltui: tunable TURNS_N in 192 128
#define TURNS_N 192
// CTAs that share a wide tile of B, each loads half of it.
// kerneltui: tunable CLUSTER in 2 1
#define CLUSTER 2
// KB of the ring of a split tile whose CTA has an SM to itself; what it holds hides the way from main memory.
// kerneltui: runtime SPLIT_KB in 208 176 144 112 default 208
// Row tiles of a super-block: tiles are visited down its rows, then along N; 0 by rule.
// kerneltui: runtime GROUP_M in 0 4 8 16 32 default 0
// Which tile: 0 by rule, 1 wide, 2 to 10 split: 64x64, 128x64, 64x128, 128x128, 128x192, 192x64, 192x128,
// 64x192, 128x256; 11 in turns.
// kerneltui: runtime TILE in 0 1 2 3 4 5 6 7 8 9 10 11 default 0
// CTAs of a cluster that share out K; 0 by rule. Counts for split tiles.
// kerneltui: runtime SLICES in 0 1 2 4 8 default 0 if SLICES == 0 or TILE > 1 and TILE < 11
// Clusters that share out K; 0 by rule. Counts for split tiles.
// kerneltui: runtime PARTS in 0 1 2 4 8 16 default 0 if PARTS == 0 or TILE > 1 and TILE < 11
// CTAs that share a tile of B; 0 by rule. Counts for split tiles of 128 columns or more.
// kerneltui: runtime SHARE in 0 1 2 default 0 if SHARE == 0 or TILE > 1 and TILE < 11 and SHARE * SLICES <= 8 and (SHARE == 1 or TILE == 4 or TILE == 5 or TILE == 8 or TILE == 10)
// Steps over K (64 each) that must be saved if the wide tiles of the last round are shared out along K; 0:
// never.
// kerneltui: runtime SHARE_LAST in 0 8 16 24 48 default 16
// Clusters that share a wide tile, at most.
// kerneltui: runtime MOST_PARTS in 2 4 8 16 default 8
// Most CTAs of the wide kernel; 0: one for every SM.
// kerneltui: runtime MAX_CTAS in 0 120 128 default 0
// Whether a CTA's tiles go along K forwards and backwards in turn. Its next tile has the same rows of A, of
// which the last steps over K are still in the L2 cache.
// kerneltui: runtime TURN_K in 0 1 default 1
// Whether a C of more than half of the L2 cache gives way there before A and B do (wide tiles).
// kerneltui: runtime C_FIRST in 0 1 default 1
// Whether the kernel may be placed on the SMs while its predecessor on the stream ends, if that allows it
// (programmatic dependent launch). It touches no memory before the predecessor has ended.
// kerneltui: runtime EARLY_LAUNCH in 0 1 default 1

namespace {

/* The element type, of which there is one in a build: its bits, and its name for the machine and for people.
 * CUDA's headers of such types take a second to compile. */
using element = uint16_t;
#if KT_ELEMENT == KT_ELEMENT_FLOAT16
#define ELEMENT_PTX "f16"
#define ELEMENT_NAME "float16"
constexpr kt_dtype element_dtype = KT_FLOAT16;
constexpr CUtensorMapDataType element_map = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
#elif KT_ELEMENT == KT_ELEMENT_BFLOAT16 || KT_ELEMENT == KT_ELEMENT_UNKNOWN
#define ELEMENT_PTX "bf16"
#define ELEMENT_NAME "bfloat16"
constexpr kt_dtype element_dtype = KT_BFLOAT16;
constexpr CUtensorMapDataType element_map = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
#else
#error "this kernel multiplies float16 or bfloat16"
#endif
#define PRODUCT_PTX "f32." ELEMENT_PTX "." ELEMENT_PTX

constexpr int tile_k = 64; /* 128 bytes: one swizzle row */
constexpr int box = 64;
constexpr int box_bytes = box * box * 2;
constexpr int row_bytes = tile_k * 2; /* of a tile of A */

/* ---- The machine. --------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return uint32_t(__cvta_generic_to_shared(pointer));
}

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

/* The same place in the shared memory of another CTA of the cluster. */
__device__ __forceinline__ uint32_t address_at(uint32_t address, uint32_t cta) {
    uint32_t remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(cta));
    return remote;
}

__device__ __forceinline__ void barrier_arrive_at(uint64_t *barrier, uint32_t cta) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(
                     address_at(shared_address(barrier), cta))
                 : "memory");
}

__device__ __forceinline__ void store_at(uint32_t address, uint32_t cta, float4 v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address_at(address, cta)),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

__device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

template <int threads>
__device__ __forceinline__ void consumer_sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory");
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

/* The same offset in the shared memory of the CTAs in `mask`, and the barrier of each. */
__device__ __forceinline__ void load_box_cluster(const CUtensorMap *map, void *target, uint64_t *barrier,
                                                 int x, int y, uint16_t mask) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(target)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "h"(mask)
        : "memory");
}

__device__ __forceinline__ void store_box(const CUtensorMap *map, const void *source, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(shared_address(source)), "r"(x), "r"(y)
                 : "memory");
}

/* The same with a policy for the L2 cache. */
__device__ __forceinline__ void store_box(const CUtensorMap *map, const void *source, int x, int y,
                                          uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3}], [%1], %4;" ::"l"(map),
        "r"(shared_address(source)), "r"(x), "r"(y), "l"(policy)
        : "memory");
}

__device__ __forceinline__ uint64_t cache_policy(bool first_out) {
    uint64_t first, normal;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
    return first_out ? first : normal;
}

__device__ __forceinline__ void commit_stores() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* At most `pending` groups of stores have not been read from shared memory. */
template <int pending>
__device__ __forceinline__ void wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
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
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/* d += A B (or d = A B) for 64 rows and 16 of K. */
__device__ __forceinline__ void wgmma(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16." PRODUCT_PTX " "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, 1; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),
          "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),
          "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(accumulate));
}

__device__ __forceinline__ void wgmma(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16." PRODUCT_PTX " "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
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

[[maybe_unused]] __device__ __forceinline__ void wgmma(float (&d)[96], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %98, 0; "
        "wgmma.mma_async.sync.aligned.m64n192k16." PRODUCT_PTX " "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, p, 1, 1, 0, 1; }"
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
          "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
        : "l"(a), "l"(b), "r"(accumulate));
}

__device__ __forceinline__ void wgmma(float (&d)[128], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %130, 0; "
        "wgmma.mma_async.sync.aligned.m64n256k16." PRODUCT_PTX " "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
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


__device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t both;
    asm("cvt.rn." ELEMENT_PTX "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

struct Ring {
    int index;
    uint32_t parity;

    __device__ __forceinline__ void next(int size) {
        if (++index == size) {
            index = 0;
            parity ^= 1;
        }
    }

    __device__ __forceinline__ void skip(int count, int size) {
        const unsigned at = unsigned(index + count);
        index = int(at % unsigned(size));
        parity ^= at / unsigned(size) & 1;
    }
};

/* Writes 64 x 64 of a warpgroup's sums to a box. A thread has of every 8 columns two neighbours, in row
 * lane / 4 and 8 below; the order of 16 bytes within a row is that of the 128-byte swizzle. */
__device__ __forceinline__ void put_box(const float *d, char *target) {
    const int lane = int(threadIdx.x) % 32;
    const int row = int(threadIdx.x) / 32 % 4 * 16 + lane % 16;
    const uint32_t base = shared_address(target) + uint32_t(row * 128);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float *v = d + i * 8;
        const uint32_t address = base + uint32_t(((i * 2 + lane / 16) ^ (row & 7)) << 4);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                     "r"(pack(v[0], v[1])), "r"(pack(v[2], v[3])), "r"(pack(v[4], v[5])),
                     "r"(pack(v[6], v[7]))
                     : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* before TMA reads it */
}

/* The tile with a number: super-blocks of `group` rows of tiles; within one, down the rows, then along N. */
__device__ __forceinline__ void tile_at(int index, int group, int tiles_m, int tiles_n, int &m, int &n) {
    const unsigned block = unsigned(group * tiles_n);
    const unsigned super = unsigned(index) / block;
    const unsigned height = unsigned(min(group, tiles_m - int(super) * group));
    const unsigned within = unsigned(index) - super * block;
    const unsigned column = within / height;
    m = int(super) * group + int(within - column * height);
    n = int(column);
}

/* A ring of tiles of A and B in shared memory, and who has filled and read them. */
template <int rows, int columns>
struct Stages {
    static constexpr int a_bytes = rows * row_bytes;
    static constexpr int b_bytes = tile_k * columns * 2;
    static constexpr int bytes = a_bytes + b_bytes; /* of one */

    char *a, *b;
    uint64_t *full, *empty;
    int depth;

    /* `sharing` CTAs of the cluster, from `first` on, share B; this one is number `own` of them. `along_k`: each loads
     * its range of K of all boxes, and not some boxes. */
    template <bool along_k = false>
    __device__ __forceinline__ void load(const CUtensorMap *map_a, const CUtensorMap *map_b, Ring &at, int row,
                                         int column, int k_from, int k_to, bool back, int sharing, int own,
                                         int first) {
        const int boxes = columns / box / (along_k ? 1 : sharing);
        const int first_k = along_k ? tile_k / sharing * own : 0;
        for (int step = k_from; step < k_to; ++step) {
            const int k = back ? k_from + k_to - 1 - step : step;
            barrier_wait(&empty[at.index], at.parity);
            uint64_t *barrier = &full[at.index];
            barrier_expect(barrier, a_bytes + b_bytes);
            load_box(map_a, a + at.index * a_bytes, barrier, k * tile_k, row);
#pragma unroll
            for (int i = 0; i < columns / box; ++i) {
                if (i == boxes) break;
                const int j = along_k ? i : own * boxes + i;
                char *target = b + at.index * b_bytes + j * box_bytes + first_k * box * 2;
                if (sharing > 1)
                    load_box_cluster(map_b, target, barrier, column + j * box, k * tile_k + first_k,
                                     uint16_t(((1 << sharing) - 1) << first));
                else
                    load_box(map_b, target, barrier, column + j * box, k * tile_k);
            }
            at.next(depth);
        }
    }

    /* A warp of the consumers has read a stage: says so to all CTAs that write it. */
    __device__ __forceinline__ void release(int stage, int sharing, int first) {
        const int lane = int(threadIdx.x) % 32;
        if (sharing > 1) {
            if (lane < sharing) barrier_arrive_at(&empty[stage], uint32_t(first + lane));
        } else {
            if (lane == 0) barrier_arrive(&empty[stage]);
        }
    }

    /* One warpgroup multiplies `blocks` times 64 rows, from block `from` on. `seen` is called when all stages have
     * arrived and the last is still being multiplied. */
    template <int blocks, class Seen>
    __device__ __forceinline__ void multiply(float (&d)[blocks][columns / 2], Ring &at, int k_tiles, int from,
                                             int sharing, int first, Seen seen) {
        int previous = 0;
        for (int k = 0; k < k_tiles; ++k) {
            barrier_wait(&full[at.index], at.parity);
            const uint64_t from_a = operand(a + at.index * a_bytes + from * box * row_bytes, 16, 1024);
            const uint64_t from_b = operand(b + at.index * b_bytes, box_bytes, 1024);
            wgmma_begin();
#pragma unroll
            for (int i = 0; i < tile_k / 16; ++i) /* 16 of K: 32 bytes of A's rows, 16 rows of B */
#pragma unroll
                for (int r = 0; r < blocks; ++r)
                    wgmma(d[r], from_a + uint64_t((r * box * row_bytes + i * 32) >> 4),
                          from_b + uint64_t(i * 2048 >> 4), k > 0 || i > 0);
            wgmma_commit();
            wgmma_wait<1>();
            if (k > 0) release(previous, sharing, first);
            previous = at.index;
            at.next(depth);
        }
        seen();
        wgmma_wait<0>();
        release(previous, sharing, first);
    }
};

/* ---- Wide tiles, and tiles in turn. --------------------------------------------------------------- */

struct WideParams {
    CUtensorMap a, b, c;
    int n, m, k_tiles;
    int tiles_m, tiles_n; /* rows of tiles in units of CLUSTER */
    int group_m;          /* likewise */
    int whole;            /* tiles that one cluster computes: the first ones */
    int shared, parts;    /* tiles behind them that are shared out along K, each over so many clusters */
    float4 *sums;         /* their parts, in scratch */
    uint64_t *calls;      /* how often each of these places was written */
    bool turn_k;
    bool c_first; /* out of the L2 cache */
};

/* Two warpgroups of consumers: both halves of a tile, or whole tiles in turn. */
template <int tile_columns, int depth, int c_boxes, bool in_turn>
struct Persistent {
    static constexpr int rows = 128, columns = tile_columns, stages = depth;
    static constexpr int boxes = c_boxes; /* of a warpgroup */
    static constexpr int cluster = CLUSTER;
    static constexpr int groups = 2;
    static constexpr int threads = 128 * (1 + groups);
    static constexpr bool turns = in_turn;
    static constexpr int blocks = turns ? rows / box : 1; /* of 64 rows that a warpgroup multiplies */
    static constexpr int readers = turns ? 1 : groups;    /* of a stage */
    static constexpr bool along_k = columns / box % cluster != 0; /* is B shared out */
    using Tiles = Stages<rows, columns>;

    struct Barriers {
        uint64_t full[stages];           /* A and B have arrived */
        uint64_t empty[stages];          /* all consumers of the cluster have read them */
        uint64_t c_full[groups][boxes];  /* a box of C is written */
        uint64_t c_empty[groups][boxes]; /* and may be written again */
        uint64_t turn[groups];           /* the other has seen all stages of its tile arrive */
    };

    static constexpr int shared_bytes =
        stages * Tiles::bytes + groups * boxes * box_bytes + int(sizeof(Barriers)) + 1024; /* 1024: alignment */

    static_assert(boxes >= 1 && boxes <= blocks * columns / box, "boxes of one tile");
    static constexpr int halves = rows / box;
    static constexpr int sum_pieces = columns * box / 4; /* 4 sums each, of half a tile */

    static_assert(shared_bytes <= 232448, "more shared memory than a CTA may have");
};

using Wide = Persistent<TILE_N, STAGES, C_BOXES, false>;
using Turns = Persistent<TURNS_N, (229376 - 2 * 4 * box_bytes) / (16384 + 128 * TURNS_N), 4, true>;

// kerneltui: evolve begin wide
/* A part of a shared tile: `count` steps over K, the `index`-th of p.parts; nothing if `count` is 0. */
struct Part {
    int tile; /* behind the whole ones */
    int first_k, count;
    int index;

    /* Whether this one adds all parts of a box, of so many. */
    __device__ __forceinline__ bool adds(const WideParams &p, int which, int boxes) const {
        return which * p.parts / boxes == index;
    }
};

__device__ __forceinline__ Part part_of(const WideParams &p, int who) {
    if (who >= p.shared * p.parts) return Part{};
    const int index = who % p.parts;
    const int first_k = int(int64_t(p.k_tiles) * index / p.parts);
    return Part{who / p.parts, first_k, int(int64_t(p.k_tiles) * (index + 1) / p.parts) - first_k, index};
}

/* Where the q-th part of half a tile lies, for a CTA of the cluster. */
template <class W>
__device__ __forceinline__ int place_of(const WideParams &p, const Part &part, int q, int rank, int half) {
    return ((part.tile * p.parts + q) * W::cluster + rank) * W::halves + half;
}

/* Leaves the sums of half a tile in scratch. All places are written once in each call, so the count of one's
 * own says what the others' must be: a call that is replayed from a graph needs no number of its own. */
template <class W>
__device__ __forceinline__ uint64_t leave_sums(const WideParams &p, const float (&d)[W::columns / 2], int place,
                                               int group) {
    const int thread = int(threadIdx.x) % 128;
    const uint64_t call = __ldcg(reinterpret_cast<const unsigned long long *>(p.calls + place)) + 1;
    float4 *sums = p.sums + int64_t(place) * W::sum_pieces;
#pragma unroll
    for (int i = 0; i < W::columns / 8; ++i)
        __stcg(sums + i * 128 + thread, float4{d[i * 4], d[i * 4 + 1], d[i * 4 + 2], d[i * 4 + 3]});
    if (group == 0) /* each warpgroup has a barrier of its own */
        asm volatile("bar.sync 1, 128;" ::: "memory");
    else
        asm volatile("bar.sync 2, 128;" ::: "memory");
    if (thread == 0) {
        __threadfence();
        asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p.calls + place), "l"(call) : "memory");
    }
    return call;
}

/* Box j of half a shared tile: all its parts, added in their order. */
template <class W>
__device__ __forceinline__ void add_parts(const WideParams &p, const Part &part, int j, int rank, int half,
                                          uint64_t call, float (&d)[32]) {
    const int thread = int(threadIdx.x) % 128;
    for (int q = 0; q < p.parts; ++q) {
        const uint64_t *calls = p.calls + place_of<W>(p, part, q, rank, half);
        for (uint64_t seen = 0;;) {
            asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(calls) : "memory");
            if (seen >= call) break;
            __nanosleep(20);
        }
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) d[i] = 0.0f;
#pragma unroll 2
    for (int q = 0; q < p.parts; ++q) {
        const float4 *sums =
            p.sums + int64_t(place_of<W>(p, part, q, rank, half)) * W::sum_pieces + j * 1024 + thread;
        float4 x[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = __ldcg(sums + i * 128);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            d[i * 4] += x[i].x;
            d[i * 4 + 1] += x[i].y;
            d[i * 4 + 2] += x[i].z;
            d[i * 4 + 3] += x[i].w;
        }
    }
}

/* One thread stores the boxes of one consumer warpgroup. */
template <class W>
struct Storer {
    const WideParams &p;
    char *c;
    typename W::Barriers *barriers;
    int group, rank;
    uint64_t policy;
    Ring slot;
    int held; /* boxes that are stored but not given back */

    /* 64 x 64 of a tile: of its rows `block`, of its columns `j`. */
    __device__ __forceinline__ void store(int m, int n, int block, int j) {
        barrier_wait(&barriers->c_full[group][slot.index], slot.parity);
        const int x = n * W::columns + j * box;
        const int row = (m * W::cluster + rank) * W::rows + block * box;
        if (x < p.n && row < p.m)
            store_box(&p.c, c + (group * W::boxes + slot.index) * box_bytes, x, row, policy);
        commit_stores();
        slot.next(W::boxes);
        if (++held == W::boxes) { /* the oldest has been read when at most the others are pending */
            wait_stores_read<W::boxes - 1>();
            barrier_arrive(&barriers->c_empty[group][slot.index]);
            --held;
        }
    }

    __device__ __forceinline__ void give_back() {
        wait_stores_read<0>();
        for (; held > 0; --held)
            barrier_arrive(&barriers->c_empty[group][(slot.index + W::boxes - held) % W::boxes]);
    }
};

/* Whether a warpgroup has a part of a shared tile, if its CTA has one: both have, or the one whose turn it is. */
template <class W>
__device__ __forceinline__ bool has_part(const WideParams &p, int first, int step, int group) {
    return !W::turns || (p.whole - first + step - 1) / step % W::groups == group;
}

template <class W>
__device__ __forceinline__ void store_tiles(const WideParams &p, char *c, typename W::Barriers *barriers, int first,
                                            int step, int group, int rank) {
    Storer<W> storer{p, c, barriers, group, rank, cache_policy(p.c_first), Ring{0, 0}, 0};
    const int from = W::turns ? first + group * step : first, by = W::turns ? W::groups * step : step;
    const int block = W::turns ? 0 : group;
    int m, n;
    for (int index = from; index < p.whole; index += by) {
        tile_at(index, p.group_m, p.tiles_m, p.tiles_n, m, n);
#pragma unroll 1
        for (int r = 0; r < W::blocks; ++r)
#pragma unroll 1
            for (int j = 0; j < W::columns / box; ++j) storer.store(m, n, block + r, j);
        storer.give_back();
    }
    const Part part = part_of(p, first);
    if (!part.count || !has_part<W>(p, first, step, group)) return;
    tile_at(p.whole + part.tile, p.group_m, p.tiles_m, p.tiles_n, m, n);
#pragma unroll 1
    for (int i = 0; i < W::blocks * W::columns / box; ++i)
        if (part.adds(p, i, W::blocks * W::columns / box))
            storer.store(m, n, block + i / (W::columns / box), i % (W::columns / box));
    storer.give_back();
}

/* Writes 64 x 64 of a warpgroup's sums to shared memory. */
template <class W>
__device__ __forceinline__ void hand_over(const float *d, char *c, typename W::Barriers *barriers, Ring &slot,
                                          int group) {
    barrier_wait(&barriers->c_empty[group][slot.index], slot.parity);
    put_box(d, c + (group * W::boxes + slot.index) * box_bytes);
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(&barriers->c_full[group][slot.index]);
    slot.next(W::boxes);
}

/* One thread loads all that this CTA multiplies. */
template <class W>
__device__ __forceinline__ void load_tiles(const WideParams &p, typename W::Tiles &tiles, int first, int step,
                                           int rank) {
    Ring at{0, 1}; /* the ring begins empty */
    int m, n;
    bool back = false;
    for (int index = first; index < p.whole; index += step) {
        tile_at(index, p.group_m, p.tiles_m, p.tiles_n, m, n);
        tiles.template load<W::along_k>(&p.a, &p.b, at, (m * W::cluster + rank) * W::rows, n * W::columns, 0,
                                        p.k_tiles, back, W::cluster, rank, 0);
        back = back != p.turn_k;
    }
    const Part part = part_of(p, first);
    if (!part.count) return;
    tile_at(p.whole + part.tile, p.group_m, p.tiles_m, p.tiles_n, m, n);
    tiles.template load<W::along_k>(&p.a, &p.b, at, (m * W::cluster + rank) * W::rows, n * W::columns,
                                    part.first_k, part.first_k + part.count, back, W::cluster, rank, 0);
}

/* One warpgroup multiplies its 64 rows of all tiles of this CTA, or all rows of every second tile, and adds parts.
 * In turns: in the ring the tiles of both warpgroups follow each other. A barrier tells only one phase from the next,
 * so nobody may wait for a stage of a later round than the next; each begins when the other has seen its last one
 * arrive. */
template <class W>
__device__ __forceinline__ void multiply_tiles(const WideParams &p, typename W::Tiles &tiles, char *c,
                                               typename W::Barriers *barriers, int first, int step, int group,
                                               int rank) {
    constexpr int boxes = W::columns / box;
    const int from = W::turns ? first + group * step : first, by = W::turns ? W::groups * step : step;
    const int block = W::turns ? 0 : group;
    uint32_t parity = uint32_t(group ^ 1); /* the first group begins without being told */
    Ring at{0, 0};
    Ring slot{0, 1}; /* the boxes begin empty */
    float d[W::blocks][W::columns / 2];
    const auto multiply = [&](int k_tiles) {
        if (W::turns) barrier_wait(&barriers->turn[group], parity);
        parity ^= 1;
        tiles.multiply(d, at, k_tiles, block, W::cluster, 0, [&] {
            if (W::turns && threadIdx.x % 32 == 0) barrier_arrive(&barriers->turn[group ^ 1]);
        });
    };
    if (W::turns) at.skip(group * p.k_tiles, W::stages);
    for (int index = from; index < p.whole; index += by) {
        multiply(p.k_tiles);
        if (W::turns) at.skip(p.k_tiles, W::stages);
#pragma unroll
        for (int r = 0; r < W::blocks; ++r)
#pragma unroll
            for (int j = 0; j < boxes; ++j) hand_over<W>(d[r] + j * 32, c, barriers, slot, group);
    }
    const Part part = part_of(p, first);
    if (!part.count || !has_part<W>(p, first, step, group)) return;
    multiply(part.count);
    uint64_t call[W::blocks];
#pragma unroll
    for (int r = 0; r < W::blocks; ++r)
        call[r] = leave_sums<W>(p, d[r], place_of<W>(p, part, part.index, rank, block + r), group);
#pragma unroll
    for (int r = 0; r < W::blocks; ++r)
#pragma unroll 1
        for (int j = 0; j < boxes; ++j) {
            if (!part.adds(p, r * boxes + j, W::blocks * boxes)) continue;
            float sums[32];
            add_parts<W>(p, part, j, rank, block + r, call[r], sums);
            hand_over<W>(sums, c, barriers, slot, group);
        }
}

template <class W>
__global__ void __launch_bounds__(W::threads, 1) wide_kernel(const __grid_constant__ WideParams p) {
    extern __shared__ char raw[];
    char *const memory = raw + (1024 - shared_address(raw) % 1024) % 1024;
    char *const c = memory + W::stages * W::Tiles::bytes;
    typename W::Barriers *const barriers =
        reinterpret_cast<typename W::Barriers *>(c + W::groups * W::boxes * box_bytes);
    typename W::Tiles tiles{memory, memory + W::stages * W::Tiles::a_bytes, barriers->full, barriers->empty,
                            W::stages};

    const int rank = W::cluster > 1 ? int(cluster_rank()) : 0;
    const int first = int(blockIdx.x) / W::cluster;
    const int step = int(gridDim.x) / W::cluster;
    const int warp = int(threadIdx.x) / 32;
    const int lane = int(threadIdx.x) % 32;

    if (threadIdx.x == 0) {
        for (int i = 0; i < W::stages; ++i) {
            barrier_init(&barriers->full[i], 1);
            barrier_init(&barriers->empty[i], W::cluster * W::readers * 4);
        }
        for (int g = 0; g < W::groups; ++g)
            for (int i = 0; i < W::boxes; ++i) {
                barrier_init(&barriers->c_full[g][i], 4);
                barrier_init(&barriers->c_empty[g][i], 1);
            }
        for (int g = 0; g < W::groups; ++g) barrier_init(&barriers->turn[g], 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        prefetch(&p.a);
        prefetch(&p.b);
        prefetch(&p.c);
    }
    if (W::cluster > 1)
        cluster_sync();
    else
        __syncthreads();
    wait_for_predecessor();
    allow_successor();

    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == 0 && lane == 0) load_tiles<W>(p, tiles, first, step, rank);
        if ((warp == 1 || warp == 2) && lane == 0) store_tiles<W>(p, c, barriers, first, step, warp - 1, rank);
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply_tiles<W>(p, tiles, c, barriers, first, step, warp / 4 - 1, rank);
    }
    if (W::cluster > 1) cluster_sync(); /* no CTA leaves while the other may arrive at its barriers */
}
// kerneltui: evolve end

/* ---- Split tiles. --------------------------------------------------------------------------------- */

struct SplitParams {
    CUtensorMap a, b, c_map;
    element *c;
    float4 *sums;       /* scratch, if parts > 1 */
    unsigned *counters; /* of every tile and slice: clusters that have written their sums */
    int m, n, k_tiles;
    int tiles_m, tiles_n; /* rows of tiles in units of `share` */
    int group_m;          /* likewise */
    int share;            /* CTAs of a cluster that share a tile of B, one above the other */
    int slices, parts;    /* of K: CTAs of a cluster, and clusters */
    int share_log, slices_log, parts_log; /* all three are powers of two */
    int steps, longer;    /* of K in a range; the first `longer` ranges have one more */
    int stages;
    int sums_at; /* where in shared memory the sums of a cluster meet; 0: in the ring, after all have read it */
};

template <int tile_rows, int tile_columns>
struct Split {
    static constexpr int rows = tile_rows, columns = tile_columns;
    static constexpr int groups = rows / box;
    static constexpr int consumers = 128 * groups;
    static constexpr int threads = consumers + 32;
    static constexpr int pieces = columns / 8; /* a thread has 4 sums of each: 2 columns, 2 rows */
    static constexpr int sum_bytes = pieces * consumers * 16;
    static constexpr int most_stages = 16;
    using Tiles = Stages<rows, columns>;

    struct Barriers {
        uint64_t full[most_stages], empty[most_stages];
        int last;
    };

    static constexpr int ctas_of_sm = rows * columns >= 128 * 192 ? 1 : 2;
    static constexpr int alone = 208 * 1024, beside = ctas_of_sm == 1 ? alone : 108 * 1024;

    static constexpr int stages(int room) {
        return room / Tiles::bytes < most_stages ? room / Tiles::bytes : most_stages;
    }
    static constexpr __host__ __device__ int barriers_at(int stages, int sums_at) {
        const int ring = stages * Tiles::bytes, sums = sums_at + sum_bytes;
        return ring > sums ? ring : sums;
    }
    static constexpr int shared_bytes(int stages, int sums_at) {
        return barriers_at(stages, sums_at) + int(sizeof(Barriers)) + 1024; /* 1024: alignment */
    }

    static_assert(alone / Tiles::bytes >= 2 && beside / Tiles::bytes >= 2, "a ring of two stages at least");
    static_assert(alone + int(sizeof(Barriers)) + 1024 <= 232448, "more shared memory than a CTA may have");
};

// kerneltui: evolve begin split
/* Two columns of two rows; piece j has columns 8 j to 8 j + 7. */
template <class T>
__device__ __forceinline__ void store_piece(const SplitParams &p, int tile_row, int tile_column, int j,
                                            float4 v) {
    const int lane = int(threadIdx.x) % 32;
    const int row = tile_row + int(threadIdx.x) / 32 * 16 + lane / 4;
    const int column = tile_column + j * 8 + lane % 4 * 2;
    if (column >= p.n) return;
    element *const at = p.c + int64_t(row) * p.n + column;
    if (row < p.m) *reinterpret_cast<uint32_t *>(at) = pack(v.x, v.y);
    if (row + 8 < p.m) *reinterpret_cast<uint32_t *>(at + int64_t(8) * p.n) = pack(v.z, v.w);
}

__device__ __forceinline__ float4 add(float4 a, float4 b) {
    return float4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

template <class T>
__global__ void __launch_bounds__(T::threads, T::ctas_of_sm)
    split_kernel(const __grid_constant__ SplitParams p) {
    extern __shared__ char raw[];
    char *const memory = raw + (1024 - shared_address(raw) % 1024) % 1024;
    typename T::Barriers *const barriers =
        reinterpret_cast<typename T::Barriers *>(memory + T::barriers_at(p.stages, p.sums_at));
    typename T::Tiles tiles{memory, memory + p.stages * T::Tiles::a_bytes, barriers->full, barriers->empty,
                            p.stages};

    const int warp = int(threadIdx.x) / 32;
    const int lane = int(threadIdx.x) % 32;
    const bool consumer = warp < T::groups * 4;
    if (!consumer && lane == 0) {
        prefetch(&p.a);
        prefetch(&p.b);
    }
    if (warp == 0 && lane < p.stages) {
        barrier_init(&barriers->full[lane], 1);
        barrier_init(&barriers->empty[lane], p.share * T::groups * 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    const int rank = int(cluster_rank());
    const int own = rank & (p.share - 1), slice = rank >> p.share_log;
    const int unit = int(blockIdx.x) >> (p.share_log + p.slices_log);
    const int part = unit & (p.parts - 1), pair = unit >> p.parts_log;
    int m, n;
    tile_at(pair, p.group_m, p.tiles_m, p.tiles_n, m, n);
    m = (m << p.share_log) + own;
    const int row = m * T::rows, column = n * T::columns;
    const int range = (part << p.slices_log) + slice;
    const int from = range * p.steps + min(range, p.longer);
    const int to = from + p.steps + (range < p.longer);
    if (p.share_log + p.slices_log > 0)
        cluster_sync();
    else
        __syncthreads();
    wait_for_predecessor();
    allow_successor();

    const int thread = int(threadIdx.x);
    const int pieces = T::pieces >> p.slices_log; /* that this CTA adds */
    float4 *const sums = p.sums + (int64_t(n * p.tiles_m * p.share + m) * p.parts) * T::pieces * T::consumers;
    float blocks[1][T::columns / 2];
    float(&d)[T::columns / 2] = blocks[0];
    if (consumer) {
        Ring at{0, 0};
        tiles.multiply(blocks, at, to - from, warp / 4, p.share, slice * p.share, [] {});
    } else {
        if (lane == 0) {
            Ring at{0, 1};
            tiles.load(&p.a, &p.b, at, row, column, from, to, false, p.share, own, slice * p.share);
        }
        __syncwarp();
    }

    const auto sum_of = [&](int j) { return float4{d[j * 4], d[j * 4 + 1], d[j * 4 + 2], d[j * 4 + 3]}; };
    if (p.slices > 1) {
        if (p.sums_at == 0) cluster_sync(); /* all have read their rings */
        if (consumer) {
            /* Each piece to the CTA that adds it, in the place of this slice. */
            const uint32_t mine = shared_address(memory) + uint32_t(p.sums_at) +
                                  uint32_t((slice * pieces * T::consumers + thread) * 16);
            uint32_t place = mine, cta = uint32_t(own);
            int left = pieces;
#pragma unroll
            for (int j = 0; j < T::pieces; ++j) {
                store_at(place, cta, sum_of(j));
                place += T::consumers * 16;
                if (--left == 0) {
                    left = pieces;
                    place = mine;
                    cta += uint32_t(p.share);
                }
            }
        }
        cluster_sync();
        if (consumer) {
            const float4 *at = reinterpret_cast<const float4 *>(memory + p.sums_at) + thread;
            for (int j = 0; j < pieces; ++j, at += T::consumers) {
                float4 v = *at;
#pragma unroll 4
                for (int q = 1; q < p.slices; ++q) v = add(v, at[q * pieces * T::consumers]);
                if (p.parts > 1)
                    __stcg(sums + (part * T::pieces + slice * pieces + j) * T::consumers + thread, v);
                else
                    store_piece<T>(p, row, column, slice * pieces + j, v);
            }
        }
    } else if (p.parts > 1) {
        if (consumer) {
#pragma unroll
            for (int j = 0; j < T::pieces; ++j)
                __stcg(sums + (part * T::pieces + j) * T::consumers + thread, sum_of(j));
        }
    } else if (consumer) {
        consumer_sync<T::consumers>(); /* all have read the ring */
        char *const boxes = memory + warp / 4 * (T::columns / box) * box_bytes;
#pragma unroll
        for (int j = 0; j < T::columns / box; ++j) put_box(d + j * 32, boxes + j * box_bytes);
        consumer_sync<T::consumers>();
        if (thread % 128 == 0 && row + warp / 4 * box < p.m) {
            for (int j = 0; j < T::columns / box && column + j * box < p.n; ++j)
                store_box(&p.c_map, boxes + j * box_bytes, column + j * box, row + warp / 4 * box);
            commit_stores();
            wait_stores_read<0>(); /* they are done when the kernel is */
        }
    }
    if (p.parts > 1 && consumer) {
        __threadfence();
        consumer_sync<T::consumers>();
        unsigned *const counter = p.counters + int64_t(n * p.tiles_m * p.share + m) * p.slices + slice;
        if (thread == 0) barriers->last = atomicAdd(counter, 1u) == unsigned(p.parts - 1);
        consumer_sync<T::consumers>();
        if (barriers->last) {
            __threadfence();
            const float4 *at = sums + slice * pieces * T::consumers + thread;
            constexpr int step = T::pieces * T::consumers; /* from part to part */
            int j = 0;
            for (; j + 1 < pieces; j += 2, at += 2 * T::consumers) {
                float4 v = __ldcg(at), w = __ldcg(at + T::consumers);
#pragma unroll 4
                for (int g = 1; g < p.parts; ++g) {
                    v = add(v, __ldcg(at + g * step));
                    w = add(w, __ldcg(at + g * step + T::consumers));
                }
                store_piece<T>(p, row, column, slice * pieces + j, v);
                store_piece<T>(p, row, column, slice * pieces + j + 1, w);
            }
            if (j < pieces) {
                float4 v = __ldcg(at);
#pragma unroll 4
                for (int g = 1; g < p.parts; ++g) v = add(v, __ldcg(at + g * step));
                store_piece<T>(p, row, column, slice * pieces + j, v);
            }
            if (thread == 0) *counter = 0;
        }
    }
    /* No CTA leaves while another may arrive at its barriers; if sums met, all main loops have ended. */
    if (p.share > 1 && p.slices == 1) cluster_sync();
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

using EncodeFunction = decltype(&cuTensorMapEncodeTiled);

/* What is launched for a shape. */
struct Choice {
    int tile; /* as the tunable TILE; 0: the plain kernel */
    int slices, parts, share;
};

struct Depth {
    int stages, sums_at, shared_bytes;
};

struct TileKind {
    const void *kernel;
    int rows, columns, threads, ctas_of_sm;
    Depth (*depth)(int alone_bytes, bool alone, bool meets, int steps);
};

/* The ring of a CTA that has an SM to itself, or not. `meets`: K is shared out over a cluster, then its sums have a
 * place beside the ring, unless less than 3 stages would be left, or less than 5 for many steps. A CTA alone has no
 * more stages than steps of K, so that its successor of the next call finds room beside it; of CTAs that are not
 * alone, those of the next call would then lie unevenly in the gaps. C needs the room of two stages at most. */
template <class T>
Depth split_depth(int alone_bytes, bool alone, bool meets, int steps) {
    const int room = alone ? std::min(alone_bytes, T::alone) : T::beside;
    const int most = alone ? std::max(steps, 2) : T::most_stages;
    const int apart = T::stages(room - T::sum_bytes);
    if (!meets || apart < (steps > 16 ? 5 : 3)) {
        const int stages = std::min(T::stages(room), most);
        return Depth{stages, 0, T::shared_bytes(stages, 0)};
    }
    const int stages = std::min(apart, most);
    return Depth{stages, stages * T::Tiles::bytes, T::shared_bytes(stages, stages * T::Tiles::bytes)};
}

template <class W>
Depth wide_depth(int, bool, bool, int) {
    return Depth{W::stages, 0, W::shared_bytes};
}

template <class T>
TileKind split_kind() {
    return TileKind{reinterpret_cast<const void *>(split_kernel<T>), T::rows, T::columns, T::threads,
                    T::ctas_of_sm, split_depth<T>};
}

template <class W>
TileKind wide_kind() {
    return TileKind{reinterpret_cast<const void *>(wide_kernel<W>), W::rows, W::columns, W::threads, 1,
                    wide_depth<W>};
}

TileKind kind_of(int tile) {
    switch (tile) {
        case 2: return split_kind<Split<64, 64>>();
        case 3: return split_kind<Split<128, 64>>();
        case 4: return split_kind<Split<64, 128>>();
        case 5: return split_kind<Split<128, 128>>();
        case 6: return split_kind<Split<128, 192>>();
        case 7: return split_kind<Split<192, 64>>();
        case 8: return split_kind<Split<192, 128>>();
        case 9: return split_kind<Split<64, 192>>();
        case 10: return split_kind<Split<128, 256>>();
        case 11: return wide_kind<Turns>();
        default: return wide_kind<Wide>();
    }
}

constexpr int first_tile = 1, tile_in_turn = 11, last_tile = 11;

/* Whether the CTAs of a tile stay and take more of them. */
constexpr bool stays(int tile) { return tile == first_tile || tile == tile_in_turn; }

struct State {
    const kt_context *ctx;
    int64_t m, n, k;
    int sms; /* for so many CTAs at once */
    int cache_bytes; /* of the L2 cache */
    Choice choice;
    TileKind kind;
    unsigned ctas, cluster;
    Depth depth;
    bool early_launch;
    std::vector<WideParams> wide; /* of every set */
    std::vector<SplitParams> split;
    std::vector<PlainParams> plain;
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

/* ---- The rule. ------------------------------------------------------------------------------------ */

/* What the clusters of the wide kernel do: whole tiles in rounds, then what is left, shared out along K. */
struct WidePlan {
    int64_t clusters, whole, shared, parts;
};

WidePlan wide_plan(int tile, int64_t m, int64_t n, int64_t k, int sms, const kt_named_value *tunables,
                   uint32_t count) {
    const TileKind kind = kind_of(tile);
    const int64_t tiles = up(m, kind.rows * CLUSTER) * up(n, kind.columns), steps = up(k, tile_k);
    const int64_t limit = kt_value(tunables, count, "MAX_CTAS", 0);
    const int64_t most = std::max<int64_t>((limit > 0 ? std::min<int64_t>(limit, sms) : sms) / CLUSTER, 1);
    const int64_t left = tiles % most;
    const int64_t least = kt_value(tunables, count, "SHARE_LAST", 16);
    const int64_t parts = left ? std::min(most / left, kt_value(tunables, count, "MOST_PARTS", 8)) : 1;
    if (least > 0 && steps * (parts - 1) >= least * parts && steps >= parts) {
        const int64_t whole = tiles - left;
        return WidePlan{whole ? most : left * parts, whole, left, parts};
    }
    return WidePlan{std::min(tiles, most), tiles, 0, 1};
}

int64_t tiles_of(const Choice &c, const TileKind &kind, int64_t m, int64_t n) {
    return up(up(m, kind.rows), c.share) * c.share * up(n, kind.columns);
}

// kerneltui: evolve begin rule
/* Microseconds of a call's ends and of a step of K, of the tiles in their order. These and the numbers of
 * `expected_us` are fitted, all together, so that the choice is quick, to times of an H200 over 250 shapes from 64 to
 * 16384: inputs in main memory, calls back to back as a graph. What a single one says of the machine is little. */
struct Cost {
    double ends, step;
};
constexpr Cost costs[] = {{4.852, 0.616}, {0.922, 0.196}, {1.957, 0.289}, {2.586, 0.278}, {3.348, 0.392},
                          {3.937, 0.559}, {2.253, 0.498}, {4.209, 0.577}, {2.434, 0.425}, {7.071, 0.689},
                          {4.745, 0.503}};

/* Until the parts of shared tiles are added. */
constexpr double sharing_us = 19.3;

/* Microseconds that a choice should take: its rounds of CTAs over the SMs, each a row of steps, or the way to
 * main memory, whichever is longer; then the ends, the sums that meet, and the store of C. */
double expected_us(const Choice &c, int64_t m, int64_t n, int64_t k, int sms,
                   const kt_named_value *tunables, uint32_t count) {
    const TileKind kind = kind_of(c.tile);
    const Cost &cost = costs[c.tile - first_tile];
    const int64_t tiles = tiles_of(c, kind, m, n);
    const int64_t ctas = tiles * c.slices * c.parts;
    const int cluster = stays(c.tile) ? CLUSTER : c.share * c.slices;
    const int64_t slots = cluster <= 2 ? sms : sms * 28 / 33; /* larger clusters leave SMs of a GPC over */
    double rounds = double(up(ctas, slots));
    double us = cost.ends;
    if (stays(c.tile)) {
        const WidePlan plan = wide_plan(c.tile, m, n, k, sms, tunables, count);
        rounds = std::ceil(double(plan.whole) / double(plan.clusters));
        if (plan.shared) {
            rounds += 1.0 / double(plan.parts);
            us += sharing_us;
        }
    }
    const double steps = double(up(up(k, tile_k), c.slices * c.parts));
    const double main_memory = 2.0 * (double(m) * k + double(k) * n + double(m) * n) / 4.3e6;
    const double size = kind.rows * kind.columns / 8192.0;
    double main_loop = rounds * steps * cost.step;
    /* Of these two the one that is long across the larger of A and B: that is read again less often. */
    if (kind.rows * kind.columns == 64 * 128) {
        const double lean = std::clamp(std::log2(double(n) / double(m)), -6.0, 6.0);
        main_loop *= 1.0 + (kind.rows > kind.columns ? -0.0136 : 0.0136) * lean;
    }
    if (c.tile == tile_in_turn) return us + std::max(main_loop, main_memory * 1.24);
    us += std::max(main_loop, main_memory * 0.301);
    if (c.slices > 1) us += (0.540 + 0.703 * size) * rounds;
    if (c.parts > 1) us += 0.737 + 1.622 * c.parts * size / c.slices + 1.714 * size * double(ctas) / sms;
    return us + 0.758 * (rounds - 1) + 0.122 * size * rounds + 0.219 * 2.0 * double(m) * n / 4.3e6;
}

/* What can be launched. */
bool possible(const Choice &c, int64_t m, int64_t n, int64_t k, int sms) {
    const TileKind kind = kind_of(c.tile);
    const int ranges = c.slices * c.parts;
    if (stays(c.tile)) return ranges == 1 && c.share == 1;
    if (c.share > 1 && (kind.columns % 128 || m <= kind.rows || c.share * c.slices > 8)) return false;
    const int64_t tiles = tiles_of(c, kind, m, n);
    return tiles <= (1 << 20) && (ranges == 1 || (ranges <= up(k, tile_k) && tiles * ranges <= 8 * sms));
}

/* What may be quick: no tile of which more than half is empty, no more than two CTAs for an SM, no SMs that
 * idle while there are more than 8 steps of K to share out, and many parts only of clusters that cannot be larger. */
bool sensible(const Choice &c, int64_t m, int64_t n, int64_t k, int sms) {
    const TileKind kind = kind_of(c.tile);
    if (stays(c.tile)) return true;
    if ((kind.rows > 64 && m * 2 <= kind.rows) || (kind.columns > 64 && n * 2 <= kind.columns)) return false;
    const int64_t tiles = tiles_of({c.tile, 1, 1, 1}, kind, m, n);
    const int64_t ctas = tiles * c.slices * c.parts;
    if (tiles > 600 && kind.rows * kind.columns < 128 * 128) return false;
    if (c.slices * c.parts > 1 && ctas > 2 * sms) return false;
    const bool long_range = up(up(k, tile_k), c.slices * c.parts) > 8;
    if (long_range && ctas * 2 < std::min({int64_t(128), tiles * up(k, tile_k), tiles * 32})) return false;
    return c.parts <= (c.slices * c.share == 8 ? 8 : 2);
}

/* The choice that should be quickest, of those that agree with the run-time tunables. */
Choice choose(int64_t m, int64_t n, int64_t k, int sms, const kt_named_value *tunables, uint32_t count) {
    const int64_t tile = kt_value(tunables, count, "TILE", 0), slices = kt_value(tunables, count, "SLICES", 0);
    const int64_t parts = kt_value(tunables, count, "PARTS", 0), share = kt_value(tunables, count, "SHARE", 0);
    Choice best{tile > 0 ? int(tile) : first_tile, 1, 1, 1};
    double least = 1e30;
    for (int t = first_tile; t <= last_tile; ++t)
        for (int s = 1; s <= 8; s *= 2)
            for (int g = 1; g <= 16; g *= 2)
                for (int b = 1; b <= 2; ++b) {
                    if ((tile && t != tile) || (!stays(t) && ((slices && s != slices) || (parts && g != parts) ||
                                                              (share && b != share))))
                        continue;
                    const Choice c{t, s, g, b};
                    if (!possible(c, m, n, k, sms)) continue;
                    if (!(tile || slices || parts || share) && !sensible(c, m, n, k, sms)) continue;
                    const double us = expected_us(c, m, n, k, sms, tunables, count);
                    if (us < least) {
                        least = us;
                        best = c;
                    }
                }
    return best;
}
// kerneltui: evolve end

constexpr uint64_t counter_bytes = 1 << 16;

/* CTAs of a kernel whose CTAs stay that are on the GPU at once, if nothing else is: at most one for every SM. 0 if
 * that cannot be known: sharing a tile waits for clusters that might not be there. */
template <class W>
int sm_count() {
    int device = 0, sms = 0, clusters = 0;
    if (cudaGetDevice(&device) || cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device)) {
        (void)cudaGetLastError();
        return 0;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(sms / CLUSTER * CLUSTER));
    config.blockDim = dim3(W::threads);
    config.dynamicSmemBytes = size_t(W::shared_bytes);
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = CLUSTER;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.attrs = &cluster;
    config.numAttrs = 1;
    if (cudaFuncSetAttribute(wide_kernel<W>, cudaFuncAttributeMaxDynamicSharedMemorySize, W::shared_bytes) ||
        cudaOccupancyMaxActiveClusters(&clusters, wide_kernel<W>, &config) || clusters < 1) {
        (void)cudaGetLastError();
        return 0;
    }
    return std::min(sms, clusters * CLUSTER);
}

int sm_count() { return std::min(sm_count<Wide>(), sm_count<Turns>()); }

/* Scratch: counters, then sums. */
uint64_t scratch_bytes(const Choice &c, int64_t m, int64_t n, int64_t k, int sms,
                       const kt_named_value *tunables, uint32_t count) {
    const TileKind kind = kind_of(c.tile);
    if (stays(c.tile)) {
        const WidePlan plan = wide_plan(c.tile, m, n, k, sms, tunables, count);
        const uint64_t sums = uint64_t(plan.shared * plan.parts) * CLUSTER * uint64_t(kind.rows * kind.columns);
        return sums ? counter_bytes + sums * 4 : 0;
    }
    if (c.parts == 1) return 0;
    const uint64_t tiles = uint64_t(tiles_of(c, kind, m, n));
    return counter_bytes + tiles * uint64_t(c.parts) * uint64_t(kind.rows * kind.columns) * 4;
}

int encode(EncodeFunction function, const kt_context *ctx, CUtensorMap *map, void *base, int64_t columns,
           int64_t rows, int box_columns, int box_rows) {
    const cuuint64_t size[2] = {cuuint64_t(columns), cuuint64_t(rows)};
    const cuuint64_t stride[1] = {cuuint64_t(columns) * 2};
    const cuuint32_t extent[2] = {cuuint32_t(box_columns), cuuint32_t(box_rows)};
    const cuuint32_t steps[2] = {1, 1};
    const CUresult result = function(map, element_map, 2, base, size, stride, extent, steps,
                                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result == CUDA_SUCCESS) return 0;
    char text[128];
    std::snprintf(text, sizeof text, "cuTensorMapEncodeTiled failed with error %d", int(result));
    return fail(ctx, text);
}

int encode_function(const kt_context *ctx, EncodeFunction *out) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                               cudaEnableDefault, &result);
    if (error) return fail(ctx, "cuTensorMapEncodeTiled", error);
    if (result != cudaDriverEntryPointSuccess || !found) return fail(ctx, "no cuTensorMapEncodeTiled");
    *out = reinterpret_cast<EncodeFunction>(found);
    return 0;
}

int group_rows(const State &s, int unit, int tiles_m) {
    const int64_t asked = kt_value(s.ctx->tunables, s.ctx->tunable_count, "GROUP_M", 0);
    const int64_t rule = s.choice.tile == tile_in_turn && s.k <= 1024 ? 8 : 16;
    return int(std::clamp<int64_t>((asked > 0 ? asked : rule) / unit, 1, tiles_m));
}

/* Of a box of B that is loaded at once: see Stages::load. */
int rows_of_b(const TileKind &kind, int sharing) {
    return kind.columns / box % sharing ? tile_k / sharing : tile_k;
}

int prepare_wide(State &s, EncodeFunction function, const kt_tensor *a, const kt_tensor *b,
                 const kt_tensor *c) {
    const WidePlan plan = wide_plan(s.choice.tile, s.m, s.n, s.k, s.sms, s.ctx->tunables, s.ctx->tunable_count);
    WideParams p{};
    p.whole = int(plan.whole);
    p.shared = int(plan.shared);
    p.parts = int(plan.parts);
    p.calls = static_cast<uint64_t *>(s.ctx->scratch);
    p.sums = reinterpret_cast<float4 *>(static_cast<char *>(s.ctx->scratch) + counter_bytes);
    p.m = int(s.m);
    p.n = int(s.n);
    p.k_tiles = int(up(s.k, tile_k));
    p.tiles_m = int(up(s.m, s.kind.rows * CLUSTER));
    p.tiles_n = int(up(s.n, s.kind.columns));
    p.group_m = group_rows(s, CLUSTER, p.tiles_m);
    p.turn_k = kt_value(s.ctx->tunables, s.ctx->tunable_count, "TURN_K", 1) != 0;
    p.c_first = kt_value(s.ctx->tunables, s.ctx->tunable_count, "C_FIRST", 1) && s.m * s.n * 4 > s.cache_bytes;
    if (encode(function, s.ctx, &p.a, a->local, s.k, s.m, tile_k, s.kind.rows)) return 1;
    if (encode(function, s.ctx, &p.b, b->local, s.n, s.k, box, rows_of_b(s.kind, CLUSTER))) return 1;
    if (encode(function, s.ctx, &p.c, c->local, s.n, s.m, box, box)) return 1;
    s.wide.push_back(p);
    return 0;
}

/* Of a power of two: divisions by these would take as long as the first load. */
int log_of(int value) {
    int log = 0;
    while (1 << log < value) ++log;
    return log;
}

int prepare_split(State &s, EncodeFunction function, const kt_tensor *a, const kt_tensor *b,
                  const kt_tensor *c) {
    SplitParams p{};
    p.c = static_cast<element *>(c->local);
    p.counters = static_cast<unsigned *>(s.ctx->scratch);
    if (s.choice.parts > 1)
        p.sums = reinterpret_cast<float4 *>(static_cast<char *>(s.ctx->scratch) + counter_bytes);
    p.m = int(s.m);
    p.n = int(s.n);
    p.k_tiles = int(up(s.k, tile_k));
    p.share = s.choice.share;
    p.slices = s.choice.slices;
    p.parts = s.choice.parts;
    p.share_log = log_of(p.share);
    p.slices_log = log_of(p.slices);
    p.parts_log = log_of(p.parts);
    p.steps = p.k_tiles / (p.slices * p.parts);
    p.longer = p.k_tiles % (p.slices * p.parts);
    p.stages = s.depth.stages;
    p.sums_at = s.depth.sums_at;
    p.tiles_m = int(up(up(s.m, s.kind.rows), p.share));
    p.tiles_n = int(up(s.n, s.kind.columns));
    p.group_m = group_rows(s, p.share, p.tiles_m);
    if (encode(function, s.ctx, &p.a, a->local, s.k, s.m, tile_k, s.kind.rows)) return 1;
    if (encode(function, s.ctx, &p.b, b->local, s.n, s.k, box, rows_of_b(s.kind, p.share))) return 1;
    if (encode(function, s.ctx, &p.c_map, c->local, s.n, s.m, box, box)) return 1;
    s.split.push_back(p);
    return 0;
}

/* The grid: of the wide kernel at most one CTA for every SM, of the split kernel one for every range. */
void size_grid(State &s) {
    const Choice &c = s.choice;
    if (stays(c.tile)) {
        const WidePlan plan = wide_plan(s.choice.tile, s.m, s.n, s.k, s.sms, s.ctx->tunables, s.ctx->tunable_count);
        s.cluster = CLUSTER;
        s.ctas = unsigned(plan.clusters * CLUSTER);
        s.depth = s.kind.depth(0, true, false, 0);
        return;
    }
    s.cluster = unsigned(c.share * c.slices);
    s.ctas = unsigned(tiles_of(c, s.kind, s.m, s.n) * c.slices * c.parts);
    /* More than half of the shared memory also keeps the CTAs of a cluster from being placed on one SM. */
    const int64_t room = kt_value(s.ctx->tunables, s.ctx->tunable_count, "SPLIT_KB", 208) * 1024;
    const int64_t steps = up(up(s.k, tile_k), c.slices * c.parts);
    s.depth = s.kind.depth(int(room), s.ctas <= unsigned(s.sms), c.slices > 1, int(steps));
}

int prepare(State &s) {
    const kt_context *ctx = s.ctx;
    s.sms = sm_count();
    if (!s.sms) return fail(ctx, "how many CTAs fit on this GPU cannot be known");
    int device = 0;
    if (cudaGetDevice(&device) || cudaDeviceGetAttribute(&s.cache_bytes, cudaDevAttrL2CacheSize, device))
        return fail(ctx, "the size of the L2 cache cannot be known");
    const bool aligned = s.n % 8 == 0 && s.k % 8 == 0;
    s.choice = aligned ? choose(s.m, s.n, s.k, s.sms, ctx->tunables, ctx->tunable_count) : Choice{0, 1, 1, 1};
    EncodeFunction function = nullptr;
    if (aligned) {
        s.kind = kind_of(s.choice.tile);
        s.early_launch = kt_value(ctx->tunables, ctx->tunable_count, "EARLY_LAUNCH", 1) != 0;
        size_grid(s);
        const uint64_t needed =
            scratch_bytes(s.choice, s.m, s.n, s.k, s.sms, ctx->tunables, ctx->tunable_count);
        if (ctx->scratch_bytes < needed) return fail(ctx, "less scratch than required");
        cudaError_t error = needed ? cudaMemset(ctx->scratch, 0, counter_bytes) : cudaSuccess;
        if (!error)
            error = cudaFuncSetAttribute(s.kind.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         s.depth.shared_bytes);
        if (error) return fail(ctx, "setup", error);
        if (encode_function(ctx, &function)) return 1;
    }
    for (uint32_t i = 0; i < ctx->sets; ++i) {
        const kt_tensor *a = kt_find(&ctx->buffers[i], "A");
        const kt_tensor *b = kt_find(&ctx->buffers[i], "B");
        const kt_tensor *c = kt_find(&ctx->buffers[i], "C");
        if (!a || !b || !c) return fail(ctx, "gemm needs A, B and C");
        if (c->dtype != element_dtype) return fail(ctx, "this build multiplies " ELEMENT_NAME);
        if (!aligned)
            s.plain.push_back(PlainParams{static_cast<const element *>(a->local),
                                          static_cast<const element *>(b->local),
                                          static_cast<element *>(c->local), int(s.m), int(s.n),
                                          int(s.k)});
        else if (stays(s.choice.tile) ? prepare_wide(s, function, a, b, c) : prepare_split(s, function, a, b, c))
            return 1;
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
    out->cluster_size = 8;
    if (n % 8 == 0 && k % 8 == 0) {
        const int sms = sm_count();
        if (!sms) return 1;
        const Choice choice = choose(m, n, k, sms, tunables, tunable_count);
        out->scratch_bytes = scratch_bytes(choice, m, n, k, sms, tunables, tunable_count);
    }
    return 0;
}

int kerneltui_setup(const kt_context *ctx, void **out) {
    const int64_t m = kt_value(ctx->dimensions, ctx->dimension_count, "M", 0);
    const int64_t n = kt_value(ctx->dimensions, ctx->dimension_count, "N", 0);
    const int64_t k = kt_value(ctx->dimensions, ctx->dimension_count, "K", 0);
    if (m < 1 || n < 1 || k < 1) return fail(ctx, "gemm needs the dimensions M, N and K");
    if (m > INT32_MAX - 256 || n > INT32_MAX - 256 || k > INT32_MAX - tile_k)
        return fail(ctx, "a dimension does not fit 31 bits");
    State *s = new (std::nothrow) State{};
    if (!s) return fail(ctx, "out of memory in setup");
    s->ctx = ctx;
    s->m = m;
    s->n = n;
    s->k = k;
    *out = s;
    return prepare(*s);
}

int kerneltui_run(void *opaque, uint32_t set, uint64_t, void *opaque_stream) {
    State &s = *static_cast<State *>(opaque);
    const cudaStream_t stream = static_cast<cudaStream_t>(opaque_stream);
    if (s.choice.tile == 0) {
        const dim3 grid(unsigned(up(s.m, plain_tile)), unsigned(up(s.n, plain_tile)));
        plain_kernel<<<grid, plain_threads, 0, stream>>>(s.plain[set]);
        const cudaError_t error = cudaGetLastError();
        return error ? fail(s.ctx, "launch of the plain GEMM", error) : 0;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(s.ctas);
    config.blockDim = dim3(unsigned(s.kind.threads));
    config.dynamicSmemBytes = size_t(s.depth.shared_bytes);
    config.stream = stream;
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = s.cluster;
    attributes[0].val.clusterDim.y = 1;
    attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attributes;
    config.numAttrs = s.early_launch ? 2 : 1;
    void *params = stays(s.choice.tile) ? static_cast<void *>(&s.wide[set]) : static_cast<void *>(&s.split[set]);
    void *arguments[] = {params};
    const cudaError_t error = cudaLaunchKernelExC(&config, s.kind.kernel, arguments);
    return error ? fail(s.ctx, "launch of the GEMM", error) : 0;
}

int kerneltui_teardown(void *opaque) {
    delete static_cast<State *>(opaque);
    return 0;
}
