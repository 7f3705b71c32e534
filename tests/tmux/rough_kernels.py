"""What a scripted model writes on a rough day: kernels that are told apart by any machine, quiet or not.

The product is the slow part of all of them. The seed sums 4 columns at a time; the kernel with which the fast
path lands 16; a diff makes that 64; a rewrite takes the library's product. Each step is faster than the one
before it by half or more, and no step depends on how fast the machine gathers.
"""

from __future__ import annotations

from pathlib import Path

from test_engine_agents import SEED, WINDOW

SHAPE = (256, 256, 1024)
"""A shape whose time is in the product: what else runs on a machine slows gathering down the most."""

_LOOPS = """\
    constexpr int columns = {columns}; /* that are summed at a time */
    for (int64_t i = 0; i < {rows}; ++i)
        for (int64_t j = 0; j < {n}; j += columns) {{
            const float *const from_a = {a} + i * {k};
            const float *const from_b = {b} + j;
            const int wide = {n} - j < columns ? int({n} - j) : columns;
            float sum[columns] = {{}};
            if (wide == columns) {{
                for (int64_t p = 0; p < {k}; ++p)
                    for (int c = 0; c < columns; ++c) sum[c] += from_a[p] * from_b[p * {n} + c];
            }} else {{
                for (int64_t p = 0; p < {k}; ++p)
                    for (int c = 0; c < wide; ++c) sum[c] += from_a[p] * from_b[p * {n} + c];
            }}
            for (int c = 0; c < wide; ++c) {to}[i * {n} + j + c] = sum[c];
        }}
"""


def _between(text: str, begin: str, end: str, new: str) -> str:
    """A text with what stands from `begin` up to `end` replaced."""
    head, rest = text.split(begin, 1)
    return head + new + end + rest.split(end, 1)[1]


PLAIN_SEED = _between(
    SEED,
    "    if (state->m > 0 && ctx->vendor->gemm(",
    "    if (ctx->host->all_gather(",
    _LOOPS.format(
        columns=4, rows="state->m", n="state->n", k="state->k", to="own_rows",
        a="static_cast<const float *>(a->local)", b="static_cast<const float *>(b->local)",
    ),
)  # fmt: skip
LANDED = _between(
    WINDOW,
    "    const kt_vendor *vendor = s.ctx->vendor;",
    "}\n\n// kerneltui: evolve end",
    _LOOPS.format(
        columns=8, rows="rows", n="s.n", k="s.k", to="to", a="(call.a + row * s.k)", b="call.b"
    )
    + "    return 0;\n",
)

SHORT = ("peer.rows - row) * s.n);", "peer.rows - row) * s.n - 1);")
NAMELESS = ("    constexpr int columns = 8;", "    constexpr int columns = no_such_name;")
EARLY = ("peer.fetched < peer.chunks;", "peer.fetched + 1 < peer.chunks;")
BAD = tuple(LANDED.replace(*wrong) for wrong in (SHORT, NAMELESS, EARLY))
"""A float of each chunk that is not fetched, a name that is not there, a chunk that is not fetched."""

FOUND = ("is not a finite number: never written|is wrong",) * 3
"""What the judge is told of each."""


def make_workload(workload: Path) -> None:
    """Makes the plain seed that of a copied workload, which keeps a few of its small shapes."""
    (workload.parents[1] / "kernels" / "gemm_allgather" / "plain.cpp").write_text(PLAIN_SEED)
    file = workload / "workload.toml"
    head, *shapes = file.read_text(encoding="utf-8").split("[[shape]]")
    assert 'seed = "host.cpp"' in head
    kept = [
        shape
        for shape in shapes
        if '"tune"' in shape or any(f"M = {rows}\n" in shape for rows in (127, 3, 193))
    ]
    text = "[[shape]]".join([head.replace('seed = "host.cpp"', 'seed = "plain.cpp"'), *kept])
    file.write_text(text, encoding="utf-8")
