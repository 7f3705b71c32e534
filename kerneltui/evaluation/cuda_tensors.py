"""Tensors of torch over device memory that somebody else owns."""

from __future__ import annotations

import torch

__all__ = ["device_bytes"]


class _Memory:
    """Device memory as the CUDA array interface describes it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


def device_bytes(address: int, nbytes: int, device: torch.device) -> torch.Tensor:
    """A flat uint8 tensor over device memory; nothing keeps the memory mapped but its owner.

    Raises:
        RuntimeError: If torch made a copy instead, because the memory lies on another device.
    """
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    made = torch.as_tensor(_Memory(address, nbytes), device=device)
    if made.data_ptr() != address:
        raise RuntimeError(f"memory at {address:#x} does not lie on {device}")
    return made
