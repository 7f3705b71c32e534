"""What a machine does to a compiler: a full disk, a signal from outside. No kernel is to blame for it."""

from __future__ import annotations

import re
import signal

__all__ = ["machine_fault"]

_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals that a compiler does not get for what it does itself; those of our own limits are known before."""

# Not what a kernel says itself, by `#error` or in a line that is quoted.
_FULL = re.compile(
    r"^(?!.*(?:#error|#warning|static assertion|attribute error))"
    r"\S.*(?:No space left on device|Disk quota exceeded)'?$",
    re.MULTILINE,
)
_NOT_STARTED = re.compile(r"^cannot run .+$", re.MULTILINE)  # see `cpu.jail`
_ENDED = re.compile(
    r"^nvcc (?:error|fatal)\s*: .* died due to signal (?:1|2|9|15)\b.*$"
    r"|^\S*: fatal error: (?:Killed|Terminated) signal terminated program .*$"
    r"|^\S*: fatal error: ld terminated with signal (?:9|15)\b.*$"
    r"|^\S*: error: unable to execute command: (?:Killed|Terminated)$",
    re.MULTILINE,
)


def machine_fault(code: int, log: str) -> str:
    """Why a compiler that failed says nothing of the kernel, and what to do; "" if it does.

    Args:
        code: Its exit code: 128 and the number of a signal, or the negative number.
        log: What it printed.
    """
    if full := _FULL.search(log):
        return f"free some space: {full[0]}"
    if code == 127 and (refused := _NOT_STARTED.search(log)):
        return refused[0]
    ended = _ENDED.search(log)
    number = code - 128 if code > 128 else -code
    if ended or number in _OUTSIDE:
        what = ended[0] if ended else f"signal {number} ({signal.Signals(number).name})"
        return f"it was ended from outside, perhaps since memory ran out: {what}"
    return ""
