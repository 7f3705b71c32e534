/* The timing harness of the CPU; what all harnesses share stands before this text.
 *
 * It is linked with immediate binding, so that the clock functions are resolved before any kernel is
 * loaded.
 */
#include <algorithm>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace {

uint64_t ticks() {
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t value;
    asm volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
    return 0;
#endif
}

struct Moment {
    uint64_t ns, ticks;
};

constexpr int kLooks = 8;
uint64_t close_ticks = 15000; /* about 5 us; `ht_tick_rate` sets it */

/* Both clocks at one moment: read again where something came between the two readings. */
Moment moment() {
    Moment found{};
    for (int look = 0; look < kLooks; ++look) {
        const uint64_t before = ticks();
        found.ns = now_ns();
        const uint64_t apart = ticks() - before;
        found.ticks = before + apart / 2;
        if (apart <= close_ticks) break;
    }
    return found;
}

using Sgemm = void (*)(const char *, const char *, const int *, const int *, const int *, const float *,
                       const float *, const int *, const float *, const int *, const float *, float *,
                       const int *);
using Dgemm = void (*)(const char *, const char *, const int *, const int *, const int *, const double *,
                       const double *, const int *, const double *, const int *, const double *, double *,
                       const int *);

/* BLAS takes column-major operands and 32-bit sizes: C = A*B in row-major order is the column-major
 * product with the operands swapped. */
template <typename T, typename F>
int row_major(F function, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda, const void *b,
              int64_t ldb, void *c, int64_t ldc) {
    constexpr int64_t largest = 0x7fffffff;
    if (m < 0 || n < 0 || k < 0 || m > largest || n > largest || k > largest || lda > largest ||
        ldb > largest || ldc > largest)
        return 2;
    if (m == 0 || n == 0) return 0;
    const int rows = static_cast<int>(n), columns = static_cast<int>(m), inner = static_cast<int>(k);
    const int la = static_cast<int>(lda), lb = static_cast<int>(ldb), lc = static_cast<int>(ldc);
    const T one = 1, zero = 0;
    function("N", "N", &rows, &columns, &inner, &one, static_cast<const T *>(b), &lb,
             static_cast<const T *>(a), &la, &zero, static_cast<T *>(c), &lc);
    return 0;
}

} // namespace

extern "C" {

struct ht_vendor {
    Sgemm sgemm;
    Dgemm dgemm;
    int32_t dtype;
};

/* The kt_vendor.gemm of the CPU. 3: there is no vendor function for this dtype. */
int ht_gemm(void *self, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda, const void *b,
            int64_t ldb, void *c, int64_t ldc, void *) {
    const ht_vendor *vendor = static_cast<const ht_vendor *>(self);
    if (vendor->dtype == KT_FLOAT32) return row_major<float>(vendor->sgemm, m, n, k, a, lda, b, ldb, c, ldc);
    if (vendor->dtype == KT_FLOAT64) return row_major<double>(vendor->dgemm, m, n, k, a, lda, b, ldb, c, ldc);
    return 3;
}

struct ht_sample {
    /* in */
    int (*run)(void *, uint32_t, uint64_t, void *);
    void *state;
    void *control;
    uint32_t rank;
    uint32_t ranks;
    uint32_t sets;
    uint32_t first_set;
    uint64_t calls;
    uint64_t epoch;
    uint64_t gate;     /* grows with every sample */
    uint64_t delay_ns; /* between gate and start */
    uint64_t deadline_ns;
    /* out */
    uint64_t *ends_ns; /* room for `calls` */
    uint64_t start_ns;
    uint64_t ticks;
    uint64_t cpu_ns;
    int64_t minor_faults;
    int64_t involuntary_switches;
    int32_t code;         /* what a failed run returned */
    uint32_t late_rank;   /* who did not come to the gate */
    uint64_t failed_call; /* which call failed */
};

static int pass_gate(ht_sample *s) {
    if (!meet(s->control, s->rank, s->ranks, s->gate, s->deadline_ns, &s->late_rank)) return HT_LATE;
    if (s->delay_ns) {
        const uint64_t until = now_ns() + s->delay_ns;
        while (now_ns() < until) relax();
    }
    return HT_DONE;
}

int ht_take_sample(ht_sample *s, ht_failure *failure) {
    Slot &slot = static_cast<Slot *>(s->control)[s->rank];
    /* The array of ends is written once before the clock runs: no page fault inside. */
    std::memset(s->ends_ns, 0, s->calls * sizeof(uint64_t));
    rusage before, after;
    if (pass_gate(s) != HT_DONE) return HT_LATE;
    getrusage(RUSAGE_SELF, &before);
    const uint64_t cpu = process_cpu_ns();
    const Moment start = moment();
    Moment end = start;
    s->start_ns = start.ns;
    uint32_t set = s->first_set;
    for (uint64_t i = 0; i < s->calls; ++i) {
        slot.begun.store(s->epoch + i + 1, std::memory_order_relaxed);
        const int result = guarded([&] { return s->run(s->state, set, s->epoch + i, nullptr); }, &s->code, failure);
        s->ends_ns[i] = i + 1 < s->calls ? now_ns() : (end = moment()).ns;
        slot.finished.store(s->epoch + i + 1, std::memory_order_relaxed);
        if (result != HT_DONE) {
            s->failed_call = i;
            return result;
        }
        if (++set == s->sets) set = 0;
    }
    s->ticks = end.ticks - start.ticks;
    s->cpu_ns = process_cpu_ns() - cpu;
    getrusage(RUSAGE_SELF, &after);
    s->minor_faults = after.ru_minflt - before.ru_minflt;
    s->involuntary_switches = after.ru_nivcsw - before.ru_nivcsw;
    return HT_DONE;
}

/* Flags, for kernels that are not written in C. */
void ht_raise(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

void ht_wait(const uint64_t *word, uint64_t value) {
    for (int spins = 0; __atomic_load_n(word, __ATOMIC_ACQUIRE) < value;)
        ++spins < kSpinsBeforeYield ? relax() : static_cast<void>(sched_yield());
}

/* Cycles of the counter per second, of CLOCK_MONOTONIC; 0 where there is no counter. The median of three
 * spans of `span_ns`. */
double ht_tick_rate(uint64_t span_ns) {
    double rates[3];
    for (double &rate : rates) {
        const Moment start = moment();
        Moment end = start;
        while (end.ns - start.ns < span_ns) end = moment();
        rate = static_cast<double>(end.ticks - start.ticks) * 1e9 / static_cast<double>(end.ns - start.ns);
    }
    std::sort(rates, rates + 3);
    if (rates[1] > 0) close_ticks = static_cast<uint64_t>(rates[1] * 5e-6) + 1;
    return rates[1];
}

} /* extern "C" */
