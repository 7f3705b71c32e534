"""What a rank finds when it loads its libraries: of which CUDA torch is, and which NCCL comes with it.

Run as `python -m kerneltui.evaluation.worker_versions`; prints one JSON object. `doctor` asks so, since
only a process that loads them as a rank does can tell.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

__all__ = ["loaded_versions", "main"]

_NCCL = "libnccl.so.2"


def loaded_versions() -> dict[str, Any]:
    """Version of torch, its CUDA or None, the code of the loaded NCCL or None, and that one's file."""
    import torch

    found: dict[str, Any] = {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "nccl": None,
        "nccl_file": "",
    }
    code = ctypes.c_int()
    try:
        library = ctypes.CDLL(_NCCL)  # by its name alone, behind torch: as ranks do
        if library.ncclGetVersion(ctypes.byref(code)) == 0:
            found["nccl"] = code.value
    except (OSError, AttributeError) as error:
        found["nccl_file"] = str(error)
        return found
    found["nccl_file"] = _mapped_nccl()
    return found


def _mapped_nccl() -> str:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    names = (line.split(maxsplit=5)[-1] for line in maps.splitlines())
    return next((name for name in names if name.rpartition("/")[2].startswith("libnccl.so")), "")


def main() -> int:
    """Prints what was found."""
    print(json.dumps(loaded_versions()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
