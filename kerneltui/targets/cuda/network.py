"""What NCCL's device side can do on this machine: windows of peers' memory, calls over a network (GIN)."""

from __future__ import annotations

from pathlib import Path

from kerneltui.targets.cuda.packages import Nccl

__all__ = ["gin_missing", "nccl_words"]

_ADAPTERS = Path("/sys/class/infiniband")
_ACTIVE = "ACTIVE"
_FIRST = (22800, 22807)
"""The first versions (NCCL_VERSION_CODE) with windows for kernels, and with GIN."""


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


def nccl_words(nccl: Nccl | None, adapters: Path = _ADAPTERS) -> dict[str, str]:
    """What a session's record of its machine says of NCCL's device side; `yes` begins what is there.

    Args:
        nccl: What kernels are compiled against, if there is any.
        adapters: Where the system lists RDMA adapters.
    """
    if nccl is None:
        return dict.fromkeys(("nccl windows", "gin"), "no: there are no headers of NCCL")
    lacking = [f"no: NCCL {nccl.version} has none" if nccl.code < first else "" for first in _FIRST]
    missing = gin_missing(adapters)
    return {
        "nccl windows": lacking[0] or f"yes, by NCCL {nccl.version}",
        "gin": lacking[1] or (f"no: {missing}" if missing else "yes"),
    }
