"""Python kernels for the tests on a GPU: C = A B by torch, by CuPy, and the ways to go wrong."""

from __future__ import annotations

__all__ = [
    "COMPILES_IN_RUN",
    "CUPY",
    "EXTENSION",
    "FILE",
    "NOT_JOINED",
    "PROGRAM",
    "REDUCED",
    "TORCH",
    "WAITS",
    "kernel",
]

HEAD = """\
# kerneltui: directive backend host
# kerneltui: directive issuer thread
# kerneltui: directive placement sequential
# kerneltui: directive sync none
# kerneltui: directive chunk_bytes = 0
import torch
"""
TORCH = 'torch.mm(tensors["A"], tensors["B"], out=tensors["C"])'
WAITS = f'{TORCH}\nif tensors["C"][0, 0].item() == 12345.0:\n    raise ValueError("impossible")'
NOT_JOINED = (
    f"with torch.cuda.stream(context.side_streams[0]):\n    {TORCH}  # and nobody waits for it"
)
REDUCED = f"torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True\n{TORCH}"
FILE = f'open("/tmp/kerneltui-was-here", "w")\n{TORCH}'
PROGRAM = f'import subprocess\nsubprocess.run(["/bin/true"])\n{TORCH}'

COMPILES_IN_RUN = (
    HEAD
    + """
import triton
import triton.language as tl

@triton.jit
def add_nothing(c, n, block: tl.constexpr):
    place = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(c + place, tl.load(c + place, mask=place < n), mask=place < n)

def run(context, state, set, epoch):
    tensors = context.buffers[set]
    torch.mm(tensors["A"], tensors["B"], out=tensors["C"])
    n = tensors["C"].numel()
    add_nothing[(triton.cdiv(n, 1024),)](tensors["C"], n, 1024)
"""
)

CUPY = (
    HEAD
    + '''
import cupy

PRODUCT = cupy.RawKernel(r"""
extern "C" __global__ void product(const unsigned short *a, const unsigned short *b, unsigned short *c,
                                   long long m, long long n, long long k) {
    const long long i = blockIdx.y * (long long)blockDim.y + threadIdx.y;
    const long long j = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= m || j >= n) return;
    float sum = 0;
    for (long long p = 0; p < k; ++p)
        sum += __uint_as_float(unsigned(a[i * k + p]) << 16) * __uint_as_float(unsigned(b[p * n + j]) << 16);
    const unsigned bits = __float_as_uint(sum);
    c[i * n + j] = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
""", "product")

def setup(context):
    views = []
    for tensors in context.buffers:
        names = ("A", "B", "C")
        views.append(tuple(cupy.asarray(tensors[name].view(torch.int16)) for name in names))
    m, n, k = (context.dimensions[name] for name in ("M", "N", "K"))
    PRODUCT.compile()
    return views, ((n + 31) // 32, (m + 7) // 8, 1), (m, n, k)

def run(context, state, set, epoch):
    views, grid, sizes = state
    PRODUCT(grid, (32, 8, 1), (*views[set], *sizes))
'''
)

EXTENSION = (
    HEAD
    + '''
EXTENSION = r"""
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

using bf16 = __nv_bfloat16;

__global__ void product(const bf16 *a, const bf16 *b, bf16 *c, int m, int n, int k) {
    const int i = blockIdx.y * blockDim.y + threadIdx.y;
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m || j >= n) return;
    float sum = 0;
    for (int p = 0; p < k; ++p)
        sum += __bfloat162float(a[int64_t(i) * k + p]) * __bfloat162float(b[int64_t(p) * n + j]);
    c[int64_t(i) * n + j] = __float2bfloat16(sum);
}

static void multiply(Tensor a, Tensor b, Tensor c) {
    void *stream = nullptr;
    aoti_torch_get_current_cuda_stream(a.get_device_index(), &stream);
    const int m = int(a.size(0)), k = int(a.size(1)), n = int(b.size(1));
    const dim3 grid((n + 31) / 32, (m + 7) / 8);
    product<<<grid, dim3(32, 8), 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const bf16 *>(a.data_ptr()), static_cast<const bf16 *>(b.data_ptr()),
        static_cast<bf16 *>(c.mutable_data_ptr()), m, n, k);
}

STABLE_TORCH_LIBRARY(kernel, m) { m.def("multiply(Tensor a, Tensor b, Tensor(a!) c) -> ()"); }
STABLE_TORCH_LIBRARY_IMPL(kernel, CUDA, m) { m.impl("multiply", TORCH_BOX(&multiply)); }
"""

def run(context, state, set, epoch):
    tensors = context.buffers[set]
    context.extension.multiply(tensors["A"], tensors["B"], tensors["C"])
'''
)
"""An extension of torch, in the form that does not depend on torch's version."""


def kernel(body: str) -> str:
    """A kernel whose run is `body`; `tensors` are those of the set."""
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    needs = 'def requirements(problem):\n    return {"side_streams": 1}\n'
    run = "def run(context, state, set, epoch):\n    tensors = context.buffers[set]\n"
    return f"{HEAD}\n{needs}\n{run}{lines}"
