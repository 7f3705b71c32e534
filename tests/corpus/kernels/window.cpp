/* window.cpp - C = A B with the rows of A sharded over the ranks, device-initiated.
 *
 * Each rank computes its own rows of C in its own window. The rows reach the other ranks through shared
 * memory: the rank stores them into the windows of its peers (push), or each peer loads them (pull).
 * Flags, not the host, say when rows are there.
 *
 *   rows of a rank  = chunks of CHUNK_ROWS rows (the last may be shorter; a rank without rows has one
 *                     empty chunk, so that its peers still wait for it)
 *   sequential      = all chunks are multiplied, then all are published
 *   split_put_wait  = a chunk is published as soon as it is multiplied
 *   fused           = push: the micro-kernel stores each tile to all windows from its registers
 *                     pull: chunks of peers that are ready are fetched between one's own chunks
 *
 * Memory order. The signal area of rank q has, for every source rank p, one word per chunk; only p writes
 * them and only q reads them. p first stores the rows (into q's window, or its own if pulled), then stores
 * the epoch into the word with release order. q loads the word with acquire order until it is at least the
 * epoch. Every load of q that follows sees the rows. Non-temporal stores are weakly ordered on x86 and a
 * release store does not hold them back: store_fence() goes between them and the flag, on the thread that
 * made them. Epochs only grow, so a word is never reset, and `>=` also lets a peer be one call ahead.
 *
 * One call ahead, and not more: a call ends only when every peer has published its last chunk of that
 * epoch. So when a rank enters epoch e + 1, all others have at least entered e, and with two or more
 * buffer sets its stores go to a set that no other rank is working on. With a single set the rank first
 * waits until the peer has entered the same epoch (`gate` words). A pulled rank leaves the call only when
 * all peers have fetched its rows (same words), because its rows may be poisoned as soon as it is back.
 */
#include <kerneltui/kernel.h>

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>
#if defined(__x86_64__)
#include <emmintrin.h> /* immintrin.h alone takes a second to parse */
#endif

/* ---- The directive. ------------------------------------------------------------------------------ */

// kerneltui: directive backend lsa
// kerneltui: directive issuer thread
// kerneltui: directive placement from PLACEMENT
// kerneltui: directive sync from SYNC
// kerneltui: directive chunk_bytes = CHUNK_ROWS * N * 4

// When rows go to the peers.
// kerneltui: tunable PLACEMENT in sequential split_put_wait fused
#define PLACEMENT sequential
// One flag for all rows of a rank, or one for every chunk.
// kerneltui: tunable SYNC in world flag_per_chunk
#define SYNC world
// Who moves the rows: the reader (pull) or the owner (push).
// kerneltui: tunable TRANSFER in pull push
#define TRANSFER pull
// How rows are copied. A tile that goes to the windows from registers knows two ways: non-temporal stores
// (COPY_STREAM) or ordinary ones.
// kerneltui: tunable COPY_KIND in COPY_MEMCPY COPY_STREAM COPY_MOVSB if COPY_KIND != COPY_MOVSB or PLACEMENT != fused or TRANSFER == pull or GEMM_KIND == GEMM_VENDOR
#define COPY_KIND COPY_MEMCPY
// Rows of a chunk; if not sequential, also the rows that are multiplied at once.
// kerneltui: tunable CHUNK_ROWS in 12 48 96 192 if CHUNK_ROWS <= M / RANKS
#define CHUNK_ROWS 12
// Peers are visited from rank 0 (0) or from one's right neighbour (1).
// kerneltui: runtime PEER_OFFSET in 0 1 default 0

/* ---- The product. -------------------------------------------------------------------------------- */

