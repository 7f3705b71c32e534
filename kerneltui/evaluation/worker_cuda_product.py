"""A product C = A B of one rank as the vendor's libraries are asked for it, and the proof of its sums."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from kerneltui.evaluation import worker_abi as abi
from kerneltui.evaluation.worker_kernel import address_of
from kerneltui.targets.windows import DType

if TYPE_CHECKING:
    from kerneltui.evaluation.worker_cuda_baselines import CudaProblem

__all__ = ["Product", "ProductState", "proved_sums"]

_pointer, _u32, _u64, _i64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64

_SMALL = {torch.float16: (2.0**-8, 2.0**-8), torch.bfloat16: (2.0**-6, 2.0**-7)}
"""Factors whose products a sum of the short type would lose beside 1, and float32 keeps exactly."""


class ProductState(ctypes.Structure):
    """ht_product of the harness."""

    _fields_ = (
        ("a", _pointer),
        ("b", _pointer),
        ("c", _pointer),
        ("m", _i64),
        ("n", _i64),
        ("k", _i64),
        ("vendor", _pointer),
        ("transposed", _u32),
        ("failed", _u32),
        ("matmul", _pointer),
        ("handle", _pointer),
        ("description", _pointer),
        ("b_layout", _pointer),
        ("a_layout", _pointer),
        ("c_layout", _pointer),
        ("algorithm", _u64 * 8),
        ("workspace", _pointer),
        ("workspace_bytes", _u64),
    )


class Product:
    """Operands of all buffer sets, and the state that the harness calls a library with.

    Args:
        problem: Where the baseline runs.
        transposed: Whether B is wanted K-major: n x k in row-major order. A copy of it is made whenever
            a buffer set has new inputs, outside of all timing: that is in the baseline's favour.

    Raises:
        ValueError: If the workload is no product of one rank in a short type.
    """

    def __init__(self, problem: CudaProblem, *, transposed: bool = False) -> None:
        if problem.ranks != 1:
            raise ValueError(f"it is for one rank, not {problem.ranks}")
        try:
            self.sets = [
                tuple(problem.tensor(index, name) for name in "ABC")
                for index in range(problem.sets)
            ]
        except KeyError as error:
            raise ValueError("it needs tensors A, B and C") from error
        a, b, c = self.sets[0]
        self.m, self.k = a.shape
        self.n = b.shape[1]
        if tuple(b.shape) != (self.k, self.n) or tuple(c.shape) != (self.m, self.n):
            raise ValueError("it needs A [M, K], B [K, N] and C [M, N]")
        if a.dtype not in _SMALL or len({a.dtype, b.dtype, c.dtype}) > 1:
            raise ValueError("it needs tensors of float16 or bfloat16")
        self.problem = problem
        self.dtype = a.dtype
        self.transposed = transposed
        size = (self.n, self.k)
        self.copies = [b.new_empty(size) for _, b, _ in self.sets] if transposed else []
        seconds = self.copies or [b for _, b, _ in self.sets]
        self._addresses = tuple(
            (_pointer * len(self.sets))(*(tensor.data_ptr() for tensor in tensors))
            for tensors in ([a for a, _, _ in self.sets], seconds, [c for _, _, c in self.sets])
        )
        kinds = {
            torch.float16: abi.DTYPE_CODES[DType.FLOAT16],
            torch.bfloat16: abi.DTYPE_CODES[DType.BFLOAT16],
        }
        problem.vendor.dtype = kinds[a.dtype]
        self.state = ProductState(
            *(ctypes.addressof(array) for array in self._addresses),
            self.m,
            self.n,
            self.k,
            ctypes.addressof(problem.vendor),
            int(transposed),
        )

    @property
    def alignment(self) -> int:
        """The largest power of two up to 256 that all operands are aligned to, in bytes."""
        least = 256
        for array in self._addresses:
            for address in array:
                least = min(least, address & -address)
        return least

    def native(self, function: str) -> tuple[int, int]:
        """A function of the harness and the state to call it with."""
        where = address_of(getattr(self.problem.harness.library, function))
        return where, ctypes.addressof(self.state)

    def caller(self, function: str) -> Callable[[int], None]:
        """The same, to be called from here on a buffer set.

        Raises:
            RuntimeError: From the call, if the library refuses.
        """
        run = abi.RunFunction(self.native(function)[0])
        state, stream = ctypes.addressof(self.state), int(self.problem.stream.cuda_stream)

        def call(index: int) -> None:
            code = run(state, index, 0, stream)
            if code:
                raise RuntimeError(f"the library answered with status {code}")

        return call

    def filled(self, sets: Sequence[int]) -> None:
        """Copies B of buffer sets, K-major."""
        for index in sets:
            self.copies[index].copy_(self.sets[index][1].t())
        torch.cuda.synchronize()

    def draw(self, sets: Sequence[int]) -> None:
        """Random operands for a trial before the judge has written any; zeros would run faster."""
        for index in sets:
            a, b, _ = self.sets[index]
            a.normal_()
            b.normal_()
        if self.transposed:
            self.filled(sets)
        torch.cuda.synchronize()


def proved_sums(product: Product, call: Callable[[int], Any]) -> str:
    """Shows by a calculation that sums are kept in float32: a shorter type gives another result.

    Every sum is 1 + (K - 1) u, with a u that is lost beside 1 in the type of the operands, even when it
    comes in groups of 16. In float32 all of its partial sums are exact, in any order.

    Args:
        product: Buffer set 0 is used, and its operands are overwritten.
        call: Does the product of a buffer set.

    Returns:
        What was shown, in a few words.

    Raises:
        ValueError: The result is not that of float32.
    """
    a, b, c = product.sets[0]
    left, right = _SMALL[product.dtype]
    with torch.cuda.stream(product.problem.stream):
        a.fill_(left)[:, 0] = 1.0
        b.fill_(right)[0] = 1.0
        c.fill_(float("nan"))
    torch.cuda.synchronize()
    if product.transposed:
        product.filled([0])
    call(0)
    torch.cuda.synchronize()
    exact = torch.tensor(1.0 + (product.k - 1) * left * right, dtype=torch.float64)
    wanted = exact.to(product.dtype)
    if not bool((c == wanted.to(c.device)).all()):
        found = float(c.double().sub(float(exact)).abs().max())
        raise ValueError(f"its sums are not kept in float32: off by {found:g} of {float(exact):g}")
    if float(wanted) == 1.0:
        return "float32 as asked for; K is too short to show it"
    return f"float32, shown: 1 + {product.k - 1} * {left * right:g} is exact"
