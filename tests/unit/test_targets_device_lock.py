"""Locks of the site, against real `flock` processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kerneltui.targets import device_lock as module
from kerneltui.targets.device_lock import DEVICE_LOCK, DeviceLock, named_locks
from kerneltui.targets.errors import TargetError
from kerneltui.targets.locks import LockTimeout, runtime_directory

_ENOUGH_S = 60.0

pytestmark = pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(module, "_SAY_AFTER_S", 0.0)


@contextmanager
def flocked(file: Path, *how: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another program that holds a lock until its standard input ends."""
    process = subprocess.Popen(
        ["flock", *how, str(file), "sh", "-c", "echo held; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.stdin.close()
        process.wait(_ENOUGH_S)
        process.stdout.close()


def is_free(file: Path) -> bool:
    return subprocess.run(["flock", "-n", str(file), "true"], check=False).returncode == 0


def test_while_it_is_held_no_other_program_gets_the_file(tmp_path: Path) -> None:
    file = tmp_path / "gpu.lock"
    lock = DeviceLock([str(file)])
    assert is_free(file)  # made, and open to all
    assert file.stat().st_mode & 0o777 == 0o666
    with lock.held(1):
        assert not is_free(file)
        with lock.held(1):  # a part of the same evaluation
            pass
        assert not is_free(file)
    assert is_free(file)


def test_a_program_that_has_the_file_is_waited_for_and_that_is_said(tmp_path: Path) -> None:
    file, said, got = tmp_path / "gpu.lock", list[str](), threading.Event()
    waiting = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        waiting.set()

    lock = DeviceLock([str(file)], say=say)

    def work() -> None:
        with lock.held(1):
            got.set()

    with flocked(file):
        thread = threading.Thread(target=work)
        thread.start()
        assert waiting.wait(_ENOUGH_S) and not got.is_set()
        assert said == [f"waits for the lock {file}"]
    thread.join(_ENOUGH_S)
    assert got.is_set()
    assert said == [f"waits for the lock {file}", f"has the lock {file}"]


def test_a_wait_ends_when_the_user_stops(tmp_path: Path) -> None:
    file = tmp_path / "gpu.lock"
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 2

    lock = DeviceLock([str(file)])
    with flocked(file), pytest.raises(LockTimeout, match="waiting for the lock"):  # noqa: SIM117
        with lock.held(1, stop=stop):
            pytest.fail("the lock was of somebody else")
    assert len(asked) == 3
    with lock.held(1, stop=lambda: True):  # nothing is left of the wait
        pass


def test_a_file_of_somebody_else_that_may_only_be_read_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gpu.lock"
    file.touch(0o644)
    real = os.open

    def as_a_stranger(path: Path, flags: int, mode: int = 0o777) -> int:
        # what Linux answers for a file of another user, also in a folder with the sticky bit
        if flags & (os.O_RDWR | os.O_CREAT):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, mode)

    monkeypatch.setattr(module.os, "open", as_a_stranger)
    with DeviceLock([str(file)]).held(1):
        monkeypatch.undo()
        assert not is_free(file)


@pytest.mark.parametrize("name", ["missing/gpu.lock", "file/gpu.lock"])
def test_a_file_that_cannot_be_made_is_refused_at_once(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TargetError, match=r"the lock .*gpu\.lock cannot be"):
        DeviceLock([str(tmp_path / name)])


def test_each_gpu_can_have_a_file_of_its_own(tmp_path: Path) -> None:
    lock = DeviceLock([str(tmp_path / "gpu{gpu}.lock"), str(tmp_path / "all.lock")], gpus=(5, 2, 7))
    names = [path.name for path in lock.paths(2)]
    assert names == ["all.lock", "gpu2.lock", "gpu5.lock"]
    with lock.held(2):
        assert not is_free(tmp_path / "gpu5.lock") and not is_free(tmp_path / "gpu2.lock")
        assert is_free(tmp_path / "gpu7.lock")


def test_a_file_that_was_replaced_meanwhile_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "gpu.lock"
    waiting, got, done = threading.Event(), threading.Event(), threading.Event()
    lock = DeviceLock([str(file)], say=lambda text: waiting.set())

    def work() -> None:
        with lock.held(1):
            got.set()
            done.wait(_ENOUGH_S)

    with flocked(file):
        thread = threading.Thread(target=work)
        thread.start()
        assert waiting.wait(_ENOUGH_S)
        file.unlink()
        assert got.wait(_ENOUGH_S)  # the old file is still locked; the new one is what others see
        assert not is_free(file)
    done.set()
    thread.join(_ENOUGH_S)


_STARTED_UNDER = """
import sys
from kerneltui.targets.device_lock import DeviceLock
said = []
with DeviceLock([sys.argv[1]], say=said.append).held(1, stop=lambda: True):
    print("held", said)
"""


def started_under(file: Path, *how: str) -> subprocess.CompletedProcess[str]:
    command = ["flock", *how, str(file), sys.executable, "-c", _STARTED_UNDER, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ENOUGH_S)


def test_the_program_that_started_it_may_hold_the_file(tmp_path: Path) -> None:
    found = started_under(tmp_path / "gpu.lock")
    assert found.stdout == "held []\n", found.stderr


def test_a_lock_that_is_not_handed_on_is_waited_for(tmp_path: Path) -> None:
    found = started_under(tmp_path / "gpu.lock", "--close")
    assert "stopped while waiting for the lock" in found.stderr


def test_an_open_file_that_locks_nothing_is_no_permission(tmp_path: Path) -> None:
    file = tmp_path / "gpu.lock"
    lock = DeviceLock([str(file)])
    descriptor = os.open(file, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        with flocked(file), pytest.raises(LockTimeout), lock.held(1, stop=lambda: True):
            pytest.fail("the lock was of somebody else")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with lock.held(1, stop=lambda: True):
            pass
        assert not is_free(file)  # what was held before is held still
    finally:
        os.close(descriptor)


def test_the_environment_names_a_lock_beside_those_of_the_machine() -> None:
    assert named_locks(("/a", "/b"), {}) == ("/a", "/b")
    assert named_locks(("/a",), {DEVICE_LOCK: "/c"}) == ("/a", "/c")
    assert named_locks(("/a",), {DEVICE_LOCK: "/a"}) == ("/a",)
    assert named_locks((), {DEVICE_LOCK: ""}) == ()
    with pytest.raises(TargetError, match=r"KERNELTUI_DEVICE_LOCK=gpu\.lock is no absolute path"):
        named_locks((), {DEVICE_LOCK: "gpu.lock"})


def test_nothing_is_waited_for_where_nothing_is_named() -> None:
    lock = DeviceLock()
    assert lock.paths(2) == ()
    with lock.held(2, stop=lambda: True):
        pass


def test_locks_of_a_user_are_in_one_place_however_the_process_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: set[Path] = set()
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    places.add(runtime_directory())
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
        places.add(runtime_directory())
    assert len(places) == 1
    assert places.pop().stat().st_mode & 0o777 == 0o700


def test_a_folder_that_is_somebody_elses_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"kerneltui-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(TargetError, match="of another user or no folder"):
        runtime_directory(tmp_path)
    with pytest.raises(TargetError, match="cannot be made a folder"):
        runtime_directory(tmp_path / "missing")
