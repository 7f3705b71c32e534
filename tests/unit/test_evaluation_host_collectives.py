"""The calls by which the host moves data, found in the text of a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerneltui.evaluation.host_collectives import host_collectives, names_in_code
from kerneltui.model.kernel import parse_kernel

FOLDER = Path(__file__).parents[2] / "kernels" / "gemm_allgather"
BY_THE_HOST = {
    "host.cpp": ("host->all_gather",),
    "host_nccl.cu": ("host->all_gather",),
    "host_nccl_chunks.cu": ("host->all_gather",),
    "host_torch.py": ("context.all_gather",),
}


@pytest.mark.parametrize("file", sorted(p.name for p in FOLDER.iterdir() if p.suffix != ".md"))
def test_kernels_of_the_library_call_what_their_directive_says(file: str):
    kernel = parse_kernel((FOLDER / file).read_text(), file)
    assert host_collectives(kernel) == BY_THE_HOST.get(file, ())


def test_comments_and_texts_call_nothing():
    code = 'int run() { /* ctx->host->all_gather(x) */ puts("host->barrier("); return 0; }\n'
    kernel = parse_kernel(code, "kernel.cpp")
    assert host_collectives(kernel) == ()
    assert names_in_code(kernel) == {"int", "run", "puts", "return", "0"}
    python = parse_kernel('"""context.all_gather(x)"""\n# context.all_gather(x)\n', "kernel.py")
    assert (host_collectives(python), names_in_code(python)) == ((), frozenset())


def test_each_call_counts_once_as_it_is_spelt():
    code = "void f() { ncclAllGather (a); ctx->host -> barrier(b); ncclAllGather(c); }\n"
    kernel = parse_kernel(code, "kernel.cu")
    assert host_collectives(kernel) == ("ncclAllGather", "host->barrier")
    python = "import d\n\ndef run(c):\n    d.all_gather_into_tensor(c)\n    c.barrier()\n"
    assert host_collectives(parse_kernel(python, "kernel.py")) == ("d.all_gather_into_tensor",)


def test_what_python_cannot_read_calls_nothing():
    assert host_collectives(parse_kernel("def run(:\n    c.all_gather()\n", "kernel.py")) == ()
