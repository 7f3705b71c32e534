"""Kernels that look suspicious and are honest: they must stay green."""

from __future__ import annotations

from .pieces import kernel

__all__ = ["HONEST"]

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
