"""The mutation canary: a kernel that is broken on purpose, whatever the kernel is."""

from __future__ import annotations

from kerneltui.model.kernel import Language

__all__ = ["broken_kernel"]

_HEAD = """\
#define kerneltui_setup kerneltui_setup_before
#define kerneltui_run kerneltui_run_before
"""
_TAIL = """
#undef kerneltui_setup
#undef kerneltui_run
static const kt_context *kerneltui_canary_context;
SPOIL
extern "C" int kerneltui_setup(const kt_context *ctx, void **state) {
    kerneltui_canary_context = ctx;
    return kerneltui_setup_before(ctx, state);
}
extern "C" int kerneltui_run(void *state, uint32_t set, uint64_t epoch, void *stream) {
    const int code = kerneltui_run_before(state, set, epoch, stream);
    const kt_buffer_set *buffers = &kerneltui_canary_context->buffers[set];
    for (uint32_t i = 0; i < buffers->tensor_count; ++i) {
        const kt_tensor *tensor = &buffers->tensors[i];
        if (tensor->role == KT_OUTPUT && tensor->bytes)
            kerneltui_canary_spoil(static_cast<unsigned char *>(tensor->local) + tensor->bytes - 1, stream);
    }
    return code;
}
"""
_SPOIL_HERE = """\
static void kerneltui_canary_spoil(unsigned char *place, void *) { *place ^= 0x41; }
"""
_SPOIL_ON_DEVICE = """\
#include <cuda_runtime.h>
static __global__ void kerneltui_canary_change(unsigned char *place) { *place ^= 0x41; }
static void kerneltui_canary_spoil(unsigned char *place, void *stream) {
    kerneltui_canary_change<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(place);
}
"""
_PYTHON = """

import torch as kerneltui_canary_torch

kerneltui_canary_run = run


def run(context, state, set, epoch):
    kerneltui_canary_run(context, state, set, epoch)
    for name in context.outputs:
        data = context.buffers[set][name].reshape(-1).view(kerneltui_canary_torch.uint8)
        data[-1:].bitwise_xor_(0x41)
"""


def broken_kernel(
    source: str, *, on_device: bool = False, language: Language = Language.CPP
) -> str:
    """Returns a kernel that does all that `source` does, and then spoils one element of each output.

    The bits that change are in the sign and exponent of a little-endian floating point number, or the
    high bits of an integer. The rest is right, so only a judge that compares every element sees it.

    Args:
        source: The kernel.
        on_device: Whether its tensors lie in the memory of a GPU.
        language: What the kernel is written in.
    """
    if language is Language.PYTHON:
        return source + _PYTHON
    return _HEAD + source + _TAIL.replace("SPOIL", _SPOIL_ON_DEVICE if on_device else _SPOIL_HERE)
