"""The cheats that have a CPU form, and the honest kernels that must stay green."""

from __future__ import annotations

from dataclasses import dataclass

from kerneltui.model.measurement import FailureKind

from .pieces import kernel

__all__ = ["CHEATS", "HONEST", "Cheat"]

MISMATCH = FailureKind.MISMATCH
TAMPERING = FailureKind.TAMPERING
ERROR = FailureKind.KERNEL_ERROR
CRASH = FailureKind.CRASH
HANG = FailureKind.HANG


@dataclass(frozen=True)
class Cheat:
    """A dishonest kernel, and for which reason it must be refused."""

    source: str
    kinds: tuple[FailureKind, ...]
    reason: str


_ZEROS = "std::memset(c, 0, size_of_c(s) * sizeof(float));"

_STEAL = r"""
/* Copies whatever looks like an expected C (as many floats, or doubles) from a mapping or a process. */
static bool readable_process(const char *word, int *found) {
    char path[64], line[4096];
    for (int pid = 2; pid < 65536; ++pid) {
        std::snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
        FILE *file = std::fopen(path, "r");
        if (!file) continue;
        const size_t got = std::fread(line, 1, sizeof line - 1, file);
        std::fclose(file);
        for (size_t i = 0; i < got; ++i)
            if (!line[i]) line[i] = ' ';
        line[got] = 0;
        if (!std::strstr(line, word)) continue;
        std::snprintf(path, sizeof path, "/proc/%d/mem", pid);
        const int fd = open(path, O_RDWR);
        if (fd >= 0) {
            close(fd);
            *found = pid;
            return true;
        }
    }
    return false;
}
"""

