/* What the timing harnesses of all targets share: trusted code that is loaded into every rank before
 * the kernel. This text stands in front of the harness of the target and is compiled with it.
 *
 * A harness never looks up a symbol of the kernel: it gets the addresses of its functions and calls them.
 */
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include <sched.h>
#include <sys/resource.h>
#include <time.h>

#include "kerneltui/kernel.h"

namespace {

constexpr int kSpinsBeforeYield = 20000; /* about 50 to 100 us; then give the core to a late rank */

/* One per rank in the control page, on cache lines of its own. The engine reads it when a rank hangs. */
struct alignas(128) Slot {
    std::atomic<uint64_t> gate;
    std::atomic<uint64_t> begun;    /* epoch of the call that began last, plus one */
    std::atomic<uint64_t> finished; /* epoch of the call that finished last, plus one */
    std::atomic<uint64_t> held;     /* gate at which everything is enqueued and nothing has begun */
    std::atomic<uint64_t> go_on;    /* the engine: gate that may open after that */
};
static_assert(sizeof(Slot) == 128, "the engine reads slots of 128 bytes");

uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

uint64_t process_cpu_ns() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

/* Waits for all ranks at the gate of this number, which grows. False at the deadline. */
bool meet(void *control, uint32_t rank, uint32_t ranks, uint64_t gate, uint64_t deadline_ns,
          uint32_t *late_rank) {
    Slot *slots = static_cast<Slot *>(control);
    slots[rank].gate.store(gate, std::memory_order_release);
    int spins = 0;
    for (uint32_t r = 0; r < ranks; ++r) {
        while (slots[r].gate.load(std::memory_order_acquire) < gate) {
            if (++spins < kSpinsBeforeYield) {
                relax();
            } else {
                sched_yield();
                if (now_ns() > deadline_ns) {
                    *late_rank = r;
                    return false;
                }
            }
        }
    }
    return true;
}

} // namespace

extern "C" {

/* The last four are of GPUs alone. */
enum {
    HT_DONE = 0,
    HT_RETURNED = 1,
    HT_THREW = 2,
    HT_NO_MEMORY = 3,
    HT_LATE = 4,
    HT_CUDA = 5,
    HT_HUNG = 6,
    HT_UNSETTLED = 7,
    HT_OUT_OF_ORDER = 8
};

struct ht_failure {
    char text[1024];
    uint32_t set;
};

/* The kt_context.fail: keeps the first reason. */
void ht_fail(void *self, const char *reason) {
    ht_failure *failure = static_cast<ht_failure *>(self);
    if (failure->set || !reason) return;
    failure->set = 1;
    std::snprintf(failure->text, sizeof failure->text, "%s", reason);
}

} /* extern "C" */

namespace {

/* Calls a function of a kernel with care for what it throws. */
template <typename Call>
int guarded(Call call, int *code, ht_failure *failure) {
    try {
        *code = call();
    } catch (const std::bad_alloc &) {
        return HT_NO_MEMORY;
    } catch (const std::exception &error) {
        ht_fail(failure, error.what());
        return HT_THREW;
    } catch (...) {
        ht_fail(failure, "something that is no std::exception");
        return HT_THREW;
    }
    return *code ? HT_RETURNED : HT_DONE;
}

} // namespace

extern "C" {

int ht_setup(int (*setup)(const kt_context *, void **), const kt_context *context, void **state, int *code,
             ht_failure *failure) {
    return guarded([&] { return setup(context, state); }, code, failure);
}

int ht_teardown(int (*teardown)(void *), void *state, int *code, ht_failure *failure) {
    return guarded([&] { return teardown(state); }, code, failure);
}

} /* extern "C" */

