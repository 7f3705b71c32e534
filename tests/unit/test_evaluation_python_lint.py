"""What a Python kernel may not say, each with its neighbour that it may."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kerneltui.evaluation.kernel_lint import lint
from kerneltui.evaluation.kernel_text import identity_of, kernel_text
from kerneltui.evaluation.outcome import KernelFault
from kerneltui.evaluation.python_lint import lint_python, python_labels
from kerneltui.evaluation.python_policy import check_policy
from kerneltui.model.kernel import parse_kernel
from kerneltui.model.measurement import FailureKind
from kerneltui.targets.cuda.policy import DEFAULT_POLICY
from kerneltui.targets.python import extension_text

ROOT = Path(__file__).parents[2]
RUN = "def run(context, state, set, epoch):\n    pass\n"


def rules(source: str) -> set[str]:
    return {finding.rule for finding in lint_python(source)}


def body(line: str, head: str = "import torch") -> str:
    return f"{head}\ndef run(context, state, set, epoch):\n    {line}\n"


@pytest.mark.parametrize(
    ("bad", "rule", "good"),
    [
        ("def other(context): pass", "Y01", RUN),
        ("def run(context): pass", "Y01", RUN),
        ("def run(:", "Y01", RUN),
        (f"import os\n{RUN}", "Y02", f"import math\n{RUN}"),
        (f"import ctypes as c\n{RUN}", "Y02", f"import numpy as np\n{RUN}"),
        (f"import kerneltui.evaluation.worker_kernel\n{RUN}", "Y02", f"import cupy\n{RUN}"),
        (f"from subprocess import run as go\n{RUN}", "Y02", f"from math import ceil\n{RUN}"),
        (f"from . import other\n{RUN}", "Y02", f"import triton\n{RUN}"),
        (f"from torch import *\n{RUN}", "Y02", f"from torch import mm\n{RUN}"),
        (body("eval('1')"), "Y03", body("max(1, 2)")),
        (body("open('x').read()"), "Y03", body("print('x')")),
        (body("getattr(torch, 'l' + 'oad')('x')"), "Y03", body("hasattr(torch, 'float8_e5m2')")),
        (body("__import__('os')"), "Y03", body("__name__")),
        (body("context.__class__"), "Y04", body("context.rank")),
        (body("(lambda: 0).__globals__"), "Y04", body("(lambda: 0)()")),
        (body("error.tb_frame.f_back"), "Y04", body("error.args")),
        (body("torch._C"), "Y04", body("torch.mm")),
        (
            "class A:\n    def __getattr__(self, n): pass\n" + RUN,
            "Y04",
            "class A:\n    def __init__(self): self._own = 1\n" + RUN,
        ),
        (body("torch.load('x')"), "Y05", body("torch.empty(3)")),
        (body("torch.sys.modules"), "Y05", body("torch.select(x, 0, 1)")),
        (body("torch.backends.cuda.matmul.allow_tf32"), "Y05", body("torch.matmul(a, b)")),
        (body("torch.set_num_threads(64)"), "Y05", body("torch.add(a, b)")),
        (body("torch.compile(f)"), "Y05", body("torch.addmm(a, b, c)")),
        (body("torch.ops.load_library('x')"), "Y05", body("torch.bmm(a, b)")),
        (body("torch.cuda.set_stream(s)"), "Y05", body("torch.cuda.stream(s)")),
        (body("torch.cuda.memory.x"), "Y05", body("torch.cuda.Event()")),
        (body("F.x", "import torch.utils.cpp_extension as F"), "Y05",
         body("F.relu(x)", "import torch.nn.functional as F")),
        (body("np.lib.x", "import numpy as np"), "Y05", body("np.dot(a, b)", "import numpy as np")),
        (body("t", "from triton import autotune as t"), "Y05", body("t", "from triton import jit as t")),
        (body("tl.core.os", "import triton.language as tl"), "Y05",
         body("tl.dot(a, b)", "import triton.language as tl")),
        (body("cp.cuda.runtime", "import cupy as cp"), "Y05",
         body("cp.cuda.Stream()", "import cupy as cp")),
        (body("torch.nn.functional.torch.save"), "Y05", body("torch.nn.functional.silu(x)")),
        (body("tl.math.core", "import triton.language as tl"), "Y05",
         body("tl.math.exp(x)", "import triton.language as tl")),
        (body("np.linalg.load", "import numpy as np"), "Y05",
         body("np.linalg.norm(x)", "import numpy as np")),
        (body("m = tl.math", "import triton.language as tl"), "Y06",
         body("m = tl.math.exp", "import triton.language as tl")),
        (body("t = torch"), "Y06", body("t = torch.mm")),
        (body("c = torch.cuda"), "Y06", body("c = torch.cuda.Stream")),
        (body("torch.mm = other"), "Y07", body("mm = torch.mm")),
        (body("Tensor.copy_ = f", "from torch import Tensor"), "Y07",
         body("x = Tensor", "from torch import Tensor")),
        (body("del torch.mm"), "Y07", body("del state")),
        (body("context.rank = 3"), "Y07", body("state.rank = 3")),
        (body("a, torch.Tensor.add = 1, 2"), "Y07", body("a, b = 1, 2")),
        (body("torch.table[3] = 1"), "Y07", body("context.buffers[set]['C'][torch.arange(3)] = 1")),
    ],
)  # fmt: skip
def test_each_rule_finds_its_fault_and_nothing_beside_it(bad, rule, good):
    assert rule in rules(bad), lint_python(bad)
    assert not rules(good), lint_python(good)


@pytest.mark.parametrize(
    "bad",
    [
        body(
            """tl.inline_asm_elementwise("multimem.ld_reduce.relaxed.sys.f32 $0, [$1];", "=r,l")"""
        ),
        body(
            """cp.RawKernel('extern "C" __global__ void k() { asm("multimem.red.add [%0];"); }', 'k')"""
        ),
        body("'cuMulticast' + 'Create'"),
        body("f'cuMulticastCreate'"),
        body("x.multicast_ptr"),
        body("f(multimem=True)"),
        body("environ"),
        body("run_it('nvidia-smi -r')"),
    ],
)
def test_what_the_policy_forbids_is_found_in_names_and_texts(bad):
    (finding, *_) = check_policy(bad, DEFAULT_POLICY)
    assert finding.line == 3


CODE = 'extern "C" __global__ void k() {}'


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("k = cp.RawKernel(context.text, 'k')", f"k = cp.RawKernel({CODE!r}, 'k')"),
        (f"k = cp.RawKernel({CODE!r}.replace('k', name), 'k')",
         f"k = cp.RawKernel('#define N 4\\n' + {CODE!r}, name, (f'-DN={{n}}',))"),
        ("k = cp.RawKernel(CHANGED, 'k')", "k = cp.RawKernel(HEAD + CODE, 'k')"),
        ("k = cp.RawKernel(f'{CODE}{n}', 'k')", "k = cp.RawKernel(f'{HEAD}{CODE}', 'k')"),
        ("k = cp.RawKernel(code=LATER, name='k')", "k = cp.RawKernel(code=CODE, name='k')"),
        ("k = cp.RawKernel(*parts)", "k = cp.RawKernel(CODE, 'k', options)"),
        ("k = cp.RawKernel(**parts)", "k = cp.RawKernel(CODE, 'k', backend=backend)"),
        ("k = cp.RawModule(path='kernel.cubin')", "k = cp.RawModule(code=CODE)"),
        ("k = cp.RawModule(code=b'\\x7fELF')", "k = cp.RawModule(code=CODE, options=('-DN=4',))"),
        ("make = cp.RawKernel", "make = cp.empty"),
        ("k = R(text, 'k')", "k = R(CODE, 'k')"),
        ("f(R)", "f(R(CODE, 'k'))"),
        ("k = cp.ElementwiseKernel('T x', 'T y', text, 'k')",
         "k = cp.ElementwiseKernel('T x', 'T y', 'y = x', 'k')"),
        ("k = cp.ElementwiseKernel('T x', 'T y', 'y = x', 'k', preamble=text)",
         "k = cp.ElementwiseKernel('T x', 'T y', 'y = x', 'k', preamble=HEAD)"),
        ("k = cp.ReductionKernel('T x', 'T y', 'x', text, 'y = a', '0', 'k')",
         "k = cp.ReductionKernel('T x', 'T y', 'x', 'a + b', 'y = a', '0', 'k')"),
    ],
)  # fmt: skip
def test_what_cupy_compiles_can_be_read(bad, good):
    head = (
        "import cupy as cp\nfrom cupy import RawKernel as R\nHEAD = '#define N 4\\n'\n"
        f"CODE: str = {CODE!r}\nCHANGED = CODE\nCHANGED += HEAD\nLATER = f(CODE)"
    )
    (finding,) = check_policy(body(bad, head), DEFAULT_POLICY)
    assert finding.rule == "P03" and finding.text.startswith("cupy.") and finding.line == 9
    assert not check_policy(body(good, head), DEFAULT_POLICY)


def test_a_name_in_parts_is_found_behind_names():
    head = "A = 'cuMulti'\nB = 'castCreate'\nC = A + B"
    for text, line in ((head, 3), (f"{head[:13]}\nC = f'{{A}}castCreate'", 2)):
        found = check_policy(body("pass", text), DEFAULT_POLICY)
        assert {(f.rule, f.line) for f in found} == {("L01", line)}


def test_texts_that_double_come_to_an_end():
    head = "B0 = 'xy'\n"
    head += "\n".join(f"B{i + 1} = B{i} + B{i}" for i in range(60))
    assert not check_policy(body("pass", head), DEFAULT_POLICY)
    assert check_policy(body("cp.RawKernel(B60, 'k')", head), DEFAULT_POLICY)


def test_words_about_it_are_allowed():
    text = '"""No multimem here, and no cuMulticastCreate."""\n# multimem.red.add\n' + RUN
    assert not check_policy(text, DEFAULT_POLICY)


def test_labels():
    text = "import torch, triton\n" + body("global x; y.item(); torch.cuda.Event()", "import numpy")
    assert python_labels(text) == ["static state", "torch", "triton", "waits for the device"]


@pytest.mark.parametrize("file", sorted(ROOT.glob("kernels/*/*.py")), ids=lambda file: file.name)
def test_the_kernels_of_the_library_pass(file):
    text = file.read_text(encoding="utf-8")
    assert not lint_python(text)
    assert not check_policy(text, DEFAULT_POLICY)


def test_the_kernel_in_cupy_of_the_tests_on_gpus_passes():
    text = (ROOT / "tests" / "gpu" / "python_kernels.py").read_text(encoding="utf-8")
    found = re.findall(r"PRODUCT = cupy\.RawKernel.*?\"product\"\)", text, re.DOTALL)
    assert found and not check_policy(found[0], DEFAULT_POLICY)


def test_a_refusal_names_file_line_and_what_to_do():
    kernel = parse_kernel(f"import socket\n{RUN}", "mine.py")
    with pytest.raises(KernelFault) as caught:
        lint(kernel, "cuda")
    assert caught.value.kind is FailureKind.REFUSED
    assert caught.value.reason.startswith("mine.py:1: error: Y02: a kernel does not import socket")


def test_the_built_text_holds_the_identity_and_is_python():
    kernel = parse_kernel(RUN, "mine.py")
    text = kernel_text(kernel)
    assert identity_of(kernel) in text
    compile(text, "mine.py", "exec")


def test_the_examples_of_the_contract_are_kernels():
    text = (ROOT / "docs" / "kernel-contract.md").read_text(encoding="utf-8")
    example, extended = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert not lint_python(example)
    assert not lint_python(extended) and "STABLE_TORCH_LIBRARY" in extension_text(extended)
    kernel = parse_kernel(example, "example.py")
    assert kernel.configuration == {"HALVES": 1}
    assert kernel.directive({"M": 4, "N": 4, "K": 4, "RANKS": 1})


def test_the_text_of_an_extension_is_read_as_code_of_the_device():
    code = "__global__ void k(ncclDevComm dc) { ncclGin gin(dc, 0); }"
    source = f"EXTENSION = '''{code}'''\n{body('pass')}"
    assert lint(parse_kernel(source, "k.py"), "cpu") == ["torch", "extension of torch"]
    with pytest.raises(KernelFault, match="ncclGin"):
        lint(parse_kernel(source, "k.py"), "cuda")


def test_an_extension_that_is_put_together_is_refused():
    source = body("pass") + '\nEXTENSION = "a" + "b"\n'
    with pytest.raises(KernelFault, match="EXTENSION is one text, written out"):
        lint(parse_kernel(source, "k.py"))
