"""Cheats that Python kernels have of their own, and the honest ones beside them."""

from __future__ import annotations

import textwrap

from kerneltui.model.measurement import FailureKind

from .cheat import Cheat

__all__ = ["PYTHON_CHEATS", "PYTHON_HONEST"]

_MISMATCH, _REFUSED = FailureKind.MISMATCH, FailureKind.REFUSED
_WRONG = r"is wrong|not a finite|is still"

_TEMPLATE = """\
# kerneltui: directive backend lsa
# kerneltui: directive issuer thread
# kerneltui: directive placement sequential
# kerneltui: directive sync world
# kerneltui: directive chunk_bytes = 0
import torch
@HEAD@

def requirements(problem):
    return {"signal_words": 8 * problem.ranks}

def multiply(context, set, out):
    torch.mm(context.buffers[set]["A"], context.buffers[set]["B"], out=out)

def own_rows(context, set):
    first = context.offsets["A"][0]
    return context.buffers[set]["C"][first:first + len(context.buffers[set]["A"])]

def exchange(context, set, epoch):
    first = context.offsets["A"][0]
    own = own_rows(context, set)
    for peer in range(context.ranks):
        if peer != context.rank:
            context.peers[set]["C"][peer][first:first + len(own)].copy_(own)
            context.raise_flag(peer, 8 * context.rank, epoch)
    for peer in range(context.ranks):
        if peer != context.rank:
            context.wait_flag(8 * peer, epoch)

def honest(context, set, epoch):
    multiply(context, set, own_rows(context, set))
    exchange(context, set, epoch)

def setup(context):
    state = {}
    @SETUP@
    return state

def run(context, state, set, epoch):
    @RUN@
"""


def _kernel(run: str = "honest(context, set, epoch)", head: str = "", setup: str = "pass") -> str:
    text = _TEMPLATE.replace("@HEAD@", head)
    for mark, code in (("@SETUP@", setup), ("@RUN@", run)):
        text = text.replace(mark, textwrap.indent(code, "    ").lstrip())
    return text


