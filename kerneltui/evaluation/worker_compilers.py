"""Compilers for a rank that may start no program: a helper beside it runs them, confined, one at a time.

Triton runs `ptxas` and a C compiler. A rank refuses every new program, so it asks a process that was made
before it was confined. That process runs compilers and nothing else, each in the jail in which all
compiles run: no network, and no write access outside the rank's own folder. It holds neither buffers nor
a device, it looks at every PTX text as the machine's policy wants it, and it dies with its rank.
"""

from __future__ import annotations

import ctypes
import io
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from kerneltui.evaluation.sandbox import python_folders
from kerneltui.targets.building import CompilerRules, run_compiler
from kerneltui.targets.channel import Channel, ChannelClosed, ChannelTimeout
from kerneltui.targets.cuda.finding import one_line
from kerneltui.targets.cuda.policy import MachinePolicy
from kerneltui.targets.errors import CompileFailure, TargetError

__all__ = ["CompilerHelper", "program_class"]

_PR_SET_PDEATHSIG = 1
_LIMIT_S = 60.0
_MEMORY_BYTES = 24 << 30  # address space: ptxas reserves much more than it uses
_PROGRAMS = re.compile(
    r"ptxas(?:-blackwell)?|(?:x86_64-linux-gnu-|aarch64-linux-gnu-)?gcc(?:-\d+)?|cc|clang"
)
_REFUSED = re.compile(r"--options-file|-optf|@|-fplugin|-B|-wrapper|-specs|--config")
_ERROR = re.compile(rb"error|fatal")
_HELPER_TAKES_S = 5.0


class CompilerHelper:
    """The rank's end of its helper. Closed by default: a kernel compiles in `setup` and nowhere else.

    Args:
        own: The folder of the rank.
        readable: What compilers may read beside the system and Python's packages.
        policy: What the machine forbids.
    """

    def __init__(self, own: Path, readable: Sequence[Path], policy: MachinePolicy) -> None:
        self._open = False
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _be_helper(theirs, parent, own, readable, policy)
        theirs.close()
        self._channel = Channel(ours)

    def allow(self, now: bool) -> None:
        """Whether the kernel may compile from now on."""
        self._open = now

    def run(self, command: Sequence[str]) -> tuple[int, str]:
        """Runs a compiler; its exit code and what it printed.

        Raises:
            PermissionError: It is no compiler, or this is not the time to compile.
            OSError: The helper is gone.
        """
        if not self._open:
            raise PermissionError(
                "a kernel compiles in setup alone: call it there once as run does, with tensors of the "
                "same types and alignment"
            )
        try:
            self._channel.send({"command": list(command)})
            answer = self._channel.receive(time.monotonic() + _LIMIT_S + _HELPER_TAKES_S)
        except (ChannelClosed, ChannelTimeout) as error:
            raise OSError(f"the compiler helper is gone: {error}") from error
        if answer.get("refused"):
            raise PermissionError(str(answer["refused"]))
        return int(answer["code"]), str(answer["log"])

    def install(self) -> None:
        """Makes `subprocess` of this process ask the helper."""
        subprocess.Popen = program_class(self)


def program_class(helper: CompilerHelper) -> Any:
    """Returns a class in place of `subprocess.Popen`, which knows what callers of compilers use."""

    class Program:
        """A compiler that has run when its object is made."""

        def __init__(self, args: Any, *_: Any, **options: Any) -> None:
            if isinstance(args, (str, bytes)) or options.get("shell"):
                raise PermissionError("a kernel starts no programs")
            self.args = [os.fsdecode(part) for part in args]
            self.pid = helper.pid
            self.returncode, log = helper.run(self.args)
            text = bool(options.get("text") or options.get("encoding"))
            self._log: Any = log if text or options.get("universal_newlines") else log.encode()
            self._out, self._err = options.get("stdout"), options.get("stderr")
            for place in (self._out, self._err):
                if place is not None and hasattr(place, "fileno"):
                    os.write(place.fileno(), log.encode())
            self.stdin = None
            # What it printed is here already. Some read the pipe itself, ctypes.util among them.
            piped = subprocess.PIPE
            self.stdout = self._pipe() if self._out == piped else None
            self.stderr = self._pipe() if self._err == piped and self._out != piped else None

        def _pipe(self) -> Any:
            return io.StringIO(self._log) if isinstance(self._log, str) else io.BytesIO(self._log)

        def communicate(self, *_: Any, **__: Any) -> tuple[Any, Any]:
            """What it printed and nobody has read, where it was asked for."""
            return (
                None if self.stdout is None else self.stdout.read(),
                None if self.stderr is None else self.stderr.read(),
            )

        def wait(self, timeout: float | None = None) -> int:
            """Its exit code."""
            return self.returncode

        def poll(self) -> int:
            """Its exit code."""
            return self.returncode

        def kill(self) -> None:
            """It has ended already."""

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            return None

    return Program


def _be_helper(
    end: socket.socket, parent: int, own: Path, readable: Sequence[Path], policy: MachinePolicy
) -> NoReturn:
    """Serves until the rank is gone; never returns."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names, and no open folder meanwhile
            if int(name) > 2 and int(name) != end.fileno():
                with suppress(OSError):
                    os.close(int(name))
        folders = (*readable, *python_folders())
        rules = CompilerRules(_ERROR, folders, _MEMORY_BYTES)
        channel = Channel(end)
        while True:
            message = channel.receive(None)
            channel.send(_answer(message["command"], own, rules, policy))
    except ChannelClosed:
        os._exit(0)
    finally:
        os._exit(1)


def _answer(
    command: list[str], own: Path, rules: CompilerRules, policy: MachinePolicy
) -> dict[str, Any]:
    refusal = _refusal(command, own, policy)
    if refusal:
        return {"refused": refusal}
    try:
        run = run_compiler(command, own, rules, limit_s=_LIMIT_S)
    except (CompileFailure, TargetError, OSError) as error:
        return {"code": 127, "log": str(error)}
    if run.timed_out:
        return {"code": 124, "log": f"stopped after {run.seconds:.0f} s\n{run.log}"}
    return {"code": run.code, "log": run.log}


def _refusal(command: list[str], own: Path, policy: MachinePolicy) -> str:
    """Why a command is not run, or nothing."""
    program = Path(command[0]) if command else Path("nothing")
    if not program.is_absolute() or not _PROGRAMS.fullmatch(program.name):
        return f"a kernel starts no programs, compilers excepted: {program}"
    if own in program.parents or own in program.resolve().parents:
        return f"{program} lies in a folder that the kernel can write"
    for argument in command[1:]:
        if _REFUSED.match(argument):
            return f"the argument {argument} of {program.name} is not allowed"
        file = own / argument
        if argument.endswith(".ptx") and file.is_file():
            found = policy.check_ptx(file.read_text(errors="replace"))
            if found:
                return f"refused by the machine's policy: {one_line(found[0], 'kernel.py')}"
    return ""