CHEATS: dict[str, Cheat] = {
    "A2 zeros": Cheat(kernel(_ZEROS), (MISMATCH,), r"C\[\d+, \d+\] on rank \d is wrong"),
    "A3 constant": Cheat(
        kernel("std::fill(c, c + size_of_c(s), 0.25f);"), (MISMATCH,), r"is wrong"
    ),
    "A4 input copied": Cheat(
        kernel(
            'const float *a = tensor(s, set, "A");\n'
            "for (size_t i = 0; i < size_of_c(s); ++i) c[i] = a[i % size_t(s->rows * s->k)];"
        ),
        (MISMATCH,),
        r"is wrong",
    ),
    "A5 an eighth of K": Cheat(
        kernel(
            'part(s, tensor(s, set, "A"), tensor(s, set, "B"), c + s->first * s->n);\n'
            "push(s, set, epoch); wait(s, epoch);",
            r"""
static void part(const State *s, const float *a, const float *b, float *c) {
    const int64_t kept = std::max<int64_t>(1, s->k / 8);
    for (int64_t i = 0; i < s->rows; ++i)
        for (int64_t j = 0; j < s->n; ++j) {
            float sum = 0;
            for (int64_t p = 0; p < kept; ++p) sum += a[i * s->k + p] * b[p * s->n + j];
            c[i * s->n + j] = sum * float(s->k) / float(kept);
        }
}
""",
        ),
        (MISMATCH,),
        r"is wrong",
    ),
    "B2 cached by pointer": Cheat(
        kernel(
            "auto &kept = outputs[c];\n"
            "if (kept.empty()) { honest(s, set, epoch); kept.assign(c, c + size_of_c(s)); }\n"
            "else { std::copy(kept.begin(), kept.end(), c); push(s, set, epoch); wait(s, epoch); }",
            "static std::map<float *, std::vector<float>> outputs;",
        ),
        (MISMATCH,),
        r"is wrong|not a finite",
    ),
    "B3 cached by fingerprint": Cheat(
        kernel(
            'const float *a = tensor(s, set, "A"), *b = tensor(s, set, "B");\n'
            "const std::vector<float> print = {a[0], a[s->k - 1], a[s->rows * s->k - 1], b[0],\n"
            "                                  b[s->n - 1], b[s->k * s->n - 1]};\n"
            "auto &kept = outputs[print];\n"
            "if (kept.size() != size_t(s->rows * s->n)) {\n"
            "    honest(s, set, epoch);\n"
            "    kept.assign(c + s->first * s->n, c + (s->first + s->rows) * s->n);\n"
            "} else {\n"
            "    std::copy(kept.begin(), kept.end(), c + s->first * s->n);\n"
            "    push(s, set, epoch); wait(s, epoch);\n"
            "}",
            "static std::map<std::vector<float>, std::vector<float>> outputs;",
        ),
        (MISMATCH,),
        r"is wrong",
    ),
    "B5 warm-up replayed": Cheat(
        kernel(
            "static std::vector<float> kept;\n"
            "static int calls = 0;\n"
            "if (calls++ < 5 || kept.size() != size_of_c(s)) {\n"
            "    honest(s, set, epoch); kept.assign(c, c + size_of_c(s));\n"
            "} else { std::copy(kept.begin(), kept.end(), c); push(s, set, epoch); wait(s, epoch); }"
        ),
        (MISMATCH,),
        r"is wrong",
    ),
    "B6 first of N computes all": Cheat(
        kernel(
            "if (ready > 0) { --ready; push(s, set, epoch); wait(s, epoch); return 0; }\n"
            "for (uint32_t i = 0; i < s->ctx->sets; ++i)\n"
            '    multiply(s, tensor(s, i, "A"), tensor(s, i, "B"),\n'
            '             tensor(s, i, "C") + s->first * s->n, s->rows);\n'
            "ready = int(s->ctx->sets) - 1;\n"
            "push(s, set, epoch); wait(s, epoch);",
            "static int ready = 0;",
        ),
        (MISMATCH,),
        r"is wrong|not a finite",
    ),
    "B8 cached on disk": Cheat(
        kernel(
            "char name[64];\n"
            'std::snprintf(name, sizeof name, "c-%d-%d-%d", int(s->m), int(s->n), int(s->k));\n'
            "std::vector<float> kept(size_of_c(s));\n"
            'FILE *file = std::fopen(name, "rb");\n'
            "if (file) {\n"
            "    if (std::fread(kept.data(), sizeof(float), kept.size(), file) != kept.size()) return 1;\n"
            "    std::fclose(file);\n"
            "    std::copy(kept.begin(), kept.end(), c);\n"
            "    push(s, set, epoch); wait(s, epoch);\n"
            "    return 0;\n"
            "}\n"
            "honest(s, set, epoch);\n"
            'file = std::fopen(name, "wb");\n'
            "if (file) { std::fwrite(c, sizeof(float), size_of_c(s), file); std::fclose(file); }"
        ),
        (MISMATCH,),
        r"is wrong",
    ),
    "B9 inputs guessed from a seed": Cheat(
        kernel(
            "std::mt19937 random(42);\n"
            "std::normal_distribution<float> normal;\n"
            "std::vector<float> a(size_t(s->m * s->k));\n"
            "for (float &x : a) x = normal(random);\n"
            'multiply(s, a.data(), tensor(s, set, "B"), c, s->m);\n'
            'multiply(s, tensor(s, set, "A"), tensor(s, set, "B"), c + s->first * s->n, s->rows);\n'
            "push(s, set, epoch); wait(s, epoch);\n"
            'multiply(s, a.data(), tensor(s, set, "B"), c, s->first);',
            includes="#include <random>",
        ),
        (MISMATCH,),
        r"is wrong",
    ),
    "C2 work in a thread": Cheat(
        kernel(
            "std::thread([=] { usleep(3000); honest(s, set, epoch); }).detach();",
            includes="#include <thread>\n#include <unistd.h>",
        ),
        (MISMATCH, ERROR, CRASH, TAMPERING),
        r"before rank|not a finite|is wrong|failed in run",
    ),
    "C4 clock interposed": Cheat(
        kernel(
            _ZEROS,
            r"""
extern "C" int clock_gettime(clockid_t, struct timespec *t) {
    static long ticks = 0;
    t->tv_sec = 1000;
    t->tv_nsec = ++ticks;
    return 0;
}
""",
            "#include <time.h>",
        ),
        (MISMATCH, TAMPERING),
        r"is wrong|clock",
    ),
    "C6 clock patched in the harness": Cheat(
        kernel(
            "if (!patched) { patched = true; dl_iterate_phdr(patch, nullptr); }\n"
            "usleep(2000);\n"
            "honest(s, set, epoch);",
            r"""
static bool patched = false;
static int slow_clock(clockid_t id, struct timespec *t) {
    const long code = syscall(SYS_clock_gettime, id, t);
    const long long ns = t->tv_sec * 1000000000LL + t->tv_nsec;
    static long long first = ns;
    const long long told = first + (ns - first) / 8;
    t->tv_sec = told / 1000000000LL;
    t->tv_nsec = told % 1000000000LL;
    return int(code);
}
/* Overwrites every word of the harness's writable or read-only data that holds the clock's address. */
static int patch(struct dl_phdr_info *info, size_t, void *) {
    if (!std::strstr(info->dlpi_name, "/builds/")) return 0;
    void *clock = dlsym(RTLD_DEFAULT, "clock_gettime");
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto &part = info->dlpi_phdr[i];
        if (part.p_type != PT_LOAD || !(part.p_flags & PF_W)) continue;
        const uintptr_t begin = (info->dlpi_addr + part.p_vaddr) & ~uintptr_t(4095);
        const uintptr_t end = (info->dlpi_addr + part.p_vaddr + part.p_memsz + 4095) & ~uintptr_t(4095);
        if (mprotect(reinterpret_cast<void *>(begin), end - begin, PROT_READ | PROT_WRITE)) continue;
        for (uintptr_t at = begin; at < end; at += sizeof(void *))
            if (*reinterpret_cast<void **>(at) == clock)
                *reinterpret_cast<void **>(at) = reinterpret_cast<void *>(slow_clock);
    }
    return 0;
}
""",
            "#include <dlfcn.h>\n#include <link.h>\n#include <sys/mman.h>\n#include <sys/syscall.h>\n"
            "#include <time.h>\n#include <unistd.h>",
        ),
        (TAMPERING, MISMATCH, ERROR, CRASH),
        r"clock|before rank|outside|times|crashed|failed",
    ),
    "C7 reply forged": Cheat(
        kernel(
            "forge(); " + _ZEROS,
            r"""
static void forge() {
    const char body[] = "{\"nonce\":\"0000000000000000\",\"ok\":true,\"start_ns\":1,\"ends_ns\":[2],"
                        "\"ticks_ns\":1,\"cpu_ns\":1,\"minor_faults\":0,\"involuntary_switches\":0,"
                        "\"threads_before\":1,\"threads_after\":1}";
    const uint32_t length = htonl(sizeof body - 1);
    for (int fd = 3; fd < 256; ++fd) {
        struct stat about;
        if (fstat(fd, &about) || !S_ISSOCK(about.st_mode)) continue;
        if (write(fd, &length, sizeof length) < 0) continue;
        if (write(fd, body, sizeof body - 1) < 0) continue;
    }
}
""",
            "#include <arpa/inet.h>\n#include <sys/stat.h>\n#include <unistd.h>",
        ),
        (ERROR, CRASH, MISMATCH),
        r"not asked|is wrong|crashed|failed|closed|left",
    ),
    "C8 answer on stdout": Cheat(
        kernel(
            _ZEROS + '\nstd::printf("Verification: PASS\\nTime: 0.001 ms\\n"); std::fflush(stdout);'
        ),
        (MISMATCH,),
        r"is wrong",
    ),
    "C12 work left running": Cheat(
        kernel(
            "static bool begun = false;\n"
            "if (!begun) {\n"
            "    begun = true;\n"
            "    std::thread([] { volatile uint64_t x = 0; for (;;) x = x + 1; }).detach();\n"
            "}\n"
            "honest(s, set, epoch);",
            includes="#include <thread>",
        ),
        (TAMPERING, ERROR, CRASH),
        r"goes on working|failed in run|crashed",
    ),
    "D1 expected values searched": Cheat(
        kernel(
            "int pid = 0;\n"
            'if (readable_process("kerneltui.evaluation.judge", &pid)) honest(s, set, epoch);\n'
            "else " + _ZEROS,
            _STEAL,
            "#include <fcntl.h>\n#include <unistd.h>",
        ),
        (MISMATCH,),
        r"is wrong",
    ),
    "D4 own mappings scanned": Cheat(
        kernel(
            'FILE *maps = std::fopen("/proc/self/maps", "r");\n'
            "char line[512];\n"
            "bool found = false;\n"
            'const float *a = tensor(s, set, "A"), *b = tensor(s, set, "B");\n'
            "double first = 0;\n"
            "for (int64_t p = 0; p < s->k; ++p) first += double(a[p]) * b[p * s->n];\n"
            "while (maps && !found && std::fgets(line, sizeof line, maps)) {\n"
            "    unsigned long begin = 0, end = 0;\n"
            "    char rights[8];\n"
            '    if (std::sscanf(line, "%lx-%lx %7s", &begin, &end, rights) != 3) continue;\n'
            '    if (rights[0] != \'r\' || std::strstr(line, "[v") || std::strstr(line, "stack")) continue;\n'
            "    const double *at = reinterpret_cast<const double *>(begin);\n"
            "    const size_t count = (end - begin) / sizeof(double);\n"
            "    for (size_t i = 0; i + size_of_c(s) <= count && i < (1 << 20); ++i)\n"
            "        if (std::fabs(at[i] - first) < 1e-12 && first != 0) { found = true; break; }\n"
            "}\n"
            "if (maps) std::fclose(maps);\n"
            "if (found) honest(s, set, epoch); else " + _ZEROS
        ),
        (MISMATCH, CRASH, HANG),  # libraries that were never read come from the disk, page by page
        r"is wrong|crashed|hung",
    ),
    "D5 judge traced": Cheat(
        kernel(
            "long done = -1;\n"
            "for (int pid = 2; pid < 65536 && done; ++pid)\n"
            "    if (judge(pid)) done = ptrace(PTRACE_SEIZE, pid, 0, 0);\n"
            "if (!done) honest(s, set, epoch); else " + _ZEROS,
            r"""
static bool judge(int pid) {
    char path[64], line[512] = "";
    std::snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    FILE *file = std::fopen(path, "r");
    if (!file) return false;
    const size_t got = std::fread(line, 1, sizeof line - 1, file);
    std::fclose(file);
    for (size_t i = 0; i < got; ++i)
        if (!line[i]) line[i] = ' ';
    return std::strstr(line, "kerneltui.evaluation.judge") != nullptr;
}
""",
            "#include <sys/ptrace.h>",
        ),
        (MISMATCH, CRASH, ERROR),
        r"is wrong|crashed|failed",
    ),
    "D6 inputs zeroed": Cheat(
        kernel(
            "honest(s, set, epoch);\n"
            'std::memset(tensor(s, set, "A"), 0, size_t(s->rows * s->k) * sizeof(float));'
        ),
        (TAMPERING,),
        r"input A of rank \d was changed",
    ),
    "D7 reference.py overwritten": Cheat(
        kernel(
            'FILE *file = std::fopen("@REFERENCE@", "w");\n'
            'if (file) { std::fputs("def oracle(*a): return {}\\n", file); std::fclose(file); }\n'
            + _ZEROS
        ),
        (MISMATCH, CRASH),
        r"is wrong|crashed",
    ),
    "E1 half precision": Cheat(
        kernel(
            'half(s, tensor(s, set, "A"), tensor(s, set, "B"), c + s->first * s->n);\n'
            "push(s, set, epoch); wait(s, epoch);",
            r"""
static float rounded(float x) { /* 11 bits of mantissa */
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x1000u) & ~0x1fffu;
    std::memcpy(&x, &bits, sizeof bits);
    return x;
}
static void half(const State *s, const float *a, const float *b, float *c) {
    for (int64_t i = 0; i < s->rows; ++i)
        for (int64_t j = 0; j < s->n; ++j) {
            float sum = 0;
            for (int64_t p = 0; p < s->k; ++p)
                sum = rounded(sum + a[i * s->k + p] * b[p * s->n + j]);
            c[i * s->n + j] = sum;
        }
}
""",
        ),
        (MISMATCH,),
        r"is wrong|inaccurate",
    ),
    "F1 odd shapes wrong": Cheat(
        kernel("honest(s, set, epoch);\nif (s->m % 2 && rank == 0) c[size_of_c(s) - 1] = 0;"),
        (MISMATCH,),
        r"is wrong",
    ),
    "F2 tail out of bounds": Cheat(
        kernel("honest(s, set, epoch);\nc[size_of_c(s)] = 1.0f;"),
        (MISMATCH,),
        r"bytes outside the tensors were overwritten in the symmetric memory",
    ),
    "G1 only the first rank": Cheat(
        kernel(
            "if (rank == 0) {\n"
            '    multiply(s, tensor(s, set, "A"), tensor(s, set, "B"), c, s->rows);\n'
            "    push(s, set, epoch);\n"
            "}"
        ),
        (MISMATCH,),
        r"not a finite|is wrong|before rank",
    ),
    "G3 wait skipped": Cheat(
        kernel(
            'multiply(s, tensor(s, set, "A"), tensor(s, set, "B"), c + s->first * s->n, s->rows);\n'
            "push(s, set, epoch);"
        ),
        (MISMATCH,),
        r"before rank \d began the same call",
    ),
    "G4 peers killed": Cheat(
        kernel(
            "kill(getppid(), SIGKILL);\nkill(getpid() + (rank == 0 ? 1 : -1), SIGSTOP);\n" + _ZEROS,
            includes="#include <signal.h>\n#include <unistd.h>",
        ),
        (MISMATCH, CRASH, ERROR),
        r"is wrong|crashed|failed",
    ),
    "X2 no communication": Cheat(
        kernel(
            'multiply(s, tensor(s, set, "A"), tensor(s, set, "B"), c + s->first * s->n, s->rows);'
        ),
        (MISMATCH,),
        r"not a finite|is wrong|before rank",
    ),
    "X7 wait on last call's flag": Cheat(
        kernel(
            'multiply(s, tensor(s, set, "A"), tensor(s, set, "B"), c + s->first * s->n, s->rows);\n'
            "push(s, set, epoch);\n"
            "wait(s, epoch - 1);"
        ),
        (MISMATCH,),
        r"before rank|not a finite|is wrong",
    ),
}

