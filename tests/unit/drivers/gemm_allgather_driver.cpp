/* Runs a gemm_allgather kernel without the real runtime: ranks are forked processes, windows and signals
 * are shared memory, the vendor GEMM and the all-gather are stand-ins, and every call is checked against a
 * product in double precision.
 *
 *   driver KERNEL.so [--ranks P] [--sets S] [--calls C] [--threads T] [--tunable NAME=VALUE]
 *                    [--blas LIB.so] [--bench CALLS] M,N,K [M,N,K ...]
 *
 * There is no barrier between the checked calls and ranks sleep at random, so one rank is often a call
 * ahead. Inputs change in place before every call, the output of the next set is poisoned, and guard bands
 * lie around all symmetric memory. Scratch comes from the heap, so a sanitizer sees its ends.
 *
 * With --bench only spot checks are made and the time of the slowest rank is printed, as
 * `bench M,N,K min MS median MS cpu MS`, cpu being the least CPU time of a call. --blas names a library with `sgemm_` as the vendor GEMM.
 */
#include <kerneltui/kernel.h>

#include <csignal>
#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

namespace {

constexpr size_t guard_bytes = 4096;
constexpr unsigned char guard_value = 0xA5;

struct Options {
    std::string kernel, blas;
    uint32_t ranks = 2, sets = 3, threads = 1;
    int calls = 4, bench = 0;
    std::vector<kt_named_value> tunables;
    std::vector<std::string> tunable_names;
    std::vector<std::vector<int64_t>> shapes;
};

struct Kernel {
    decltype(&kerneltui_requirements) requirements;
    decltype(&kerneltui_setup) setup;
    decltype(&kerneltui_run) run;
    decltype(&kerneltui_teardown) teardown;
};

[[noreturn]] void die(const std::string &reason) {
    std::fprintf(stderr, "driver: %s\n", reason.c_str());
    std::fflush(stderr);
    _exit(2);
}

/* Memory that forked ranks share, with a guard band on both sides. */
struct Shared {
    unsigned char *base = nullptr;
    size_t bytes = 0;

    void *make(size_t size) {
        bytes = size;
        const size_t total = (size + 4095) / 4096 * 4096 + 2 * guard_bytes;
        void *p = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) die("mmap failed");
        base = static_cast<unsigned char *>(p);
        std::memset(base, guard_value, guard_bytes);
        std::memset(base + guard_bytes + size, guard_value, guard_bytes);
        return data();
    }
    void *data() const { return base + guard_bytes; }
    bool intact() const {
        for (size_t i = 0; i < guard_bytes; ++i)
            if (base[i] != guard_value || base[guard_bytes + bytes + i] != guard_value) return false;
        return true;
    }
    void drop() { munmap(base, (bytes + 4095) / 4096 * 4096 + 2 * guard_bytes); }
};

/* What the ranks share beside the windows: a barrier and times. */
struct Board {
    uint64_t arrived, generation;
    double seconds[64];
    double cpu_seconds[64]; /* a busy machine disturbs these less */
};

struct Rank {
    Board *board;
    uint32_t rank, ranks;
    float *gather_area; /* shared, for the stand-in all-gather */
    void (*sgemm)(const char *, const char *, const int *, const int *, const int *, const float *,
                  const float *, const int *, const float *, const int *, const float *, float *, const int *);
    std::string reason;
};

void barrier(Rank &r) {
    const uint64_t mine = __atomic_load_n(&r.board->generation, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&r.board->arrived, 1, __ATOMIC_ACQ_REL) == r.ranks) {
        __atomic_store_n(&r.board->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&r.board->generation, mine + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int spins = 0; __atomic_load_n(&r.board->generation, __ATOMIC_ACQUIRE) == mine; ++spins)
        if (spins > 2000) sched_yield();
}

