"""What the tests of this folder need: GPUs, a word where there are too few, and a look at what is left."""

from __future__ import annotations

import functools

import pytest


def skip_unless(least: int) -> None:
    """Skips the calling module where fewer GPUs are, with the reason."""
    reason = _missing(least)
    if reason:
        pytest.skip(reason, allow_module_level=True)


def ranks_here() -> int:
    """Ranks of a test that can do with one GPU: two where they are."""
    return 1 if _missing(2) else 2


def check_nothing_left(target: object) -> None:
    """Fails where a rank or a compiler lives, or a GPU is quarantined."""
    from kerneltui.targets.cuda.runtime import CudaTarget
    from kerneltui.targets.processes import descendants, is_alive

    assert isinstance(target, CudaTarget)
    assert not [pid for pid in descendants([target.server_pid]) if is_alive(pid)]
    assert not target.quarantined


@functools.cache
def _missing(least: int) -> str:
    """Why the tests cannot run here, or nothing."""
    try:
        import pynvml
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return f"no GPU: {error}"
    return "" if count >= least else f"needs {least} GPUs, there are {count}"


two_gpus = pytest.mark.skipif(bool(_missing(2)), reason=_missing(2) or "there are two")
"""Of a test about what ranks do to each other."""
