"""Cheats that leave out work: answers that are made up, kept from earlier, rough, or never exchanged."""

from __future__ import annotations

from kerneltui.model.measurement import FailureKind

from .cheat import Cheat
from .pieces import ZEROS, kernel

__all__ = ["RESULT_CHEATS"]

MISMATCH = FailureKind.MISMATCH

RESULT_CHEATS: dict[str, Cheat] = {
    "A2 zeros": Cheat(kernel(ZEROS), (MISMATCH,), r"C\[\d+, \d+\] on rank \d is wrong"),
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
