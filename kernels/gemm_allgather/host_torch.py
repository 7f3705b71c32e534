"""GEMM + AllGather as the host drives it: the product into the own rows of C, then the library's all-gather.

A seed for sessions in Python, on the CPU and on GPUs.
"""
# ruff: noqa: ANN001, ANN201, D103 - the contract says what they are and get

# kerneltui: directive backend host
# kerneltui: directive issuer thread
# kerneltui: directive placement sequential
# kerneltui: directive sync world
# kerneltui: directive chunk_bytes = 0

import torch


def requirements(problem):
    return {"host_collectives": 1}


def run(context, state, set, epoch):
    tensors = context.buffers[set]
    first = context.offsets["A"][0]
    # kerneltui: evolve begin call
    own = tensors["C"][first : first + len(tensors["A"])]
    torch.mm(tensors["A"], tensors["B"], out=own)
    context.all_gather(own, tensors["C"])
    # kerneltui: evolve end