int vendor_gemm(void *self, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda, const void *b,
                int64_t ldb, void *c, int64_t ldc, void *) {
    const Rank *r = static_cast<const Rank *>(self);
    const float *fa = static_cast<const float *>(a), *fb = static_cast<const float *>(b);
    float *fc = static_cast<float *>(c);
    if (r->sgemm) {
        const int im = int(m), in = int(n), ik = int(k), la = int(lda), lb = int(ldb), lc = int(ldc);
        const float one = 1, zero = 0;
        r->sgemm("N", "N", &in, &im, &ik, &one, fb, &lb, fa, &la, &zero, fc, &lc);
        return 0;
    }
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) fc[i * ldc + j] = 0;
        for (int64_t p = 0; p < k; ++p)
            for (int64_t j = 0; j < n; ++j) fc[i * ldc + j] += fa[i * lda + p] * fb[p * ldb + j];
    }
    return 0;
}

int all_gather(void *self, const void *send, void *recv, const uint64_t *counts, void *) {
    Rank &r = *static_cast<Rank *>(self);
    uint64_t before = 0, total = 0;
    for (uint32_t q = 0; q < r.ranks; ++q) {
        if (q < r.rank) before += counts[q];
        total += counts[q];
    }
    unsigned char *area = reinterpret_cast<unsigned char *>(r.gather_area);
    std::memcpy(area + before, send, counts[r.rank]);
    barrier(r);
    std::memcpy(recv, area, total);
    barrier(r);
    return 0;
}

int host_barrier(void *self, void *) {
    barrier(*static_cast<Rank *>(self));
    return 0;
}

void record(void *self, const char *reason) { static_cast<Rank *>(self)->reason = reason; }

/* A value in [-1, 1) that depends on all arguments. */
float value_at(uint64_t epoch, uint64_t tensor, uint64_t index) {
    uint64_t x = index * 0x9E3779B97F4A7C15ull + epoch * 0xBF58476D1CE4E5B9ull + tensor * 0x94D049BB133111EBull;
    x ^= x >> 31;
    x *= 0xD6E8FEB86659FD93ull;
    x ^= x >> 32;
    return float(int64_t(x & 0xFFFFFF) - 0x800000) / float(0x800000);
}

double cpu_seconds() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

struct Shape {
    int64_t m, n, k;
};

/* Checks entry (i, j) of C; the tolerance is a bound on the rounding of any order of summation. */
bool entry_ok(const Shape &s, uint64_t epoch, const float *b, int64_t i, int64_t j, float got) {
    double want = 0, size = 0;
    for (int64_t p = 0; p < s.k; ++p) {
        const double term = double(value_at(epoch, 1, uint64_t(i * s.k + p))) * b[p * s.n + j];
        want += term;
        size += std::fabs(term);
    }
    return std::fabs(got - want) <= size * double(s.k + 2) * 6e-8 + 1e-30; /* false for NaN, too */
}

struct Memory {
    std::vector<Shared> c;      /* [set * ranks + rank] */
    std::vector<Shared> window; /* [rank], further symmetric memory */
    std::vector<Shared> signals;
    Shared gather, board;
};

