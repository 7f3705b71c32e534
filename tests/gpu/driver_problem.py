"""A shape of `gemm_allgather` on one rank of a driver: its buffers, and kernels that are set up for it."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from driver_kernel import DriverFault, Opened, Shape, Spec
from driver_memory import Window
from driver_rank import RANKS, Rank, address_of

from kerneltui.evaluation.worker_abi import DTYPE_CODES, ROLE_CODES, BufferSet, Tensor
from kerneltui.model.workload import Role
from kerneltui.targets.windows import DType

SETS = 3
DRAWN_WHOLE = 1 << 24
"""Elements of A up to which every rank draws all its rows; of larger ones it draws its own."""
_pointer, _u32, _u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64


class Problem:
    """The buffers of one shape."""

    def __init__(self, rank: Rank, shape: Shape, sets: int) -> None:
        """Makes `sets` sets of A, B and a symmetric C."""
        torch = rank.torch
        self.rank, self.shape, self.sets = rank, shape, sets
        m, n, k = shape
        self.first = rank.rank * m // RANKS
        self.rows = (rank.rank + 1) * m // RANKS - self.first
        self.a = [
            torch.empty(max(1, self.rows), k, device="cuda", dtype=torch.bfloat16)
            for _ in range(sets)
        ]
        self.b = [torch.empty(k, n, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
        self.windows = [Window(rank, m * n * 2) for _ in range(sets)]
        self.c = [w.tensor(0, m * n, torch.bfloat16).view(m, n) for w in self.windows]
        self.keep: list[Any] = []
        self.buffers = (BufferSet * sets)()
        for i in range(sets):
            peers = (_pointer * RANKS)(*self.windows[i].addresses)
            a, b, c = self.a[i].data_ptr(), self.b[i].data_ptr(), self.windows[i].local
            tensors = (Tensor * 3)(
                self._tensor(b"A", Role.INPUT, (self.rows, k), self.first, local=a),
                self._tensor(b"B", Role.INPUT, (k, n), 0, local=b),
                self._tensor(b"C", Role.OUTPUT, (m, n), 0, local=c, peers=address_of(peers)),
            )
            self.buffers[i] = BufferSet(3, tensors)
            self.keep += [peers, tensors]

    @staticmethod
    def _tensor(
        name: bytes,
        role: Role,
        shape: tuple[int, int],
        first: int,
        *,
        local: int,
        peers: int | None = None,
    ) -> Tensor:
        four = ctypes.c_int64 * 4
        return Tensor(
            name=name,
            dtype=DTYPE_CODES[DType.BFLOAT16],
            role=ROLE_CODES[role],
            dims=2,
            shape=four(*shape, 0, 0),
            offset=four(first, 0, 0, 0),
            bytes=shape[0] * shape[1] * 2,
            local=local,
            peers=peers,
        )

    def fill(self, seed: int, integers: bool) -> None:
        """New inputs in all sets, the same on both ranks where they share them."""
        torch = self.rank.torch
        m, n, k = self.shape
        for i in range(self.sets):
            generator = torch.Generator("cuda").manual_seed(seed * 64 + i)
            for name, target, rows in (("b", self.b[i], k), ("a", self.a[i], m)):
                width = n if name == "b" else k
                if m * k > DRAWN_WHOLE:
                    if name == "a":
                        generator.manual_seed(seed * 64 + i + 7919 * (1 + self.rank.rank))
                    full = target
                else:
                    full = torch.empty(rows, width, device="cuda", dtype=torch.bfloat16)
                _draw(full, generator, integers)
                if full is not target:
                    target.copy_(
                        full if name == "b" else full[self.first : self.first + max(1, self.rows)]
                    )

    def full_a(self, seed: int, integers: bool, i: int) -> Any:
        """All rows of A in set i."""
        torch = self.rank.torch
        m, n, k = self.shape
        full = torch.empty(m, k, device="cuda", dtype=torch.bfloat16)
        if m * k > DRAWN_WHOLE:
            for r in range(RANKS):
                g = torch.Generator("cuda").manual_seed(seed * 64 + i + 7919 * (1 + r))
                _draw(full[r * m // RANKS : (r + 1) * m // RANKS], g, integers)
            return full
        g = torch.Generator("cuda").manual_seed(seed * 64 + i)
        _draw(torch.empty(k, n, device="cuda", dtype=torch.bfloat16), g, integers)
        return _draw(full, g, integers)

    def poison(self) -> None:
        """NaN in all outputs."""
        for c in self.c:
            c.fill_(math.nan)
        self.rank.torch.cuda.synchronize()

    def close(self) -> None:
        """Gives the windows back."""
        self.rank.torch.cuda.synchronize()
        self.rank.meet()
        self.c.clear()
        for window in self.windows:
            window.close()


def _draw(tensor: Any, generator: Any, integers: bool) -> Any:
    """Values 0 and 1, or normal ones, in place."""
    if integers:
        return tensor.random_(0, 2, generator=generator)
    return tensor.normal_(generator=generator)


class Loaded:
    """A kernel that is set up for one problem."""

    epoch = 0  # goes on over all kernels and shapes

    def __init__(self, rank: Rank, problem: Problem, spec: Spec) -> None:
        """Calls requirements and setup."""
        torch = rank.torch
        self.rank, self.problem = rank, problem
        self.opened = Opened(spec, problem.shape, {}, rank=rank.rank, ranks=RANKS)
        asked = self.opened.asked
        if asked.side_streams > len(rank.side):
            raise DriverFault("more side streams than the driver has")
        self.scratch = torch.full(
            (max(256, asked.scratch_bytes),), 0xA5, dtype=torch.uint8, device="cuda"
        )
        area = rank.signal_area(spec.text, max(1, asked.signal_words))
        self.signals = (_pointer * RANKS)(*area.addresses)
        self.side = (_pointer * len(rank.side))(*(s.cuda_stream for s in rank.side))
        self.opened.set_up(
            problem.buffers,
            self.scratch.data_ptr(),
            signals=self.signals,
            signal_words=asked.signal_words,
            vendor=ctypes.pointer(rank.vendor),
            host=ctypes.pointer(rank.host),
            stream=rank.stream.cuda_stream,
            side_streams=address_of(self.side),
        )
        torch.cuda.synchronize()
        rank.meet()

    def call(self, count: int = 1) -> None:
        """Enqueues calls on the stream. Both ranks make the same calls."""
        opened = self.opened
        code = self.rank.helper.kd_batch(
            *(_pointer(address_of(opened.library.kerneltui_run)), opened.state),
            *(_u32(self.problem.sets), _u64(Loaded.epoch + 1), _u32(count)),
            _pointer(self.rank.stream.cuda_stream),
        )
        opened.check("run", code)
        Loaded.epoch += count

    def close(self) -> None:
        """Calls teardown."""
        self.rank.torch.cuda.synchronize()
        self.rank.meet()
        self.opened.check("teardown", self.opened.tear_down())