// The library's GEMM, or the one below: the other choices are only about the latter.
// kerneltui: tunable GEMM_KIND in GEMM_VENDOR GEMM_TILED
#define GEMM_KIND GEMM_VENDOR
// Register tile of the micro-kernel. 6 x 16 sums fill 12 of 16 AVX2 registers, 6 x 32 as many of AVX-512.
// kerneltui: tunable MR in 4 6 if GEMM_KIND == GEMM_TILED or MR == 6
#define MR 6
// kerneltui: tunable NR in 16 24 32 if GEMM_KIND == GEMM_TILED or NR == 16
#define NR 16
// Depth of one pass over K: a panel of B has KC x NR floats and should stay in the level-1 cache.
// kerneltui: tunable KC in 128 256 512 if GEMM_KIND == GEMM_TILED or KC == 128
#define KC 128
// B is packed anew for every chunk, or once per call, by the chunk that comes first.
// kerneltui: tunable PACK_B in PACK_EACH PACK_ONCE if GEMM_KIND == GEMM_TILED or PACK_B == PACK_ONCE
#define PACK_B PACK_ONCE
// Rows of A are packed (1) or read in place (0).
// kerneltui: tunable PACK_A in 0 1 if GEMM_KIND == GEMM_TILED or PACK_A == 0
#define PACK_A 0

namespace {

enum Placement { sequential, split_put_wait, fused };
enum Sync { world, flag_per_chunk };
enum Transfer { pull, push };
enum CopyKind { COPY_MEMCPY, COPY_STREAM, COPY_MOVSB };
enum GemmKind { GEMM_VENDOR, GEMM_TILED };
enum PackB { PACK_EACH, PACK_ONCE };

constexpr int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

struct Peer {
    uint32_t rank;
    int64_t first_row, rows;
    int64_t chunks;
    int64_t fetched; /* pull: chunks of this peer that are already here, in this call */
};

struct State {
    const kt_context *ctx;
    int threads;
    int64_t m, n, k;  /* m: rows of this rank */
    int64_t first_row;
    int64_t chunks;   /* of this rank, at least 1 */
    int64_t stride;   /* signal words per source rank */
    std::vector<Peer> peers; /* in the order in which they are visited */
    std::vector<float *> targets; /* of the call: own window, then those of the peers */
    float *packed_b, *packed_a, *stage; /* in the scratch area */
};

/* The tensors of one call. */
struct Call {
    uint64_t epoch;
    const float *a, *b;
    float *c;              /* own window: whole C */
    void *const *windows;  /* C of every rank */
    void *stream;
};

/* Rows that are multiplied at once. In a sequential run chunks are only how rows travel. */
constexpr int64_t block_rows = PLACEMENT == sequential ? std::max(CHUNK_ROWS, 96) : CHUNK_ROWS;

/* Sizes of the scratch areas in floats; each is a multiple of 16, so all start on a cache line. */
int64_t packed_a_floats(int64_t k) { return round_up(round_up(block_rows, MR) * k, 16); }
int64_t packed_b_floats(int64_t n, int64_t k) { return round_up(k * round_up(n, NR), 16); }
int64_t stage_floats(int64_t n) { return round_up(CHUNK_ROWS * n, 16); }

int64_t chunk_count(int64_t rows) { return std::max<int64_t>(1, (rows + CHUNK_ROWS - 1) / CHUNK_ROWS); }

/* Signal words: `stride` per source for chunks, then one line of 8 per source for the gate. */
int64_t signal_stride(int64_t m, int64_t ranks) { return round_up(chunk_count(m / ranks + 1), 8); }

// kerneltui: evolve begin flags_and_copies

/* Makes non-temporal stores of this thread visible before any later store. */
inline void store_fence() {
#if defined(__x86_64__)
    if (COPY_KIND == COPY_STREAM) _mm_sfence();
#endif
}

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

inline bool reached(const uint64_t *flag, uint64_t epoch) {
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE) >= epoch;
}

/* Spins a few tens of microseconds, then gives the core away: there may be more ranks than cores. */
inline void wait_for(const uint64_t *flag, uint64_t epoch) {
    for (int spins = 0; !reached(flag, epoch); ++spins) {
        if (spins < 1000)
            relax();
        else
            sched_yield();
    }
}

inline void raise(uint64_t *flag, uint64_t epoch) { __atomic_store_n(flag, epoch, __ATOMIC_RELEASE); }

/* The word in the area of `reader` that says: `chunk` of `owner` is there. */
inline uint64_t *chunk_flag(const State &s, uint32_t reader, uint32_t owner, int64_t chunk) {
    return s.ctx->signals[reader] + owner * s.stride + (SYNC == world ? 0 : chunk);
}