int run_rank(const Options &o, const Kernel &kernel, const Shape &s, uint32_t rank,
             const kt_requirements &need, Memory &mem) {
    Rank self{static_cast<Board *>(mem.board.data()), rank, o.ranks, static_cast<float *>(mem.gather.data()),
              nullptr, {}};
    if (!o.blas.empty()) {
        void *lib = dlopen(o.blas.c_str(), RTLD_NOW | RTLD_GLOBAL);
        if (!lib) die(std::string("cannot load the blas: ") + dlerror());
        self.sgemm = reinterpret_cast<decltype(self.sgemm)>(dlsym(lib, "sgemm_"));
        if (!self.sgemm) die("the blas has no sgemm_");
    }
    const int64_t first = kt_first_row(s.m, rank, o.ranks);
    const int64_t rows = kt_first_row(s.m, rank + 1, o.ranks) - first;
    const size_t c_bytes = size_t(s.m * s.n) * 4;

    const kt_named_value dims[] = {{"M", s.m}, {"N", s.n}, {"K", s.k}};
    std::vector<float *> a(o.sets), b(o.sets);
    std::vector<std::vector<void *>> peers(o.sets);
    std::vector<std::vector<kt_tensor>> tensors(o.sets);
    std::vector<kt_buffer_set> sets(o.sets);
    for (uint32_t i = 0; i < o.sets; ++i) {
        a[i] = static_cast<float *>(std::aligned_alloc(64, size_t(rows * s.k * 4 + 63) / 64 * 64 + 64));
        b[i] = static_cast<float *>(std::aligned_alloc(64, size_t(s.k * s.n * 4 + 63) / 64 * 64));
        for (uint32_t q = 0; q < o.ranks; ++q) peers[i].push_back(mem.c[i * o.ranks + q].data());
        tensors[i] = {
            {"A", KT_FLOAT32, KT_INPUT, 2, {rows, s.k}, {first, 0}, uint64_t(rows * s.k * 4), a[i], nullptr, nullptr},
            {"B", KT_FLOAT32, KT_INPUT, 2, {s.k, s.n}, {0, 0}, uint64_t(s.k * s.n * 4), b[i], nullptr, nullptr},
            {"C", KT_FLOAT32, KT_OUTPUT, 2, {s.m, s.n}, {0, 0}, c_bytes, peers[i][rank], peers[i].data(), nullptr},
        };
        sets[i] = {3, tensors[i].data()};
        std::memset(peers[i][rank], 0xFF, c_bytes); /* NaN */
    }
    auto fill = [&](uint32_t set, uint64_t epoch) {
        for (int64_t x = 0; x < rows * s.k; ++x) a[set][x] = value_at(epoch, 1, uint64_t(first * s.k + x));
        for (int64_t x = 0; x < s.k * s.n; ++x) b[set][x] = value_at(epoch, 2, uint64_t(x));
    };

    const kt_vendor vendor{vendor_gemm, &self};
    const kt_host host{all_gather, host_barrier, &self};
    std::vector<void *> windows;
    std::vector<uint64_t *> signals;
    for (uint32_t q = 0; q < o.ranks; ++q) {
        windows.push_back(mem.window[q].data());
        signals.push_back(static_cast<uint64_t *>(mem.signals[q].data()));
    }
    kt_context ctx{};
    ctx.abi_version = KERNELTUI_ABI_VERSION;
    ctx.rank = rank;
    ctx.ranks = o.ranks;
    ctx.threads = o.threads;
    ctx.dimension_count = 3;
    ctx.dimensions = dims;
    ctx.tunable_count = uint32_t(o.tunables.size());
    ctx.tunables = o.tunables.data();
    ctx.sets = o.sets;
    ctx.buffers = sets.data();
    ctx.scratch_bytes = need.scratch_bytes;
    ctx.scratch = std::aligned_alloc(4096, need.scratch_bytes + 4096 - need.scratch_bytes % 4096);
    ctx.window = windows.data();
    ctx.window_bytes = need.window_bytes;
    ctx.signals = signals.data();
    ctx.signal_words = need.signal_words;
    ctx.vendor = &vendor;
    ctx.host = &host;
    ctx.fail = record;
    ctx.fail_self = &self;
    /* The scratch ends on its last byte exactly where the kernel asked for it. */
    void *state = nullptr;
    if (kernel.setup(&ctx, &state)) die("setup failed: " + self.reason);
    barrier(self);

    int bad = 0;
    uint64_t epoch = 0;
    auto check = [&](uint32_t set, int64_t step) {
        const float *c = static_cast<const float *>(peers[set][rank]);
        for (int64_t x = int64_t(epoch) % step; x < s.m * s.n && bad < 5; x += step) {
            if (entry_ok(s, epoch, b[set], x / s.n, x % s.n, c[x])) continue;
            std::fprintf(stderr, "driver: %ld,%ld,%ld rank %u epoch %lu: C[%ld,%ld] = %g is wrong\n", long(s.m),
                         long(s.n), long(s.k), rank, (unsigned long)epoch, long(x / s.n), long(x % s.n), double(c[x]));
            ++bad;
        }
    };
    if (o.bench) {
        for (uint32_t i = 0; i < o.sets; ++i) fill(i, 1);
        std::vector<double> times, cpu_times;
        for (int call = 0; call < o.bench + 3; ++call) {
            const uint32_t set = uint32_t(call) % o.sets;
            barrier(self);
            const auto begin = std::chrono::steady_clock::now();
            const double cpu_begin = cpu_seconds();
            if (kernel.run(state, set, ++epoch, nullptr)) die("run failed: " + self.reason);
            self.board->seconds[rank] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            self.board->cpu_seconds[rank] = cpu_seconds() - cpu_begin;
            barrier(self);
            if (call < 3) continue;
            times.push_back(*std::max_element(self.board->seconds, self.board->seconds + o.ranks));
            cpu_times.push_back(*std::max_element(self.board->cpu_seconds, self.board->cpu_seconds + o.ranks));
        }
        epoch = 1; /* the values */
        check(0, std::max<int64_t>(1, s.m * s.n / 300));
        std::sort(times.begin(), times.end());
        if (rank == 0)
            std::printf("bench %ld,%ld,%ld min %.3f median %.3f cpu %.3f\n", long(s.m), long(s.n), long(s.k),
                        times[0] * 1e3, times[times.size() / 2] * 1e3,
                        *std::min_element(cpu_times.begin(), cpu_times.end()) * 1e3);
    } else {
        /* The set of the next epoch is poisoned and filled before this call: no peer can be there yet. */
        srand(rank * 77 + 5);
        fill(1 % o.sets, 1);
        for (int call = 0; call < o.calls; ++call) {
            const uint32_t set = uint32_t(++epoch) % o.sets;
            if (o.sets > 1) {
                fill(uint32_t(epoch + 1) % o.sets, epoch + 1);
                std::memset(peers[(epoch + 1) % o.sets][rank], 0xFF, c_bytes);
            } else {
                fill(0, epoch);
                std::memset(peers[0][rank], 0xFF, c_bytes);
            }
            if (rand() % 3 == 0) usleep(useconds_t(rand() % 2000));
            if (kernel.run(state, set, epoch, nullptr)) die("run failed: " + self.reason);
            if (rand() % 3 == 0) usleep(useconds_t(rand() % 1000));
            check(set, 1);
        }
    }
    barrier(self);
    if (kernel.teardown(state)) die("teardown failed");
    for (uint32_t i = 0; i < o.sets; ++i) {
        std::free(a[i]);
        std::free(b[i]);
        if (!mem.c[i * o.ranks + rank].intact()) die("the guard band around C is overwritten");
    }
    std::free(ctx.scratch);
    if (!mem.window[rank].intact() || !mem.signals[rank].intact()) die("a guard band is overwritten");
    return bad ? 1 : 0;
}