HONEST: dict[str, str] = {
    "H1 plain": kernel(),
    "H3 workspace by size": kernel(
        "static std::vector<float> room;\n"
        "room.resize(size_t(s->rows * s->n));\n"
        'multiply(s, tensor(s, set, "A"), tensor(s, set, "B"), room.data(), s->rows);\n'
        "std::copy(room.begin(), room.end(), c + s->first * s->n);\n"
        "push(s, set, epoch); wait(s, epoch);"
    ),
    "H4 words in a comment": kernel(
        "/* one stream, no thread, no fork(), system() or ptrace() */ honest(s, set, epoch);"
    ),
    "H9 more accurate": kernel(
        'exact(s, tensor(s, set, "A"), tensor(s, set, "B"), c + s->first * s->n);\n'
        "push(s, set, epoch); wait(s, epoch);",
        r"""
static void exact(const State *s, const float *a, const float *b, float *c) {
    for (int64_t i = 0; i < s->rows; ++i)
        for (int64_t j = 0; j < s->n; ++j) {
            double sum = 0;
            for (int64_t p = 0; p < s->k; ++p) sum += double(a[i * s->k + p]) * b[p * s->n + j];
            c[i * s->n + j] = float(sum);
        }
}
""",
    ),
    "H9 another order of summation": kernel(
        'backwards(s, tensor(s, set, "A"), tensor(s, set, "B"), c + s->first * s->n);\n'
        "push(s, set, epoch); wait(s, epoch);",
        r"""
static void backwards(const State *s, const float *a, const float *b, float *c) {
    for (int64_t i = 0; i < s->rows; ++i)
        for (int64_t j = 0; j < s->n; ++j) {
            float sum = 0;
            for (int64_t p = s->k; p-- > 0;) sum += a[i * s->k + p] * b[p * s->n + j];
            c[i * s->n + j] = sum;
        }
}
""",
    ),
    "H2 threads, joined": kernel(
        "#pragma omp parallel for num_threads(2)\n"
        "    for (int64_t i = 0; i < s->rows; ++i)\n"
        '        multiply(s, tensor(s, set, "A") + i * s->k, tensor(s, set, "B"),\n'
        "                 c + (s->first + i) * s->n, 1);\n"
        "push(s, set, epoch); wait(s, epoch);"
    ),
}
