/* The kernel that measures what a machine can do: the ceilings behind bound and floor.
 *
 * It is an ordinary kernel of the contract, run by the ordinary harness, so that all ranks are busy at
 * once and start at one gate. The run-time tunable MODE says what a call does, COUNT how often.
 */
#include <atomic>
#include <cmath>
#include <cstring>
#include <initializer_list>

#include <omp.h>
#include <sched.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kerneltui/kernel.h"

namespace {

enum Mode { FMA = 0, GEMM = 1, COPY = 2, STREAM = 3, FLAG = 4, READ = 5 };

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
typedef float Vector __attribute__((vector_size(kBytes)));
constexpr int kLanes = kBytes / 4;
constexpr int kChains = 12; /* more than latency times throughput of any core of today */
constexpr int kSpinsBeforeYield = 20000;

struct State {
    kt_context c;
    int64_t mode, count, nbytes;
    float sink;
};

/* 2 * kLanes * kChains * count operations, in registers alone. A call says kLanes * kChains in WIDTH. */
float multiply_add(int64_t count) {
    Vector sums[kChains];
    for (int i = 0; i < kChains; ++i) sums[i] = Vector{} + 0.001f * static_cast<float>(i);
    Vector scale = Vector{} + 0.999f, shift = Vector{} + 0.001f;
    for (int64_t n = 0; n < count; ++n) {
#pragma GCC unroll 12
        for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * scale + shift;
        /* Keeps the compiler from folding the chains, and costs no instruction. */
        asm volatile("" : "+x"(scale), "+x"(shift));
    }
    float total = 0;
    for (int i = 0; i < kChains; ++i)
        for (int j = 0; j < kLanes; ++j) total += sums[i][j];
    return total;
}

void copy_streaming(char *to, const char *from, int64_t nbytes) {
#if defined(__AVX__)
    int64_t i = 0;
    for (; i + 128 <= nbytes; i += 128) {
        const __m256i a = _mm256_load_si256(reinterpret_cast<const __m256i *>(from + i));
        const __m256i b = _mm256_load_si256(reinterpret_cast<const __m256i *>(from + i + 32));
        const __m256i c = _mm256_load_si256(reinterpret_cast<const __m256i *>(from + i + 64));
        const __m256i d = _mm256_load_si256(reinterpret_cast<const __m256i *>(from + i + 96));
        _mm256_stream_si256(reinterpret_cast<__m256i *>(to + i), a);
        _mm256_stream_si256(reinterpret_cast<__m256i *>(to + i + 32), b);
        _mm256_stream_si256(reinterpret_cast<__m256i *>(to + i + 64), c);
        _mm256_stream_si256(reinterpret_cast<__m256i *>(to + i + 96), d);
    }
    std::memcpy(to + i, from + i, static_cast<size_t>(nbytes - i));
    _mm_sfence();
#else
    std::memcpy(to, from, static_cast<size_t>(nbytes));
#endif
}

/* Each thread copies one part, cut at whole cache lines. */
void copy(char *to, const char *from, int64_t nbytes, bool streaming, int threads) {
    const int64_t lines = (nbytes + 255) / 256;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const int64_t t = omp_get_thread_num(), all = omp_get_num_threads();
        const int64_t begin = lines * t / all * 256;
        const int64_t last = lines * (t + 1) / all * 256;
        const int64_t size = (last < nbytes ? last : nbytes) - begin;
        if (size > 0) {
            if (streaming)
                copy_streaming(to + begin, from + begin, size);
            else
                std::memcpy(to + begin, from + begin, static_cast<size_t>(size));
        }
    }
}

float read_all(const float *from, int64_t count, int threads) {
    float total = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1) reduction(+ : total) schedule(static)
    for (int64_t i = 0; i < count; i += 64) {
        Vector sum{};
        for (int64_t j = i; j < i + 64; j += kLanes) {
            Vector v;
            std::memcpy(&v, from + j, sizeof v);
            sum += v;
        }
        for (int k = 0; k < kLanes; ++k) total += sum[k];
    }
    return total;
}

using Flag = std::atomic<uint64_t>;

void wait_for(Flag &flag, uint64_t value) {
    int spins = 0;
    while (flag.load(std::memory_order_acquire) < value)
        if (++spins > kSpinsBeforeYield) sched_yield();
}

/* `count` round trips between two ranks. */
void ping_pong(const kt_context &c, uint32_t peer, uint64_t epoch, int64_t count) {
    Flag *mine = reinterpret_cast<Flag *>(c.signals[c.rank]);
    Flag *theirs = reinterpret_cast<Flag *>(c.signals[peer]);
    const uint64_t first = epoch * static_cast<uint64_t>(count);
    for (int64_t i = 1; i <= count; ++i) {
        const uint64_t value = first + static_cast<uint64_t>(i);
        if (c.rank < peer) {
            theirs->store(value, std::memory_order_release);
            wait_for(*mine, value);
        } else {
            wait_for(*mine, value);
            theirs->store(value, std::memory_order_release);
        }
    }
}

