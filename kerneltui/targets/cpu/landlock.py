"""Landlock: a process gives up parts of the file system for itself and all it will ever start.

System calls by number, since the C library has no functions for them. From the kernel's
documentation, userspace-api/landlock; interface versions 1 to 7.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LandlockRules", "landlock_version", "restrict"]

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ALL_V1 = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_NET_TCP = 0b11
_SCOPE_ABSTRACT_SOCKET_AND_SIGNAL = 0b11


class _RulesetAttr(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


@dataclass(frozen=True, slots=True)
class LandlockRules:
    """What stays allowed.

    Attributes:
        read: Files and folders that may be read and executed.
        write: Files and folders in which everything is allowed.
        tcp: True if TCP stays allowed.
        scoped: True if signals and abstract sockets of processes outside are out of reach.
    """

    read: tuple[Path, ...]
    write: tuple[Path, ...]
    tcp: bool = False
    scoped: bool = True


def landlock_version() -> int:
    """Version of the kernel's interface; 0 where there is none."""
    version = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _CREATE_RULESET_VERSION)
    return max(0, version)


def restrict(rules: LandlockRules) -> int:
    """Restricts the calling thread, and every thread and process that it starts later.

    Paths that do not exist are left out.

    Returns:
        The interface version that was used; 0 if this kernel has none and nothing was done.

    Raises:
        OSError: If the kernel has Landlock and refuses.
    """
    version = landlock_version()
    if version == 0:
        return 0
    handled = _ALL_V1
    handled |= _REFER if version >= 2 else 0
    handled |= _TRUNCATE if version >= 3 else 0
    handled |= _IOCTL_DEV if version >= 5 else 0
    attributes = _RulesetAttr(
        handled,
        _NET_TCP if version >= 4 and not rules.tcp else 0,
        _SCOPE_ABSTRACT_SOCKET_AND_SIGNAL if version >= 6 and rules.scoped else 0,
    )
    # Older kernels know a shorter structure.
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _call(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0)
    try:
        _allow(ruleset, rules.read, _READ)
        _allow(ruleset, rules.write, handled)
        if _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "no_new_privs refused")
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def _allow(ruleset: int, paths: Iterable[Path], access: int) -> None:
    for path in paths:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            rights = access if path.is_dir() else access & _FILE_RIGHTS
            rule = _PathBeneathAttr(rights, fd)
            _call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
        finally:
            os.close(fd)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    result = _libc().syscall(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock call {number}: {os.strerror(error)}")
    return result
