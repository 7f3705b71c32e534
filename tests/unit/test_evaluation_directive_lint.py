"""Every rule about the directive: what it finds, and the nearest text that it must leave alone."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerneltui.evaluation.directive_lint import DIRECTIVE_RULES, lint_directive
from kerneltui.model.directive import Backend, Directive, Issuer, Placement, Sync
from kerneltui.model.kernel import Kernel, TunableKind, parse_kernel
from kerneltui.model.workload_file import load_workload
from kerneltui.targets.cuda.finding import Level

ROOT = Path(__file__).parents[2]
KERNELS = sorted(
    path for path in (ROOT / "kernels").rglob("*") if path.suffix in (".cpp", ".cu", ".py")
)
SHAPE = {"M": 4096, "N": 4096, "K": 4096, "RANKS": 2}
LSA = Directive(Backend.LSA, Placement.SEQUENTIAL, Sync.FLAG_PER_CHUNK, Issuer.THREAD, 0)
CHUNKED = replace(LSA, chunk_bytes=65536)
COPY = "cudaMemcpyAsync({to}, {source}, {size}, cudaMemcpyDeviceToDevice, stream);"
TELL = "__atomic_store_n(signals[q], epoch, __ATOMIC_RELEASE);"


def run(body: str, head: str = "") -> str:
    return f"{head}int run(const State &s, const Tensor *c, Stream stream) {{\n{body}\n}}\n"


def copies(size: str, loop: str = "for (int q : s.peers)", offset: str = "offset") -> str:
    to, source = f"(char *)c->peers[q] + {offset}", f"(char *)c->local + {offset}"
    return (
        "const uint64_t offset = uint64_t(s.first_row) * s.row_bytes;\n"
        "const uint64_t bytes = uint64_t(s.rows) * s.row_bytes;\n"
        f"{loop} {{\n{COPY.format(to=to, source=source, size=size)}\n{TELL}\n}}"
    )


# By name, with the rule first: what it finds, the nearest text that it leaves alone, the directive.
CASES: dict[str, tuple[str, str, Directive]] = {
    "D01": (run("c->local[0] = 1;"), run("c->peers[1][0] = 1; s.signals[1][0] = 1;"), LSA),
    "D02": (
        run(f"ctx->host->all_gather(ctx->host->self, a, b, n, stream); c->peers[q][0] = 1; {TELL}"),
        run(f"/* ctx->host->all_gather() */ c->peers[q][0] = 1; {TELL}"),
        LSA,
    ),
    "D02 nccl": (
        run(f"ncclAllGather(a, b, n, t, comm, stream); c->peers[q][0] = 1; {TELL}"),
        run(f"ncclGetLsaPointer(w, 0, q); {TELL}"),
        LSA,
    ),
    "D03": (
        run("c->peers[1][0] = 1;"),
        run("c->peers[1][0] = 1; ctx->host->barrier(ctx->host->self, stream);"),
        replace(LSA, backend=Backend.HOST),
    ),
    "D04": (
        run(f"push<<<1, 32>>>(c->peers[q]); {TELL}"),
        run(f"cudaMemcpy2DAsync(c->peers[q], p, c->local, p, w, h, d, stream); {TELL}"),
        replace(LSA, backend=Backend.COPY_ENGINE),
    ),
    "D05": (
        run(f"c->peers[q][0] = 1; {TELL}"),
        run("ncclGin gin(comm, 0);"),
        replace(LSA, backend=Backend.GIN),
    ),
    "D06": (run(copies("bytes")), run(copies("std::min(bytes, left)")), CHUNKED),
    "D06 direct": (
        run(copies("uint64_t(s.rows) * s.row_bytes")),
        run(copies("uint64_t(s.chunks[i].rows) * s.row_bytes")),
        CHUNKED,
    ),
    "D06 loop": (
        run(copies("bytes", "for (int q = 0; q < s.ranks; ++q)")),
        run(copies("bytes", "for (int i = 0; i < n; ++i)", "offset + i * bytes")),
        CHUNKED,
    ),
    "D06 named": (
        run("char *to = c->peers[q];\nstd::memcpy(to, c->local, c->bytes);\n" + TELL),
        run("char *to = c->peers[q];\npush<<<1, 1>>>(to);\n" + TELL),
        CHUNKED,
    ),
    "D06 helper": (
        run("std::memcpy(c->peers[q], c->local, s.total_bytes);\n" + TELL),
        f"void push(Tensor *c, size_t bytes) {{\nstd::memcpy(c->peers[q], c->local, bytes);\n{TELL}\n}}",
        CHUNKED,
    ),
    "D06 fallback": (
        run(copies("bytes")),
        run(copies("bytes")) + run("launch(c->peers[q]);"),
        CHUNKED,
    ),
    "D06 whole": (run(copies("bytes")), run(copies("CHUNK_BYTES")), CHUNKED),
    "D07": (
        "// kerneltui: tunable ROWS in 8 16\n#define ROWS 8\n" + run("// ROWS"),
        "// kerneltui: tunable ROWS in 8 16\n#define ROWS 8\n" + run("int rows = ROWS;"),
        replace(LSA, backend=Backend.HOST),
    ),
    "D07 runtime": (
        "// kerneltui: runtime ROWS in 8 16 default 8\n" + run("int rows = 8;"),
        "// kerneltui: runtime ROWS in 8 16 default 8\n" + run('int rows = value("ROWS");'),
        replace(LSA, backend=Backend.HOST),
    ),
    "D08": (run("c->peers[q][0] = 1;"), run(f"c->peers[q][0] = 1; {TELL}"), LSA),
    "D09": (
        run("c->peers[q][0] = 1; __atomic_store_n(flag, epoch, __ATOMIC_RELAXED);"),
        run("c->peers[q][0] = 1; __atomic_thread_fence(__ATOMIC_RELEASE);"
            " __atomic_store_n(flag, epoch, __ATOMIC_RELAXED);"),
        LSA,
    ),
    "D09 load": (
        run(f"c->peers[q][0] = 1; {TELL} while (flags[q].load(std::memory_order_relaxed) < epoch) {{}}"),
        run("c->peers[q][0] = 1; while (counter.load(std::memory_order_relaxed) < n) {}"),
        LSA,
    ),
    "D10": (
        run(f"c->peers[q][0] = 1; {TELL} while (load(s.mine) != epoch) relax();"),
        run(f"c->peers[q][0] = 1; {TELL} while (load(s.mine) < epoch) relax();"),
        LSA,
    ),
    "D11": (
        run(f"std::memset(ctx->signals[0], 0, 8); c->peers[q][0] = 1; {TELL}"),
        run(f"std::memset(ctx->scratch, 0, 8); c->peers[q][0] = 1; {TELL}"),
        LSA,
    ),
    "D12": (
        run(f"c->peers[q][0] = 1; {TELL}"),
        run(f"c->peers[q][0] = 1; {TELL} side = ctx->side_streams[0];"),
        replace(LSA, placement=Placement.STREAM_OVERLAP),
    ),
    "D13": (
        "__global__ void k(Comm dc) {\nncclLsaBarrierSession<ncclCoopCta> bar(ncclCoopCta(), dc);\n"
        "p = ncclGetLsaPointer(w, 0, q);\nfor (int i = 0; i < n; ++i) {\nbar.sync(c, order);\n}\n}\n",
        "__global__ void k(Comm dc) {\nncclLsaBarrierSession<ncclCoopCta> bar(ncclCoopCta(), dc);\n"
        "for (int i = 0; i < n; ++i) {\nx();\n}\nbar.sync(ncclCoopCta(), order);\n}\n",
        LSA,
    ),
}  # fmt: skip


def found(source: str, directive: Directive, ranks: int = 2) -> list[str]:
    kernel = parse_kernel(source, "kernel.cu")
    return [finding.rule for finding in lint_directive(kernel, directive, SHAPE, ranks)]


@pytest.mark.parametrize("name", CASES)
def test_red(name: str):
    red, _, directive = CASES[name]
    assert found(red, directive) == [name.split()[0]]


@pytest.mark.parametrize("name", CASES)
def test_green(name: str):
    _, green, directive = CASES[name]
    assert name.split()[0] not in found(green, directive)


def test_every_rule_has_a_case_and_says_what_why_and_what_to_do():
    assert {name.split()[0] for name in CASES} == {rule.id for rule in DIRECTIVE_RULES}
    for rule in DIRECTIVE_RULES:
        assert all((rule.name, rule.what, rule.why, rule.do))
        assert "\n" not in rule.text("x")


def test_every_rule_stands_in_the_documentation():
    page = (ROOT / "docs" / "agents.md").read_text()
    for rule in DIRECTIVE_RULES:
        assert re.search(rf"^\| {rule.id} \| {re.escape(rule.name)} \|", page, re.MULTILINE), (
            rule.id
        )


@pytest.mark.parametrize("chunk", [0, 2048 * 4096 * 2, 2048 * 4096 * 4, 4096 * 4096 * 8, 10**12])
def test_a_chunk_that_may_be_the_whole_shard_is_not_held_against_a_copy_of_it(chunk: int):
    assert found(run(copies("bytes")), replace(CHUNKED, chunk_bytes=chunk)) == []


def test_one_rank_has_no_peers_to_reach():
    assert found(run("c->local[0] = 1;"), LSA, ranks=1) == []


def test_findings_have_lines_and_are_warnings():
    source = "// kerneltui: directive backend lsa\n" + run(copies("bytes"))
    kernel = parse_kernel(source, "kernel.cu")
    (finding,) = lint_directive(kernel, CHUNKED, SHAPE, 2)
    assert (finding.level, finding.line) == (Level.WARN, 6)
    assert "chunks of 65536 bytes" in finding.text and "copy piece by piece" in finding.text
    (finding,) = lint_directive(
        parse_kernel("int a;\n" + source.split("int run")[0]), LSA, SHAPE, 2
    )
    assert (finding.rule, finding.line) == ("D01", 2)


def configurations(kernel: Kernel) -> list[dict[str, int | str]]:
    """Every combination of the compile-time choices, at most a few hundred, and each value at least once."""
    choices = [t for t in kernel.tunables if t.kind is TunableKind.COMPILE]
    texts = [t for t in choices if any(isinstance(value, str) for value in t.values)]
    return [
        dict(zip((t.name for t in texts), values, strict=True))
        for values in list(product(*(t.values for t in texts)))[:200]
    ]


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_no_kernel_of_the_library_is_alarmed_at(path: Path):
    workload = load_workload(ROOT / "workloads" / path.parent.name)
    target = workload.targets["cuda" if path.suffix != ".cpp" else "cpu"]
    ranks = 1 if path.parent.name == "gemm" else 2
    assert target is not None
    kernel = parse_kernel(path.read_text(), path.name)
    shapes = [
        dict(shape.dimensions) | {"RANKS": ranks} for shape in workload.shapes_for("tune")[:2]
    ]
    for values in configurations(kernel):
        other = parse_kernel(kernel.render(values), path.name)
        for shape in shapes:
            assert lint_directive(other, other.directive(shape), shape, ranks) == ()


@settings(max_examples=60)
@given(st.text(alphabet='peersignals[]{}()=;*"/\\\n #<>-.,0for?', max_size=300))
def test_a_broken_text_is_no_fault_of_the_lint(text: str):
    kernel = parse_kernel(text, "kernel.cu")
    for directive in (LSA, CHUNKED):
        for finding in lint_directive(kernel, directive, SHAPE, 2):
            assert finding.level is Level.WARN and 1 <= finding.line <= text.count("\n") + 1
