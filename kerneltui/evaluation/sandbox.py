"""What candidate code may not do: the confinement of a rank process.

The strongest that the kernel offers is taken, and named. Nothing here makes foreign code safe; it
keeps a broken or dishonest kernel away from the files, the network and the other processes of the
user, and it keeps the group killable.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import kerneltui
from kerneltui.targets.cpu.landlock import LandlockRules, restrict
from kerneltui.targets.cpu.seccomp import Denied, install

__all__ = ["PROCESS_HYGIENE", "confine", "deny_sockets", "drop_capabilities", "python_folders"]

PROCESS_HYGIENE = "process hygiene only"
"""The level where the kernel offers nothing: own group, limits, clean environment, watchdog."""

_PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT = 38, 24, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION = 0x20080522
_LAST_CAPABILITY = 63
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/sys", "/opt", "/dev/urandom")


def confine(writable: Sequence[Path], readable: Sequence[Path], *, sockets: bool = False) -> str:
    """Confines this process for good; call it with the threads that it needs already running.

    Files can be read where programs live, and written in `writable` only. New programs, processes
    and sockets, and signals to others, are refused.

    Args:
        writable: Folders of the rank's own, and devices.
        readable: Further files and folders, beside the system's and Python's.
        sockets: Whether sockets stay allowed, until `deny_sockets`.

    Returns:
        The level, such as "landlock 7 + seccomp".
    """
    parts: list[str] = []
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    drop_capabilities()
    try:
        version = restrict(
            LandlockRules(
                read=(*(Path(p) for p in _SYSTEM), *python_folders(), *readable),
                write=(*writable, Path("/dev/null")),
                tcp=sockets,
                scoped=not sockets,
            )
        )
    except OSError:  # built in, but switched off at boot
        version = 0
    if version:
        parts.append(f"landlock {version}")
    try:
        if install(Denied.ALL_BUT_SOCKETS if sockets else Denied.ALL):
            parts.append("seccomp")
    except OSError:  # refused by an outer container; the level says what is left
        pass
    return " + ".join(parts) or PROCESS_HYGIENE


def deny_sockets() -> None:
    """Refuses new sockets from now on, as far as the kernel offers it."""
    everything = (Path("/"),)
    with suppress(OSError):
        restrict(LandlockRules(read=everything, write=everything))
    with suppress(OSError):
        install(Denied.SOCKETS)


def drop_capabilities() -> None:
    """Gives up what root may do beyond its own files. No error where there is nothing to give up."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(_LAST_CAPABILITY + 1):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    libc.capset(header, none)


def python_folders() -> list[Path]:
    """Where Python, its packages and this package lie; not the whole home folder around them."""
    found = {Path(sys.prefix), Path(sys.base_prefix), Path(kerneltui.__file__).parent}
    found |= {Path(entry) for entry in sys.path if entry and Path(entry).is_dir()}
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home raises where there is none
    too_wide = {home, *home.parents}
    return [path for path in found if path not in too_wide]
