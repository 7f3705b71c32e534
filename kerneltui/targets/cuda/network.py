"""Whether NCCL's device side can reach other GPUs over a network (GIN) on this machine."""

from __future__ import annotations

from pathlib import Path

__all__ = ["gin_missing"]

_ADAPTERS = Path("/sys/class/infiniband")
_ACTIVE = "ACTIVE"


def gin_missing(adapters: Path = _ADAPTERS) -> str:
    """Why kernels with GIN cannot run here, or nothing.

    Args:
        adapters: Where the system lists RDMA adapters.
    """
    ports = sorted(adapters.glob("*/ports/*/state"))
    if not ports:
        return f"there is no RDMA network adapter ({adapters} lists none)"
    for port in ports:
        try:
            if _ACTIVE in port.read_text():
                return ""
        except OSError:
            continue  # a port that has gone away
    return f"no port of {', '.join(sorted({p.parts[-4] for p in ports}))} is active"