PYTHON_CHEATS: dict[str, Cheat] = {
    "result that is never written": Cheat(
        _kernel('c = context.buffers[set]["A"] @ context.buffers[set]["B"]\nreturn c'),
        (_MISMATCH,),
        _WRONG,
    ),
    "result of setup": Cheat(
        _kernel(
            "own_rows(context, set).copy_(state[set])\nexchange(context, set, epoch)",
            setup="for index, tensors in enumerate(context.buffers):\n"
            '    state[index] = tensors["A"] @ tensors["B"]',
        ),
        (_MISMATCH,),
        _WRONG,
    ),
    "cached by the address of its inputs": Cheat(
        _kernel(
            'key = context.buffers[set]["A"].data_ptr()\n'
            "if key not in state:\n"
            "    honest(context, set, epoch)\n"
            "    state[key] = own_rows(context, set).clone()\n"
            "else:\n"
            "    own_rows(context, set).copy_(state[key])\n"
            "    exchange(context, set, epoch)"
        ),
        (_MISMATCH,),
        _WRONG,
    ),
    "cached by the identity of its inputs": Cheat(
        _kernel(
            'own_rows(context, set).copy_(product(context.buffers[set]["A"], context.buffers[set]["B"]))\n'
            "exchange(context, set, epoch)",
            head="import functools\n\n@functools.cache\ndef product(a, b):\n    return a @ b\n",
        ),
        (_MISMATCH,),
        _WRONG,
    ),
    "cached by a fingerprint": Cheat(
        _kernel(
            'a, b = context.buffers[set]["A"], context.buffers[set]["B"]\n'
            "key = (float(a[0, 0]) if len(a) else 0.0, float(b[0, 0]), float(b[-1, -1]))\n"
            "if key not in state:\n"
            "    state[key] = a @ b\n"
            "own_rows(context, set).copy_(state[key])\n"
            "exchange(context, set, epoch)"
        ),
        (_MISMATCH,),
        _WRONG,
    ),
    "shorter type for a float32 task": Cheat(
        _kernel(
            'a, b = context.buffers[set]["A"].bfloat16(), context.buffers[set]["B"].bfloat16()\n'
            "own_rows(context, set).copy_(a @ b)\nexchange(context, set, epoch)"
        ),
        (_MISMATCH,),
        _WRONG,
    ),
    "precision of torch lowered": Cheat(
        _kernel(setup='torch.set_float32_matmul_precision("medium")'),
        (_REFUSED,),
        "torch.set_float32_matmul_precision is not for kernels",
    ),
    "lazy tensor": Cheat(
        _kernel(
            head="class Lazy(torch.Tensor):\n"
            "    @classmethod\n"
            "    def __torch_function__(cls, function, types, arguments=(), options=None):\n"
            "        return function(*arguments)\n"
        ),
        (_REFUSED,),
        "__torch_function__ is not a kernel's to define",
    ),
    "patched timer": Cheat(
        _kernel(setup="torch.cuda.Event.elapsed_time = lambda *_: 0.0"),
        (_REFUSED,),
        "elapsed_time is changed",
    ),
    "patched clock": Cheat(
        _kernel(head="import time\ntime.monotonic_ns = lambda: 0\n"),
        (_REFUSED,),
        "does not import time",
    ),
    "the harness's objects": Cheat(
        _kernel(
            head="import gc\nfor thing in gc.get_objects():\n"
            '    if hasattr(thing, "start_ns"):\n        thing.start_ns = 0\n'
        ),
        (_REFUSED,),
        "does not import gc",
    ),
    "the harness's frames": Cheat(
        _kernel("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    error.__traceback__"),
        (_REFUSED,),
        "__traceback__ is private",
    ),
    "modules by way of torch": Cheat(
        _kernel('torch.sys.modules["kerneltui.evaluation.worker_kernel"]'),
        (_REFUSED,),
        "torch.sys is not for kernels",
    ),
    "work left to a thread": Cheat(
        _kernel(
            "threading.Thread(target=honest, args=(context, set, epoch)).start()",
            head="import threading",
        ),
        (_REFUSED,),
        "does not import threading",
    ),
    "work left to a future": Cheat(
        _kernel("torch.jit.fork(honest, context, set, epoch)"),
        (_REFUSED,),
        "torch.jit is not for kernels",
    ),
    "expected values from a file": Cheat(
        _kernel(head='import numpy as np\nexec(np.loadtxt("@REFERENCE@", dtype=str))'),
        (_REFUSED,),
        "exec is not for kernels|numpy.loadtxt is not for kernels",
    ),
    "code in a text": Cheat(
        _kernel("eval(\"__import__('os').getpid()\")"), (_REFUSED,), "eval is not for kernels"
    ),
    "nothing but the first call": Cheat(
        _kernel(
            'if not state:\n    state["done"] = True\n    honest(context, set, epoch)\n'
            "else:\n    exchange(context, set, epoch)"
        ),
        (_MISMATCH,),
        _WRONG,
    ),
}

PYTHON_HONEST: dict[str, str] = {
    "plain": _kernel(),
    "workspace kept by its size": _kernel(
        "out = state.setdefault(len(own_rows(context, set)), torch.empty_like(own_rows(context, set)))\n"
        "multiply(context, set, out)\n"
        "own_rows(context, set).copy_(out)\nexchange(context, set, epoch)"
    ),
    "more accurate than the library": _kernel(
        'a, b = context.buffers[set]["A"].double(), context.buffers[set]["B"].double()\n'
        "own_rows(context, set).copy_(a @ b)\nexchange(context, set, epoch)"
    ),
    "another order of the sum": _kernel(
        'a, b = context.buffers[set]["A"], context.buffers[set]["B"]\n'
        "half = a.shape[1] // 2\n"
        "own_rows(context, set).copy_(a[:, half:] @ b[half:] + a[:, :half] @ b[:half])\n"
        "exchange(context, set, epoch)"
    ),
    "a capability that is probed": _kernel(
        setup='try:\n    state["wide"] = hasattr(torch, "float8_e4m3fn")\n'
        "except RuntimeError:\n    state = {}"
    ),
}