/* Holds the vendor's product against double precision at some places. */
bool product_is_right(const kt_tensor *a, const kt_tensor *b, const kt_tensor *y) {
    const int64_t m = a->shape[0], k = a->shape[1], n = b->shape[1];
    const float *fa = static_cast<const float *>(a->local), *fb = static_cast<const float *>(b->local),
                *fy = static_cast<const float *>(y->local);
    for (int64_t probe = 0; probe < 64; ++probe) {
        const int64_t i = (probe * 7919 + 13) % m, j = (probe * 104729 + 29) % n;
        double sum = 0, scale = 0;
        for (int64_t t = 0; t < k; ++t) {
            const double term = static_cast<double>(fa[i * k + t]) * fb[t * n + j];
            sum += term;
            scale += std::fabs(term);
        }
        if (!(std::fabs(sum - fy[i * n + j]) <= 1e-5 * scale)) return false;
    }
    return true;
}

int gemm(const kt_context &c, const kt_tensor *a, const kt_tensor *b, const kt_tensor *y) {
    const int64_t m = a->shape[0], k = a->shape[1], n = b->shape[1];
    return c.vendor->gemm(c.vendor->self, m, n, k, a->local, k, b->local, n, y->local, n, nullptr);
}

} // namespace

extern "C" int kerneltui_requirements(const kt_named_value *, uint32_t, const kt_named_value *, uint32_t,
                                      uint32_t, uint32_t, kt_requirements *out) {
    out->abi_version = KERNELTUI_ABI_VERSION;
    out->signal_words = 1;
    return 0;
}

extern "C" int kerneltui_setup(const kt_context *context, void **state) {
    State *s = new State{*context, 0, 0, 0, 0};
    s->mode = kt_value(context->tunables, context->tunable_count, "MODE", 0);
    s->count = kt_value(context->tunables, context->tunable_count, "COUNT", 1);
    *state = s;
    if (s->mode != GEMM) return 0;
    for (uint32_t set = 0; set < context->sets; ++set) {
        const kt_tensor *a = kt_find(&context->buffers[set], "A");
        const kt_tensor *b = kt_find(&context->buffers[set], "B");
        const kt_tensor *y = kt_find(&context->buffers[set], "C");
        uint32_t random = 12345 + set + 97 * context->rank;
        for (const kt_tensor *t : {a, b})
            for (uint64_t i = 0; i < t->bytes / 4; ++i) {
                random = random * 1664525u + 1013904223u;
                static_cast<float *>(t->local)[i] = static_cast<float>(random >> 8) / 8388608.0f - 1.0f;
            }
        if (gemm(*context, a, b, y)) return 1;
        if (!product_is_right(a, b, y)) {
            context->fail(context->fail_self, "the vendor's matrix product is wrong on this machine");
            return 2;
        }
    }
    return 0;
}

extern "C" int kerneltui_run(void *state, uint32_t set, uint64_t epoch, void *) {
    State *s = static_cast<State *>(state);
    const kt_context &c = s->c;
    const kt_buffer_set *buffers = &c.buffers[set];
    const int threads = static_cast<int>(c.threads);
    switch (s->mode) {
    case FMA: {
        float total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total) if (threads > 1)
        total += multiply_add(s->count);
        s->sink = total;
        *static_cast<int32_t *>(kt_find(buffers, "WIDTH")->local) = kChains * kLanes;
        return 0;
    }
    case GEMM:
        return gemm(c, kt_find(buffers, "A"), kt_find(buffers, "B"), kt_find(buffers, "C"));
    case COPY:
    case STREAM: {
        const kt_tensor *from = kt_find(buffers, "FROM"), *to = kt_find(buffers, "TO");
        const uint32_t peer = (c.rank + 1) % c.ranks;
        for (int64_t i = 0; i < s->count; ++i)
            copy(static_cast<char *>(to->peers[peer]), static_cast<const char *>(from->local),
                 static_cast<int64_t>(to->bytes), s->mode == STREAM, threads);
        return 0;
    }
    case READ: {
        const kt_tensor *from = kt_find(buffers, "FROM");
        for (int64_t i = 0; i < s->count; ++i)
            s->sink += read_all(static_cast<const float *>(from->local),
                                static_cast<int64_t>(from->bytes / 256 * 64), threads);
        return 0;
    }
    case FLAG: {
        const uint32_t peer = c.rank ^ 1u;
        if (peer < c.ranks) ping_pong(c, peer, epoch, s->count);
        return 0;
    }
    default:
        return 9;
    }
}

extern "C" int kerneltui_teardown(void *state) {
    delete static_cast<State *>(state);
    return 0;
}