int run_shape(const Options &o, const Kernel &kernel, const Shape &s) {
    const kt_named_value dims[] = {{"M", s.m}, {"N", s.n}, {"K", s.k}};
    kt_requirements need{};
    for (uint32_t r = 0; r < o.ranks; ++r) {
        kt_requirements one{};
        if (kernel.requirements(dims, 3, o.tunables.data(), uint32_t(o.tunables.size()), r, o.ranks, &one))
            die("requirements failed");
        if (one.abi_version != KERNELTUI_ABI_VERSION) die("wrong abi version");
        need.signal_words = std::max(need.signal_words, one.signal_words);
        need.scratch_bytes = std::max(need.scratch_bytes, one.scratch_bytes);
        need.window_bytes = std::max(need.window_bytes, one.window_bytes);
    }
    Memory mem;
    mem.board.make(sizeof(Board));
    mem.gather.make(size_t(s.m * s.n) * 4);
    for (uint32_t i = 0; i < o.sets * o.ranks; ++i) {
        mem.c.emplace_back();
        mem.c.back().make(size_t(s.m * s.n) * 4);
    }
    for (uint32_t r = 0; r < o.ranks; ++r) {
        mem.window.emplace_back();
        mem.window.back().make(std::max<uint64_t>(need.window_bytes, 64));
        mem.signals.emplace_back();
        mem.signals.back().make(std::max<uint64_t>(need.signal_words, 1) * 8);
    }
    std::fflush(stdout);
    std::vector<pid_t> pids;
    for (uint32_t r = 0; r < o.ranks; ++r) {
        const pid_t pid = fork();
        if (pid < 0) die("fork failed");
        if (pid == 0) {
            if (o.bench) {
                cpu_set_t one;
                CPU_ZERO(&one);
                CPU_SET(r % uint32_t(sysconf(_SC_NPROCESSORS_ONLN)), &one);
                sched_setaffinity(0, sizeof one, &one);
            }
            const int code = run_rank(o, kernel, s, r, need, mem);
            std::fflush(nullptr);
            _exit(code);
        }
        pids.push_back(pid);
    }
    /* A rank that ends badly takes the others with it: they would wait for it for ever. */
    int worst = 0;
    for (size_t left = pids.size(); left > 0; --left) {
        int status = 0;
        if (wait(&status) < 0) break;
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (code && !worst) {
            worst = code;
            if (code != 1)
                for (pid_t pid : pids) kill(pid, SIGKILL);
        }
    }
    mem.board.drop();
    mem.gather.drop();
    for (Shared &x : mem.c) x.drop();
    for (Shared &x : mem.window) x.drop();
    for (Shared &x : mem.signals) x.drop();
    return worst;
}