inline uint64_t *gate_flag(const State &s, uint32_t reader, uint32_t owner) {
    return s.ctx->signals[reader] + s.ctx->ranks * s.stride + owner * 8;
}

/* A store of a vector to its own alignment that passes the caches by. */
#if defined(__clang__)
#define KT_STREAM_256(to, value) __builtin_nontemporal_store(value, reinterpret_cast<decltype(value) *>(to))
#define KT_STREAM_512(to, value) KT_STREAM_256(to, value)
#else
#define KT_STREAM_256(to, value) __builtin_ia32_movntps256(to, value)
#define KT_STREAM_512(to, value) __builtin_ia32_movntps512(to, value)
#endif

/* Copies floats between windows. Any alignment of 4 bytes. */
inline void copy(float *to, const float *from, int64_t count) {
#if defined(__x86_64__)
    if (COPY_KIND == COPY_MOVSB) {
        int64_t bytes = count * int64_t(sizeof(float));
        asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
        return;
    }
#endif
#if defined(__AVX__)
    if (COPY_KIND == COPY_STREAM) {
        typedef float Line __attribute__((vector_size(32)));
        typedef float Source __attribute__((vector_size(32), aligned(4), may_alias));
        while (count > 0 && reinterpret_cast<uintptr_t>(to) % 32) {
            *to++ = *from++;
            --count;
        }
        for (; count >= 16; count -= 16, to += 16, from += 16) {
            const Source *source = reinterpret_cast<const Source *>(from);
            Line low = source[0], high = source[1];
            KT_STREAM_256(to, low);
            KT_STREAM_256(to + 8, high);
        }
        for (; count > 0; --count) *to++ = *from++;
        return;
    }
#endif
    if (count > 0) std::memcpy(to, from, size_t(count) * sizeof(float));
}

// kerneltui: evolve end

// kerneltui: evolve begin micro_kernel

/* One vector register of the product. GCC and clang lower it to whatever the machine has, and contract
 * `sum += a * b` to a fused multiply-add. */
#if defined(__AVX512F__) && NR % 16 == 0
constexpr int lanes = 16;
#elif defined(__AVX__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif
typedef float Vector __attribute__((vector_size(lanes * 4)));
typedef float Unaligned __attribute__((vector_size(lanes * 4), aligned(4), may_alias));
constexpr int vectors = NR / lanes; /* in one row of a tile */

#if defined(__clang__)
#define KT_UNROLL _Pragma("clang loop unroll(full)")
#define KT_UNROLL_BY_4 _Pragma("clang loop unroll_count(4)")
#else
#define KT_UNROLL _Pragma("GCC unroll 64")
#define KT_UNROLL_BY_4 _Pragma("GCC unroll 4")
#endif

inline Vector load(const float *from) { return Vector(*reinterpret_cast<const Unaligned *>(from)); }
inline void store(float *to, Vector value) { *reinterpret_cast<Unaligned *>(to) = Unaligned(value); }

inline void store_streaming(float *to, Vector value) {
#if defined(__AVX512F__) && NR % 16 == 0
    KT_STREAM_512(to, value);
#elif defined(__AVX__)
    KT_STREAM_256(to, value);
#else
    store(to, value);
#endif
}

/* Where a tile goes. Only `cols` x `rows` of it are part of C. */
struct Tile {
    float *sums;           /* MR x NR, between the passes over K */
    float *const *targets; /* after the last pass: own window first, then those of the peers */
    int count;
    int64_t offset; /* of the tile in each target */
    int64_t ld;
    int rows, cols;
    bool first, last; /* pass over K */
    bool streaming;   /* non-temporal stores; the targets are aligned for them */
};

/* One MR x NR tile of C over `kc` steps of K. Row i of A starts at a[i]; packed rows lie k by k, so all are
 * reached from a[0] with constant offsets. `b` is a packed panel. Rows from tile.rows on must be readable
 * (the callers repeat the last row), their sums are dropped. */
