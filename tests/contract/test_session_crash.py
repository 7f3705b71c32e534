"""A writer that is killed at any instant, or loses its power, loses nothing it acknowledged.

`KERNELTUI_KILL_ROUNDS=1000 pytest tests/contract/test_session_crash.py` runs the long form.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from session_by_git import KERNEL, check_fsck

from kerneltui.session.errors import SessionDamaged, SessionLocked
from kerneltui.session.journal import Entry
from kerneltui.session.repository import Session

ROUNDS = int(os.environ.get("KERNELTUI_KILL_ROUNDS", "60"))


def write_until_killed(path: Path, acknowledge: int, name: str) -> None:
    """What the engine does, as fast as it can; each acknowledged position goes to the pipe."""
    session = Session.open(path, writable=True)
    os.write(acknowledge, b"\n")
    packer = threading.Thread(target=session.pack)
    seed = session.main
    for n in range(10_000):
        identifier = f"{name}-{n}"
        now = time.time_ns()
        sha = session.write_candidate(
            identifier,
            files={KERNEL: identifier.encode() * 50},
            parents=[session.main],
            subject=identifier,
            body="",
            trailers={},
            author=("a", "a@b"),
            at_ns=now,
        )
        session.add_note(sha, identifier.encode(), at_ns=now)
        blob = session.write_blob(identifier.encode() * 20)
        event: dict[str, str] = {"candidate": identifier, "sha": sha}
        if n % 3 == 1:
            event["main"] = session.accept(sha, subject="a", body="", trailers={}, at_ns=now)
        if n % 3 == 2:
            event["main"] = session.restore(seed, subject="u", body="", trailers={}, at_ns=now)
        position = session.journal.append(
            identifier,
            json.dumps(event).encode(),
            at_ns=now,
            blobs={"samples": blob},
            durable=n % 3 == 1,
        )
        os.write(acknowledge, f"{position} {identifier}\n".encode())
        if n == 3:
            packer.start()
        if n % 4 == 0:
            session.refresh_worktree()


def run_and_kill(
    path: Path, name: str, delay_s: float, *, events: int | None
) -> list[tuple[int, str]]:
    """Forks a writer, kills it after a while, and returns what it acknowledged.

    The while begins with the fork (None), or when so many events are acknowledged.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            write_until_killed(path, writing, name)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = b"".join(pipe.readline() for _ in range(0 if events is None else events + 1))
        time.sleep(delay_s)
        os.kill(child, signal.SIGKILL)
        text += pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the writer failed by itself"
    lines = [line.split() for line in text.decode().splitlines() if line]
    return [(int(position), identifier) for position, identifier in lines]


def reopen(path: Path) -> tuple[Session, list[Entry]]:
    """Opens as the engine does: fold, then drop what the journal does not name."""
    session = Session.open(path, writable=True)
    entries = list(session.journal.read())
    events = [json.loads(entry.body) for entry in entries]
    session.drop_unnamed({event["candidate"] for event in events})
    mains = [event["main"] for event in events if "main" in event]
    if mains:
        session.reset_main(mains[-1])
    return session, entries


def test_sigkill_at_random_instants_loses_no_acknowledged_event(tmp_path: Path):
    path = tmp_path / "s"
    Session.create(path, files={KERNEL: b"seed"}, message="Seed", trailers={}).close()
    chance = random.Random(20260)
    before: list[Entry] = []
    acknowledged = 0
    for round_number in range(ROUNDS):
        events = chance.choice([None, 0, 1, 2, 4])
        delay_s = chance.uniform(0.0, 0.06 if events is None else 0.02)
        lines = run_and_kill(path, f"r{round_number}", delay_s, events=events)
        acknowledged += len(lines)
        session, entries = reopen(path)
        with session:
            assert session.notices == [] or all("git does not know" in n for n in session.notices)
            assert entries[: len(before)] == before
            names = [json.loads(entry.body)["candidate"] for entry in entries]
            assert [(position, names[position - 1]) for position, _ in lines] == lines
            assert len(entries) - len(before) - len(lines) in {0, 1}
            for entry in entries[len(before) :]:
                event = json.loads(entry.body)
                name = event["candidate"].encode()
                assert session.candidate(event["candidate"]) == event["sha"]
                assert session.read_tree(event["sha"]) == {KERNEL: name * 50}
                assert session.read_note(event["sha"]) == name
                blobs = session.journal.blobs(entry.sha)
                assert session.read_blob(blobs["samples"]) == name * 20
            assert set(session.candidates()) == set(names)
            assert session.refresh_worktree() is None
            leavings = [*session.git_dir.rglob("tmp_*"), *session.git_dir.rglob("*.lock")]
            assert leavings == [session.git_dir / "kerneltui.lock"]
        before = entries
        if round_number % 10 == 0:
            check_fsck(path)
    assert acknowledged >= ROUNDS
    check_fsck(path)


