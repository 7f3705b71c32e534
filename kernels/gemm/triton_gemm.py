"""C = A B in Triton: tiles in groups of rows, sums in float32, any shape.

Where rows begin on 16 bytes, tiles come and go by tensor descriptors (TMA on Hopper); else by pointers
with masks. Everything is compiled in `setup`, where the first launch of each buffer set is made as well.
"""
# ruff: noqa: ANN001, ANN201, D103, PLR0917 - the contract says what they are and get

# kerneltui: directive backend host
# kerneltui: directive issuer cta
# kerneltui: directive placement sequential
# kerneltui: directive sync none
# kerneltui: directive chunk_bytes = 0

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# kerneltui: tunable BLOCK_M in 64 128 256
BLOCK_M = 128
# kerneltui: tunable BLOCK_N in 64 128 256
BLOCK_N = 256
# kerneltui: tunable BLOCK_K in 32 64 128
BLOCK_K = 64
# kerneltui: tunable GROUP_M in 1 4 8 16
GROUP_M = 8
# kerneltui: tunable NUM_STAGES in 2 3 4 5
NUM_STAGES = 3
# kerneltui: tunable NUM_WARPS in 4 8
NUM_WARPS = 8
# kerneltui: tunable LOADS in descriptors pointers
LOADS = "descriptors"

ALIGNED = 16  # bytes on which the rows of a tensor descriptor begin


@triton.jit
def place_of_tile(m, n, block_m: tl.constexpr, block_n: tl.constexpr, group_m: tl.constexpr):
    """Row and column of a tile: down a group of rows first, so that neighbours share B in the cache."""
    rows, columns = tl.cdiv(m, block_m), tl.cdiv(n, block_n)
    number = tl.program_id(0)
    in_group = group_m * columns
    first = number // in_group * group_m
    height = min(rows - first, group_m)
    return first + number % in_group % height, number % in_group // height


@triton.jit
def by_descriptors(
    a, b, c, m, n, k,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, group_m: tl.constexpr,
):  # fmt: skip
    # kerneltui: evolve begin descriptors
    row, column = place_of_tile(m, n, block_m, block_n, group_m)
    row, column = row * block_m, column * block_n
    total = tl.zeros((block_m, block_n), dtype=tl.float32)
    for step in tl.range(0, tl.cdiv(k, block_k)):
        left = a.load([row, step * block_k])
        right = b.load([step * block_k, column])
        total = tl.dot(left, right, total)
    c.store([row, column], total.to(c.dtype))
    # kerneltui: evolve end


@triton.jit
def by_pointers(
    a, b, c, m, n, k,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, group_m: tl.constexpr,
):  # fmt: skip
    # kerneltui: evolve begin pointers
    row, column = place_of_tile(m, n, block_m, block_n, group_m)
    rows = row * block_m + tl.arange(0, block_m)
    columns = column * block_n + tl.arange(0, block_n)
    inner = tl.arange(0, block_k)
    left = a + rows[:, None].to(tl.int64) * k + inner[None, :]
    right = b + inner[:, None].to(tl.int64) * n + columns[None, :]
    total = tl.zeros((block_m, block_n), dtype=tl.float32)
    for step in tl.range(0, tl.cdiv(k, block_k)):
        rest = k - step * block_k
        x = tl.load(left, mask=(rows[:, None] < m) & (inner[None, :] < rest), other=0.0)
        y = tl.load(right, mask=(inner[:, None] < rest) & (columns[None, :] < n), other=0.0)
        total = tl.dot(x, y, total)
        left += block_k
        right += block_k * n
    place = c + rows[:, None].to(tl.int64) * n + columns[None, :]
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(place, total.to(c.dtype.element_ty), mask=inside)
    # kerneltui: evolve end


def requirements(problem):
    return {"graph_safe": 1}


def setup(context):
    m, n, k = (context.dimensions[name] for name in ("M", "N", "K"))
    size = context.buffers[0]["A"].element_size()
    aligned = k * size % ALIGNED == 0 and n * size % ALIGNED == 0
    calls = []
    for tensors in context.buffers:
        operands = [tensors[name] for name in ("A", "B", "C")]
        product = by_pointers
        if aligned and LOADS == "descriptors":
            product = by_descriptors
            blocks = [[BLOCK_M, BLOCK_K], [BLOCK_K, BLOCK_N], [BLOCK_M, BLOCK_N]]
            pairs = zip(operands, blocks, strict=True)
            operands = [TensorDescriptor.from_tensor(tensor, block) for tensor, block in pairs]
        grid = (triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N), 1, 1)
        arguments = (*operands, m, n, k, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M)
        compiled = product[grid](*arguments, num_stages=NUM_STAGES, num_warps=NUM_WARPS)
        calls.append((compiled[grid], arguments))
    return calls


def run(context, state, set, epoch):
    launch, arguments = state[set]
    launch(*arguments)
