"""A shape of `gemm` on one GPU: its buffers, and kernels that are set up for it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from driver_kernel import Opened, Shape, Spec

from kerneltui.evaluation.worker_abi import DTYPE_CODES, ROLE_CODES, BufferSet, Tensor
from kerneltui.model.workload import Role
from kerneltui.targets.windows import DType

DTYPES = (DType.FLOAT16, DType.BFLOAT16)


class Problem:
    """The buffers of one shape."""

    def __init__(self, torch: Any, shape: Shape, sets: int, dtype: DType) -> None:
        """Makes `sets` sets of A, B and C, of normal values."""
        self.torch, self.shape, self.sets, self.dtype = torch, shape, sets, dtype
        m, n, k = shape
        make = lambda rows, columns: [  # noqa: E731
            torch.empty(rows, columns, device="cuda", dtype=getattr(torch, dtype))
            for _ in range(sets)
        ]
        self.a, self.b, self.c = make(m, k), make(k, n), make(m, n)
        self.fill(False)
        self.keep: list[Any] = []
        self.buffers = (BufferSet * sets)()
        for i in range(sets):
            tensors = (Tensor * 3)(
                self._tensor(b"A", Role.INPUT, self.a[i]),
                self._tensor(b"B", Role.INPUT, self.b[i]),
                self._tensor(b"C", Role.OUTPUT, self.c[i]),
            )
            self.buffers[i] = BufferSet(3, tensors)
            self.keep.append(tensors)

    def _tensor(self, name: bytes, role: Role, tensor: Any) -> Tensor:
        return Tensor(
            name=name,
            dtype=DTYPE_CODES[self.dtype],
            role=ROLE_CODES[role],
            dims=2,
            shape=(ctypes.c_int64 * 4)(*tensor.shape, 0, 0),
            bytes=tensor.numel() * 2,
            local=tensor.data_ptr(),
        )

    def fill(self, integers: bool) -> None:
        """New inputs in all sets."""
        for tensor in (*self.a, *self.b):
            tensor.random_(0, 2) if integers else tensor.normal_()


class Loaded:
    """A kernel that is set up for one problem."""

    def __init__(self, torch: Any, problem: Problem, spec: Spec, values: Mapping[str, int]) -> None:
        """Calls requirements and setup."""
        self.torch, self.problem, self.epoch = torch, problem, 0
        self.opened = Opened(spec, problem.shape, values)
        self.scratch = torch.full(
            (max(256, self.opened.asked.scratch_bytes),), 0xA5, dtype=torch.uint8, device="cuda"
        )
        self.opened.set_up(problem.buffers, self.scratch.data_ptr())

    def call(self, count: int) -> None:
        """Enqueues calls on torch's current stream, over the sets in turn."""
        opened = self.opened
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        for _ in range(count):
            self.epoch += 1
            index = ctypes.c_uint32(self.epoch % self.problem.sets)
            epoch = ctypes.c_uint64(self.epoch)
            opened.check("run", opened.library.kerneltui_run(opened.state, index, epoch, stream))

    def close(self) -> None:
        """Calls teardown."""
        self.torch.cuda.synchronize()
        self.opened.tear_down()