inline void multiply_tile(int64_t kc, const float *const (&a)[MR], const float *b, const Tile &tile) {
    Vector sum[MR][vectors] = {};
    const float *const packed = a[0];
    KT_UNROLL_BY_4
    for (int64_t k = 0; k < kc; ++k) {
        Vector row_of_b[vectors];
        KT_UNROLL
        for (int v = 0; v < vectors; ++v) row_of_b[v] = load(b + k * NR + v * lanes);
        KT_UNROLL
        for (int i = 0; i < MR; ++i) {
            const float value = PACK_A ? packed[k * MR + i] : a[i][k];
            KT_UNROLL
            for (int v = 0; v < vectors; ++v) sum[i][v] += value * row_of_b[v];
        }
    }

    if (!tile.first) {
        KT_UNROLL
        for (int i = 0; i < MR; ++i) {
            KT_UNROLL
            for (int v = 0; v < vectors; ++v) sum[i][v] += load(tile.sums + i * NR + v * lanes);
        }
    }
    const bool whole = tile.rows == MR && tile.cols == NR;
    if (!tile.last || !whole) {
        KT_UNROLL
        for (int i = 0; i < MR; ++i) {
            KT_UNROLL
            for (int v = 0; v < vectors; ++v) store(tile.sums + i * NR + v * lanes, sum[i][v]);
        }
        if (!tile.last) return;
    }
    for (int t = 0; t < tile.count; ++t) {
        float *const to = tile.targets[t] + tile.offset;
        if (!whole) {
            for (int i = 0; i < tile.rows; ++i)
                for (int j = 0; j < tile.cols; ++j) to[i * tile.ld + j] = tile.sums[i * NR + j];
        } else if (tile.streaming) {
            KT_UNROLL
            for (int i = 0; i < MR; ++i) {
                KT_UNROLL
                for (int v = 0; v < vectors; ++v) store_streaming(to + i * tile.ld + v * lanes, sum[i][v]);
            }
        } else {
            KT_UNROLL
            for (int i = 0; i < MR; ++i) {
                KT_UNROLL
                for (int v = 0; v < vectors; ++v) store(to + i * tile.ld + v * lanes, sum[i][v]);
            }
        }
    }
}

// kerneltui: evolve end

// kerneltui: evolve begin product

/* Packs kc x NR of B (row major, `n` columns, from column `col`) into a panel, padded with zeros. */
inline void pack_panel(float *panel, const float *b, int64_t n, int64_t col, int64_t kc) {
    const int64_t cols = std::min<int64_t>(NR, n - col);
    if (cols == NR) {
        for (int64_t k = 0; k < kc; ++k) {
            /* Rows of B are often a page apart, where the hardware does not prefetch. */
            __builtin_prefetch(b + std::min(k + 24, kc - 1) * n + col);
            KT_UNROLL
            for (int v = 0; v < vectors; ++v) store(panel + k * NR + v * lanes, load(b + k * n + col + v * lanes));
        }
        return;
    }
    for (int64_t k = 0; k < kc; ++k)
        for (int64_t j = 0; j < NR; ++j) panel[k * NR + j] = j < cols ? b[k * n + col + j] : 0.0f;
}

typedef float Four __attribute__((vector_size(16)));
typedef float UnalignedFour __attribute__((vector_size(16), aligned(4), may_alias));

