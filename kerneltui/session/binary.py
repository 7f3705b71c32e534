"""Running the git binary, for what is rare and whole: start-up, packing, bundles, bulk reading.

No variable of the user's environment that begins with `GIT_` reaches git, nor does the user's or
the machine's configuration, nor any hook: a session behaves the same in every shell. GitPython's
own runner can add to the environment but not take away from it, and its helper process would die
with a Ctrl-C that is meant for us; hence this one.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from kerneltui.session.errors import SessionDamaged, SessionError, SessionFull
from kerneltui.targets.environment import without_keys

__all__ = ["GitBinary", "check_status", "environment", "reason"]

_NO_ROOM = ("No space left on device", "File too large", "Disk quota exceeded")


class GitBinary:
    """The git binary on one repository.

    Args:
        path: the work tree; the repository is `.git` inside.
        keep_open: descriptors that commands which write inherit. The session's lock is one: should
            the engine die, the lock lasts until its last writing child has ended.
    """

    def __init__(self, path: Path, *, keep_open: Sequence[int] = ()) -> None:
        self._path = path
        self._keep_open = tuple(keep_open)

    def release(self) -> None:
        """Stops handing descriptors on; for when their owner closes them."""
        self._keep_open = ()

    def run(self, *arguments: str, data: bytes | None = None, user_config: bool = False) -> bytes:
        """Runs a command to its end and returns its standard output.

        Raises:
            SessionFull: git found no room.
            SessionError: git failed, or is not installed; the text has git's last words.
        """
        process = self.start(arguments, user_config=user_config, stdin=data is not None)
        output, errors = process.communicate(data)
        check_status(arguments, process.returncode, errors)
        return output

    def run_into(self, target: IO[bytes], *arguments: str, data: bytes) -> None:
        """Runs a command whose standard output goes to a file; errors as in `run`."""
        process = self.start(arguments, stdin=True, stdout=target)
        _, errors = process.communicate(data)
        check_status(arguments, process.returncode, errors)

    def run_from(self, source: IO[bytes], *arguments: str) -> bytes:
        """Runs a command that reads a file from where it stands; otherwise as `run`."""
        process = self.start(arguments, stdin=source)
        output, errors = process.communicate()
        check_status(arguments, process.returncode, errors)
        return output

    def run_until(self, stop: Callable[[], bool], *arguments: str) -> bool:
        """Runs a command, asking twenty times a second whether to stop it; False when stopped."""
        process = self.start(arguments)
        stopped = False
        while True:
            try:
                _, errors = process.communicate(timeout=0.05)
                break
            except subprocess.TimeoutExpired:
                if not stopped and stop():
                    stopped = True
                    process.terminate()
        if stopped:
            return False
        check_status(arguments, process.returncode, errors)
        return True

    def objects(self, tip: str, count: int) -> Iterator[tuple[str, bytes]]:
        """The last `count` commits of a chain of first parents, oldest first: sha and raw bytes.

        Raises:
            SessionDamaged: a commit cannot be read.
        """
        listing = self.start(
            ["rev-list", "--first-parent", "--reverse", f"--max-count={count}", tip]
        )
        assert listing.stdout is not None and listing.stderr is not None
        reading = self.start(["cat-file", "--batch", "--buffer"], stdin=listing.stdout)
        assert reading.stdout is not None and reading.stderr is not None
        listing.stdout.close()
        try:
            while head := reading.stdout.readline():
                words = head.split()
                if len(words) != 3 or words[1] != b"commit":
                    raise SessionDamaged(f"object {words[0].decode()} is missing; run `git fsck`")
                size = int(words[2])
                data = reading.stdout.read(size + 1)
                if len(data) != size + 1:
                    break
                yield words[0].decode(), data[:size]
            errors = listing.stderr.read() + reading.stderr.read()
            if listing.wait() or reading.wait():
                raise SessionDamaged(f"the journal cannot be read: {reason(errors)}")
        finally:
            for process in (reading, listing):
                with suppress(ProcessLookupError):
                    process.kill()
                process.wait()
                for pipe in (process.stdout, process.stderr):
                    if pipe is not None:
                        pipe.close()

    def start(
        self,
        arguments: Sequence[str],
        *,
        user_config: bool = False,
        stdin: bool | IO[bytes] = False,
        stdout: int | IO[bytes] = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        """Starts a command in a session of its own, so that Ctrl-C does not reach it.

        Raises:
            SessionError: git is not installed.
        """
        piped = subprocess.PIPE if stdin else subprocess.DEVNULL
        source = piped if isinstance(stdin, bool) else stdin
        try:
            return subprocess.Popen(
                ["git", *self._options(), *arguments],
                cwd=self._path,
                env=environment(user_config=user_config),
                stdin=source,
                stdout=stdout,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=self._keep_open,
            )
        except FileNotFoundError as error:
            if not self._path.is_dir():
                raise SessionError(f"{self._path}: the folder is gone") from error
            raise SessionError("git was not found; install git 2.34 or newer") from error

    def _options(self) -> list[str]:
        git_dir = self._path / ".git"
        options = [f"--git-dir={git_dir}", f"--work-tree={self._path}"] if git_dir.exists() else []
        settings = {
            "safe.directory": str(self._path.resolve()),
            "core.hooksPath": "/dev/null",
            "core.fsmonitor": "false",
            "core.symlinks": "false",  # a bundle from a stranger must not plant links
            "protocol.file.allow": "always",
            "gc.auto": "0",
            "maintenance.auto": "false",
        }
        for key, value in settings.items():
            options += ["-c", f"{key}={value}"]
        return options


def environment(*, user_config: bool) -> dict[str, str]:
    """The environment for git: no `GIT_` variable of the user, plain English, no configuration."""
    clean = {key: value for key, value in without_keys().items() if not key.startswith("GIT_")}
    if "GIT_EXEC_PATH" in os.environ:  # where git itself is installed
        clean["GIT_EXEC_PATH"] = os.environ["GIT_EXEC_PATH"]
    clean |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1"}
    # A ref that git moves gets a line in its reflog, and that line a name.
    for role in ("AUTHOR", "COMMITTER"):
        clean |= {f"GIT_{role}_NAME": "kerneltui", f"GIT_{role}_EMAIL": "kerneltui@localhost"}
    # `git init` of future versions may choose other formats by default.
    clean |= {"GIT_DEFAULT_HASH": "sha1", "GIT_DEFAULT_REF_FORMAT": "files"}
    if not user_config:
        clean |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    return clean


def reason(errors: bytes) -> str:
    """The line of git's error output that says most: the first fatal one, else the last."""
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines()]
    fatal = [line for line in lines if line.startswith("fatal:")]
    return (fatal or [line for line in lines if line][-1:] or ["no reason given"])[0]


def check_status(arguments: Sequence[str], status: int, errors: bytes) -> None:
    """Raises what a failed git command means.

    Raises:
        SessionFull: git found no room.
        SessionError: anything else.
    """
    if status == 0:
        return
    command = arguments[2] if arguments[0] == "-c" else arguments[0]
    text = errors.decode("utf-8", "replace")
    if any(sign in text for sign in _NO_ROOM):
        raise SessionFull(f"git {command}: no room to write; free some space")
    raise SessionError(f"git {command} failed ({status}): {reason(errors)}")
