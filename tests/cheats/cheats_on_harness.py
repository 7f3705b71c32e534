"""Cheats on who measures and judges: clocks, replies, work beside the calls, the judge, other ranks."""

from __future__ import annotations

from kerneltui.model.measurement import FailureKind

from .cheat import Cheat
from .pieces import ZEROS, kernel

__all__ = ["HARNESS_CHEATS"]

MISMATCH = FailureKind.MISMATCH
TAMPERING = FailureKind.TAMPERING
ERROR = FailureKind.KERNEL_ERROR
CRASH = FailureKind.CRASH
HANG = FailureKind.HANG

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

HARNESS_CHEATS: dict[str, Cheat] = {
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
            ZEROS,
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
            "forge(); " + ZEROS,
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
            ZEROS + '\nstd::printf("Verification: PASS\\nTime: 0.001 ms\\n"); std::fflush(stdout);'
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
            "else " + ZEROS,
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
            "if (found) honest(s, set, epoch); else " + ZEROS
        ),
        (MISMATCH, CRASH, HANG),  # libraries that were never read come from the disk, page by page
        r"is wrong|crashed|hung",
    ),
    "D5 judge traced": Cheat(
        kernel(
            "long done = -1;\n"
            "for (int pid = 2; pid < 65536 && done; ++pid)\n"
            "    if (judge(pid)) done = ptrace(PTRACE_SEIZE, pid, 0, 0);\n"
            "if (!done) honest(s, set, epoch); else " + ZEROS,
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
            + ZEROS
        ),
        (MISMATCH, CRASH),
        r"is wrong|crashed",
    ),
    "G4 peers killed": Cheat(
        kernel(
            "kill(getppid(), SIGKILL);\nkill(getpid() + (rank == 0 ? 1 : -1), SIGSTOP);\n" + ZEROS,
            includes="#include <signal.h>\n#include <unistd.h>",
        ),
        (MISMATCH, CRASH, ERROR),
        r"is wrong|crashed|failed",
    ),
}