/* Packs a 4 x 4 block: row[i][0..3] goes to packed[0..3 * MR + i]. */
inline void pack_4x4(float *packed, const float *const *row, int64_t k) {
    Four in[4];
    KT_UNROLL
    for (int i = 0; i < 4; ++i) in[i] = Four(*reinterpret_cast<const UnalignedFour *>(row[i] + k));
    const Four low01 = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
    const Four low23 = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
    const Four high01 = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
    const Four high23 = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
    const Four out[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                         __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                         __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                         __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
    KT_UNROLL
    for (int i = 0; i < 4; ++i) *reinterpret_cast<UnalignedFour *>(packed + i * MR) = UnalignedFour(out[i]);
}

/* Packs rows x kc of A into blocks of MR rows, k by k; missing rows repeat the last. */
inline void pack_rows(float *packed, const float *a, int64_t lda, int64_t rows, int64_t kc) {
    for (int64_t i = 0; i < rows; i += MR) {
        const float *row[MR];
        for (int r = 0; r < MR; ++r) row[r] = a + std::min<int64_t>(i + r, rows - 1) * lda;
        int64_t k = 0;
        for (; k + 4 <= kc; k += 4) {
            float *const block = packed + k * MR;
            pack_4x4(block, row, k);
            KT_UNROLL
            for (int r = 4; r < MR; ++r)
                for (int j = 0; j < 4; ++j) block[j * MR + r] = row[r][k + j];
        }
        for (; k < kc; ++k)
            for (int r = 0; r < MR; ++r) packed[k * MR + r] = row[r][k];
        packed += kc * MR;
    }
}

/* The panel of packed B of one pass (from depth p) and one column panel, in the order in which they are
 * used. */
inline float *panel_of(const State &s, int64_t p, int64_t panel) {
    return s.packed_b + (panel * s.k + p) * NR;
}

/* `rows` <= block_rows rows of the product, from the rank's row `row`, into all targets. For each panel of
 * B all passes over K are made in a row, so the sums of the panel stay in the level-1 cache. */
void multiply_block(const State &s, const Call &call, int64_t row, int64_t rows, float *const *targets,
                    int target_count) {
    if (rows == 0) return;
    const int64_t panels = (s.n + NR - 1) / NR;
    const int64_t padded_rows = round_up(rows, MR);
    const float *const a = call.a + row * s.k;
    bool streaming = COPY_KIND == COPY_STREAM && PLACEMENT == fused && TRANSFER == push && s.n % lanes == 0;
    for (int t = 0; t < target_count; ++t)
        streaming = streaming && reinterpret_cast<uintptr_t>(targets[t]) % (lanes * sizeof(float)) == 0;

    if (PACK_A)
        for (int64_t p = 0; p < s.k; p += KC)
            pack_rows(s.packed_a + p * padded_rows, a + p, s.k, rows, std::min<int64_t>(KC, s.k - p));
#pragma omp parallel num_threads(s.threads) if (s.threads > 1)
    {
        alignas(64) float sums[round_up(block_rows, MR) * NR];
        alignas(64) float own_panel[PACK_B == PACK_EACH ? KC * NR : 16];
#pragma omp for nowait
        for (int64_t j = 0; j < panels; ++j) {
            Tile tile{sums, targets, target_count, 0, s.n, 0, int(std::min<int64_t>(NR, s.n - j * NR)),
                      true, false, streaming};
            for (int64_t p = 0; p < s.k; p += KC) {
                const int64_t kc = std::min<int64_t>(KC, s.k - p);
                float *const b = PACK_B == PACK_EACH ? own_panel : panel_of(s, p, j);
                if (PACK_B == PACK_EACH || (PACK_B == PACK_ONCE && row == 0))
                    pack_panel(b, call.b + p * s.n, s.n, j * NR, kc);
                tile.first = p == 0;
                tile.last = p + kc == s.k;
                for (int64_t i = 0; i < rows; i += MR) {
                    const float *row_of_a[MR];
                    for (int r = 0; r < MR; ++r)
                        row_of_a[r] = PACK_A ? s.packed_a + p * padded_rows + i * kc + r
                                             : a + std::min<int64_t>(i + r, rows - 1) * s.k + p;
                    tile.sums = sums + i * NR;
                    tile.offset = (s.first_row + row + i) * s.n + j * NR;
                    tile.rows = int(std::min<int64_t>(MR, rows - i));
                    multiply_tile(kc, row_of_a, b, tile);
                }
            }
        }
        store_fence();
    }
}

/* Rows [row, row + rows) of this rank by the vendor's GEMM into `to` (row major, n columns). */
int vendor_rows(const State &s, const Call &call, int64_t row, int64_t rows, float *to) {
    if (rows == 0) return 0;
    const kt_vendor *vendor = s.ctx->vendor;
    return vendor->gemm(vendor->self, rows, s.n, s.k, call.a + row * s.k, s.k, call.b, s.n, to, s.n,
                        call.stream);
}

// kerneltui: evolve end

// kerneltui: evolve begin schedule

/* Tells all peers that `chunk` is there. With one flag per rank only the last chunk is worth telling. */
void publish_flag(const State &s, const Call &call, int64_t chunk) {
    if (SYNC == world && chunk + 1 < s.chunks) return;
    store_fence();
    for (const Peer &peer : s.peers) raise(chunk_flag(s, peer.rank, s.ctx->rank, chunk), call.epoch);
}

/* Makes a chunk that lies in the own window known to the peers. */
void publish(const State &s, const Call &call, int64_t chunk) {
    if (TRANSFER == push) {
        const int64_t row = chunk * CHUNK_ROWS;
        const int64_t offset = (s.first_row + row) * s.n;
        const int64_t count = std::min<int64_t>(CHUNK_ROWS, s.m - row) * s.n;
        for (const Peer &peer : s.peers)
            copy(static_cast<float *>(call.windows[peer.rank]) + offset, call.c + offset, count);
    }
    publish_flag(s, call, chunk);
}

/* Pull: fetches chunks of the peers, those that are ready or (`wait`) all that are missing. */
void fetch(State &s, const Call &call, bool wait) {
    for (Peer &peer : s.peers) {
        for (; peer.fetched < peer.chunks; ++peer.fetched) {
            const uint64_t *flag = chunk_flag(s, s.ctx->rank, peer.rank, peer.fetched);
            if (!wait && !reached(flag, call.epoch)) break;
            wait_for(flag, call.epoch);
            const int64_t row = peer.fetched * CHUNK_ROWS;
            const int64_t offset = (peer.first_row + row) * s.n;
            copy(call.c + offset, static_cast<const float *>(call.windows[peer.rank]) + offset,
                 std::min<int64_t>(CHUNK_ROWS, peer.rows - row) * s.n);
        }
    }
}

void open_gate(const State &s, const Call &call) {
    for (const Peer &peer : s.peers) raise(gate_flag(s, peer.rank, s.ctx->rank), call.epoch);
}

void wait_at_gate(const State &s, const Call &call) {
    for (const Peer &peer : s.peers) wait_for(gate_flag(s, s.ctx->rank, peer.rank), call.epoch);
}

/* Some rows of the product into the own window and, if fused and pushed, into those of the peers. */
int multiply(State &s, const Call &call, int64_t row, int64_t rows) {
    const int targets = PLACEMENT == fused && TRANSFER == push ? int(s.targets.size()) : 1;
    if (GEMM_KIND == GEMM_TILED) {
        multiply_block(s, call, row, rows, s.targets.data(), targets);
        return 0;
    }
    const int64_t offset = (s.first_row + row) * s.n;
    if (targets == 1) return vendor_rows(s, call, row, rows, call.c + offset);
    /* The vendor's GEMM has one destination: its block is stored to all windows from a private buffer. */
    if (const int error = vendor_rows(s, call, row, rows, s.stage)) return error;
    for (int t = 0; t < targets; ++t) copy(s.targets[t] + offset, s.stage, rows * s.n);
    return 0;
}

int run(State &s, const Call &call) {
    constexpr bool pushed = TRANSFER == push;
    s.targets[0] = call.c;
    for (size_t i = 0; i < s.peers.size(); ++i) {
        s.peers[i].fetched = 0;
        s.targets[i + 1] = static_cast<float *>(call.windows[s.peers[i].rank]);
    }
    const bool gated = pushed && s.ctx->sets < 2;
    if (gated) open_gate(s, call);

    if (PLACEMENT == sequential) {
        if (GEMM_KIND == GEMM_VENDOR) {
            if (vendor_rows(s, call, 0, s.m, call.c + s.first_row * s.n)) return 1;
        } else {
            for (int64_t row = 0; row < s.m; row += block_rows)
                if (multiply(s, call, row, std::min(block_rows, s.m - row))) return 1;
        }
    }
    if (gated) wait_at_gate(s, call);
    for (int64_t chunk = 0; chunk < s.chunks; ++chunk) {
        const int64_t row = chunk * CHUNK_ROWS;
        if (PLACEMENT != sequential && multiply(s, call, row, std::min<int64_t>(CHUNK_ROWS, s.m - row))) return 1;
        if (PLACEMENT == fused && pushed)
            publish_flag(s, call, chunk); /* the rows are already there */
        else
            publish(s, call, chunk);
        if (PLACEMENT == fused && !pushed) fetch(s, call, false);
    }

    if (pushed) {
        for (const Peer &peer : s.peers)
            for (int64_t chunk = SYNC == world ? peer.chunks - 1 : 0; chunk < peer.chunks; ++chunk)
                wait_for(chunk_flag(s, s.ctx->rank, peer.rank, chunk), call.epoch);
    } else {
        fetch(s, call, true);
        store_fence();
        open_gate(s, call); /* the peers' rows may change again */
        wait_at_gate(s, call);
    }
    return 0;
}

// kerneltui: evolve end

int fail(const kt_context *ctx, const char *reason) {
    ctx->fail(ctx->fail_self, reason);
    return 1;
}

}  // namespace