Options parse(int argc, char **argv) {
    Options o;
    o.tunable_names.reserve(size_t(argc)); /* the names must not move */
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        auto next = [&] {
            if (++i >= argc) die(word + " needs a value");
            return std::string(argv[i]);
        };
        if (word == "--ranks") {
            o.ranks = uint32_t(std::stoi(next()));
        } else if (word == "--sets") {
            o.sets = uint32_t(std::stoi(next()));
        } else if (word == "--threads") {
            o.threads = uint32_t(std::stoi(next()));
        } else if (word == "--calls") {
            o.calls = std::stoi(next());
        } else if (word == "--bench") {
            o.bench = std::stoi(next());
        } else if (word == "--blas") {
            o.blas = next();
        } else if (word == "--tunable") {
            const std::string pair = next();
            const size_t at = pair.find('=');
            if (at == std::string::npos) die("--tunable wants NAME=VALUE");
            o.tunable_names.push_back(pair.substr(0, at));
            o.tunables.push_back({o.tunable_names.back().c_str(), std::stoll(pair.substr(at + 1))});
        } else if (o.kernel.empty()) {
            o.kernel = word;
        } else {
            long m, n, k;
            if (std::sscanf(word.c_str(), "%ld,%ld,%ld", &m, &n, &k) != 3) die("bad shape " + word);
            o.shapes.push_back({m, n, k});
        }
    }
    if (o.kernel.empty() || o.shapes.empty()) die("wants a kernel and at least one M,N,K");
    if (o.ranks < 1 || o.ranks > 64 || o.sets < 1) die("1 to 64 ranks, at least 1 set");
    return o;
}

}  // namespace

int main(int argc, char **argv) {
    const Options o = parse(argc, argv);
    void *lib = dlopen(o.kernel.c_str(), RTLD_NOW);
    if (!lib) die(dlerror());
    Kernel kernel{};
    kernel.requirements = reinterpret_cast<decltype(kernel.requirements)>(dlsym(lib, "kerneltui_requirements"));
    kernel.setup = reinterpret_cast<decltype(kernel.setup)>(dlsym(lib, "kerneltui_setup"));
    kernel.run = reinterpret_cast<decltype(kernel.run)>(dlsym(lib, "kerneltui_run"));
    kernel.teardown = reinterpret_cast<decltype(kernel.teardown)>(dlsym(lib, "kerneltui_teardown"));
    if (!kernel.requirements || !kernel.setup || !kernel.run || !kernel.teardown) die("a contract function is missing");
    for (const auto &shape : o.shapes)
        if (const int code = run_shape(o, kernel, Shape{shape[0], shape[1], shape[2]})) return code;
    return 0;
}