@pytest.fixture
def crashed(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """A session with five events whose writer did not close it; and the events' commits."""
    path = tmp_path / "s"
    Session.create(path, files={KERNEL: b"seed"}, message="Seed", trailers={}).close()
    session = Session.open(path, writable=True)
    for n in range(5):
        session.journal.append("e", b"%d" % n, at_ns=10**18 + n)
    shas = [entry.sha for entry in session.journal.read()]
    assert session._lock is not None
    session._lock.close(clean=False)
    yield path, shas


def object_path(path: Path, sha: str) -> Path:
    return path / ".git" / "objects" / sha[:2] / sha[2:]


def empty(path: Path) -> None:
    """Leaves the file without its bytes, as lost power does."""
    path.chmod(0o644)
    path.write_bytes(b"")


@pytest.mark.parametrize("lost", [{4}, {3, 4}, {2}, {2, 4}])
def test_lost_power_falls_back_to_the_last_whole_chain(
    crashed: tuple[Path, list[str]], lost: set[int]
):
    path, shas = crashed
    for n in lost:
        empty(object_path(path, shas[n]))
    with Session.open(path, writable=True) as session:
        kept = min(lost)
        assert [entry.body for entry in session.journal.read()] == [b"%d" % n for n in range(kept)]
        assert any("refs/kerneltui/journal was put back" in line for line in session.notices)
        assert session.journal.append("again", b"x", at_ns=10**18) == kept + 1
    with Session.open(path, writable=True) as session:
        assert len(session.journal) == kept + 1
        assert not any("put back" in line for line in session.notices)


def test_a_journal_ref_without_its_bytes_is_found_again(crashed: tuple[Path, list[str]]):
    path, shas = crashed
    empty(path / ".git" / "refs" / "kerneltui" / "journal")
    with Session.open(path, writable=True) as session:
        assert session.journal.tip == shas[-1]
    check_fsck(path)


def test_a_session_with_nothing_readable_left_says_so(crashed: tuple[Path, list[str]]):
    path, shas = crashed
    for sha in shas:
        empty(object_path(path, sha))
    with pytest.raises(SessionDamaged, match="restore the session from a bundle"):
        Session.open(path, writable=True)


def test_a_candidate_lost_with_the_power_is_dropped_with_a_word(tmp_path: Path):
    path = tmp_path / "s"
    session = Session.create(path, files={KERNEL: b"seed"}, message="Seed", trailers={})
    sha = session.write_candidate(
        "1",
        files={KERNEL: b"new"},
        parents=[session.main],
        subject="1",
        body="",
        trailers={},
        author=("a", "a@b"),
        at_ns=10**18,
    )
    session.accept(sha, subject="Accept 1", body="", trailers={}, at_ns=10**18)
    assert session._lock is not None
    session._lock.close(clean=False)
    empty(object_path(path, sha))
    with Session.open(path, writable=True) as again:
        assert again.candidate("1") is None
        assert any("candidates/1 was dropped" in line for line in again.notices)


def test_stale_leavings_are_swept_by_the_holder_of_the_lock_only(crashed: tuple[Path, list[str]]):
    path, _ = crashed
    git_dir = path / ".git"
    leavings = [
        git_dir / "index.lock",
        git_dir / "packed-refs.lock",
        git_dir / "packed-refs.new",
        git_dir / "config.lock",
        git_dir / "refs" / "kerneltui" / "journal.lock",
        git_dir / "refs" / "heads" / "main.lock",
        git_dir / "objects" / "aa" / "tmp_obj_1_2_3",
        git_dir / "objects" / "pack" / "tmp_pack_x",
        git_dir / "objects" / "pack" / ".tmp-1-pack-x.pack",
        git_dir / "kerneltui" / "tmp_obj_9_9_9",
    ]
    for leaving in leavings:
        leaving.parent.mkdir(exist_ok=True)
        leaving.write_bytes(b"half")
    with Session.open(path, writable=False) as reader:
        assert len(reader.journal) == 5
    assert all(leaving.exists() for leaving in leavings)
    with Session.open(path, writable=True) as session:
        assert not any(leaving.exists() for leaving in leavings)
        session.journal.append("e", b"5", at_ns=10**18)
        assert session.pack()
        assert session.refresh_worktree() is None


def test_the_lock_lasts_as_long_as_a_writing_child(crashed: tuple[Path, list[str]]):
    path, _ = crashed
    lock = os.open(path / ".git" / "kerneltui.lock", os.O_RDWR)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock]) as holder:
        assert holder.stdin
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.ftruncate(lock, 0)  # a number with fewer digits would leave some of the one before
        os.pwrite(lock, b"%d\n" % holder.pid, 0)
        os.close(lock)
        with pytest.raises(SessionLocked) as caught:
            Session.open(path, writable=True)
        assert caught.value.pid == holder.pid
        lock = os.open(path / ".git" / "kerneltui.lock", os.O_RDWR)
        os.pwrite(lock, b"999999999\n", 0)  # a dead engine, whose child still writes
        os.close(lock)
        ends = threading.Timer(0.3, holder.stdin.close)
        ends.start()
        Session.open(path, writable=True).close()
        ends.join()
        assert holder.wait() == 0