int kerneltui_requirements(const kt_named_value *dimensions, uint32_t dimension_count,
                           const kt_named_value *, uint32_t, uint32_t, uint32_t ranks,
                           kt_requirements *out) {
    const int64_t m = kt_value(dimensions, dimension_count, "M", 0);
    const int64_t n = kt_value(dimensions, dimension_count, "N", 0);
    const int64_t k = kt_value(dimensions, dimension_count, "K", 0);
    out->abi_version = KERNELTUI_ABI_VERSION;
    out->signal_words = uint32_t(ranks * (signal_stride(m, ranks) + 8));
    out->scratch_bytes = uint64_t(packed_b_floats(n, k) + packed_a_floats(k) + stage_floats(n)) * sizeof(float);
    return 0;
}

int kerneltui_setup(const kt_context *ctx, void **out) {
    const int64_t m = kt_value(ctx->dimensions, ctx->dimension_count, "M", 0);
    const int64_t n = kt_value(ctx->dimensions, ctx->dimension_count, "N", 0);
    const int64_t k = kt_value(ctx->dimensions, ctx->dimension_count, "K", 0);
    if (m < 1 || n < 1 || k < 1) return fail(ctx, "gemm_allgather needs the dimensions M, N and K");
    State *s = new (std::nothrow) State{};
    if (!s) return fail(ctx, "out of memory in setup");
    s->ctx = ctx;
    s->threads = int(std::max<uint32_t>(1, ctx->threads));
    s->n = n;
    s->k = k;
    s->first_row = kt_first_row(m, ctx->rank, ctx->ranks);
    s->m = kt_first_row(m, ctx->rank + 1, ctx->ranks) - s->first_row;
    s->chunks = chunk_count(s->m);
    s->stride = signal_stride(m, ctx->ranks);
    s->packed_b = static_cast<float *>(ctx->scratch);
    s->packed_a = s->packed_b + packed_b_floats(n, k);
    s->stage = s->packed_a + packed_a_floats(k);
    const int64_t offset = kt_value(ctx->tunables, ctx->tunable_count, "PEER_OFFSET", 0);
    for (uint32_t i = 0; i < ctx->ranks; ++i) {
        const uint32_t r = uint32_t((i + (offset ? ctx->rank : 0)) % ctx->ranks);
        if (r == ctx->rank) continue;
        const int64_t first = kt_first_row(m, r, ctx->ranks);
        const int64_t rows = kt_first_row(m, r + 1, ctx->ranks) - first;
        s->peers.push_back(Peer{r, first, rows, chunk_count(rows), 0});
    }
    s->targets.resize(ctx->ranks);
    *out = s;
    return 0;
}

int kerneltui_run(void *opaque, uint32_t set, uint64_t epoch, void *stream) {
    State &s = *static_cast<State *>(opaque);
    const kt_tensor *a = kt_find(&s.ctx->buffers[set], "A");
    const kt_tensor *b = kt_find(&s.ctx->buffers[set], "B");
    const kt_tensor *c = kt_find(&s.ctx->buffers[set], "C");
    if (!a || !b || !c || !c->peers) return fail(s.ctx, "gemm_allgather needs A, B and a symmetric C");
    const Call call{epoch, static_cast<const float *>(a->local), static_cast<const float *>(b->local),
                    static_cast<float *>(c->local), c->peers, stream};
    if (run(s, call)) return fail(s.ctx, "the vendor GEMM failed");
    return 0;
}

int kerneltui_teardown(void *opaque) {
    delete static_cast<State *>(opaque);
    return 0;
}
