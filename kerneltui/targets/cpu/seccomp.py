"""Seccomp: a process gives up system calls, for all its threads, by a filter of classic BPF.

The filter allows everything that it does not name. Numbers are those of x86-64 and 64-bit ARM.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

__all__ = ["Denied", "install", "seccomp_available"]

_LOAD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_RET_ALLOW, _RET_ERRNO, _RET_KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NR, _ARCH, _ARG0, _ARG2 = 0, 4, 16, 32
_SET_MODE_FILTER = 1
_FLAG_TSYNC, _FLAG_SPEC_ALLOW = 1, 4
_CLONE_THREAD = 0x00010000
_X32_BIT = 0x40000000
_PR_SET_PDEATHSIG = 1


class Denied(Enum):
    """What a filter denies."""

    ALL = "all"
    """Everything that a rank has no use for."""
    ALL_BUT_SOCKETS = "all but sockets"
    SOCKETS = "sockets"
    """New sockets and nothing else, for compilers, which start programs."""


@dataclass(frozen=True, slots=True)
class _Machine:
    audit: int
    seccomp: int
    columns: int


_MACHINES = {
    "x86_64": _Machine(0xC000003E, 317, 0),
    "aarch64": _Machine(0xC00000B7, 277, 1),
}

# name: (x86-64, 64-bit ARM); None where the call does not exist.
_CALLS: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    # leaving the group
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "setns": (308, 268),
    "unshare": (272, 97),
    "personality": (135, 92),
    # new programs and processes
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    # network
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    # memory that outlives the process or has no owner
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "userfaultfd": (323, 282),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    # kernel
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "open_by_handle_at": (304, 265),
    # the clock
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    # limits
    "setrlimit": (160, 164),
}
_NETWORK = ("socket",)
_SOCKETS = ("socket", "socketpair", "connect", "bind", "listen", "accept", "accept4")
_CLONE, _CLONE3, _KILL, _TGKILL, _PRLIMIT, _PRCTL = (
    (56, 220),
    (435, 435),
    (62, 129),
    (234, 131),
    (302, 261),
    (157, 167),
)


def seccomp_available() -> bool:
    """True if this machine has filters and this module knows its system calls."""
    return platform.machine() in _MACHINES and Path("/proc/sys/kernel/seccomp").exists()


def install(denied: Denied = Denied.ALL) -> bool:
    """Installs the filter on all threads of this process. `no_new_privs` must be set.

    Args:
        denied: What.

    Returns:
        False if this machine has no filters.

    Raises:
        OSError: If the kernel refuses.
    """
    if not seccomp_available():
        return False
    machine = _MACHINES[platform.machine()]
    if denied is Denied.SOCKETS:
        program = _network_filter(machine)
    else:
        program = _rank_filter(machine, sockets=denied is Denied.ALL_BUT_SOCKETS)
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(
        struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    # The last flag keeps speculative-store mitigation off, which older kernels switch on for
    # filtered processes and which would slow a candidate beside an unfiltered program.
    for flags in (_FLAG_TSYNC | _FLAG_SPEC_ALLOW, _FLAG_TSYNC):
        if libc.syscall(machine.seccomp, _SET_MODE_FILTER, flags, header) == 0:
            return True
    error = ctypes.get_errno()
    raise OSError(error, f"seccomp: {os.strerror(error)}")


def _rank_filter(machine: _Machine, *, sockets: bool) -> bytes:
    me = os.getpid()
    deny = _RET_ERRNO | errno.EPERM
    steps = _prologue(machine)
    for name in _CALLS:
        if sockets and name in _SOCKETS:
            continue
        steps += _refuse(_CALLS[name][machine.columns], deny)
    # glibc falls back to clone, whose flags a filter can read.
    steps += _refuse(_CLONE3[machine.columns], _RET_ERRNO | errno.ENOSYS)
    steps += _guarded(
        _CLONE[machine.columns],
        [_step(_LOAD, 0, 0, _ARG0), _step(_JSET, 1, 0, _CLONE_THREAD), _step(_RET, 0, 0, deny)],
    )
    for call in (_KILL, _TGKILL):  # only itself
        steps += _guarded(
            call[machine.columns],
            [_step(_LOAD, 0, 0, _ARG0), _step(_JEQ, 1, 0, me), _step(_RET, 0, 0, deny)],
        )
    steps += _guarded(  # reading limits is fine: the pointer to new ones is null then
        _PRLIMIT[machine.columns],
        [
            _step(_LOAD, 0, 0, _ARG2),
            _step(_JEQ, 0, 2, 0),
            _step(_LOAD, 0, 0, _ARG2 + 4),
            _step(_JEQ, 1, 0, 0),
            _step(_RET, 0, 0, deny),
        ],
    )
    steps += _guarded(
        _PRCTL[machine.columns],
        [
            _step(_LOAD, 0, 0, _ARG0),
            _step(_JEQ, 0, 1, _PR_SET_PDEATHSIG),
            _step(_RET, 0, 0, deny),
        ],
    )
    steps.append(_step(_RET, 0, 0, _RET_ALLOW))
    return b"".join(steps)


def _network_filter(machine: _Machine) -> bytes:
    steps = _prologue(machine)
    for name in _NETWORK:
        steps += _refuse(_CALLS[name][machine.columns], _RET_ERRNO | errno.EACCES)
    steps.append(_step(_RET, 0, 0, _RET_ALLOW))
    return b"".join(steps)


def _prologue(machine: _Machine) -> list[bytes]:
    steps = [
        _step(_LOAD, 0, 0, _ARCH),
        _step(_JEQ, 1, 0, machine.audit),
        _step(_RET, 0, 0, _RET_KILL),
        _step(_LOAD, 0, 0, _NR),
    ]
    if machine.columns == 0:  # the second table of x86-64, with other numbers for the same calls
        steps += [_step(_JGE, 0, 1, _X32_BIT), _step(_RET, 0, 0, _RET_ERRNO | errno.ENOSYS)]
    return steps


def _refuse(number: int | None, action: int) -> list[bytes]:
    if number is None:
        return []
    return [_step(_JEQ, 0, 1, number), _step(_RET, 0, 0, action)]


def _guarded(number: int, body: list[bytes]) -> list[bytes]:
    """Runs `body` for one system call, then puts the call number back and goes on."""
    return [
        _step(_JEQ, 0, len(body) + 1, number),
        *body,
        _step(_LOAD, 0, 0, _NR),
    ]


def _step(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
