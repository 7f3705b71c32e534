"""What a session refuses, and what it says of a full disk and of damage: one clear line each."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from session_by_git import check_fsck, git, propose, seeded

from kerneltui.session.errors import (
    NotASession,
    SessionConflict,
    SessionDamaged,
    SessionError,
    SessionFull,
    SessionLocked,
)
from kerneltui.session.repository import Session


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with seeded(tmp_path / "s") as made:
        yield made


def test_a_body_with_nul_is_refused_and_leaves_nothing(session: Session):
    with pytest.raises(ValueError, match="NUL"):
        session.journal.append("x", b"a\0b", at_ns=0)
    assert len(session.journal) == 0


def test_a_taken_id_is_refused_also_when_packed(session: Session):
    sha = propose(session, "1", b"a")
    assert session.pack()
    with pytest.raises(SessionConflict, match="exists already"):
        propose(session, "1", b"b")
    assert session.candidate("1") == sha
    assert session.candidate("2") is None


def test_one_writer_many_readers(session: Session):
    with pytest.raises(SessionLocked) as caught:
        Session.open(session.path, writable=True)
    assert caught.value.pid == os.getpid()
    assert str(os.getpid()) in str(caught.value) and "kerneltui open" in str(caught.value)
    with Session.open(session.path, writable=False) as reader:
        session.journal.append("x", b"1", at_ns=0)
        assert [entry.body for entry in reader.journal.read()] == [b"1"]
        for write in (
            lambda: reader.journal.append("x", b"2", at_ns=0),
            lambda: reader.write_blob(b""),
            lambda: reader.drop_unnamed(()),
            lambda: propose(reader, "1", b""),
        ):
            with pytest.raises(SessionError, match="read-only"):
                write()


def test_creating_leaves_all_or_nothing(tmp_path: Path):
    with pytest.raises(ValueError, match="cannot be a path"):
        Session.create(tmp_path / "s", files={"../x": b""}, message="Seed", trailers={})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(SessionError, match="not empty"):
        Session.create(tmp_path / "taken", files={}, message="Seed", trailers={})
    with pytest.raises(NotASession, match="holds no session"):
        Session.open(tmp_path / "taken", writable=False)


def test_a_newer_layout_is_read_but_not_written(session: Session):
    session.journal.append("x", b"1", at_ns=0)
    session.close()
    git(session.path, "config", "kerneltui.format", "2")
    with pytest.raises(NotASession, match="newer kerneltui"):
        Session.open(session.path, writable=True)
    with Session.open(session.path, writable=False) as reader:
        assert len(reader.journal) == 1


@pytest.fixture
def file_size_limit() -> Iterator[int]:
    """Files may not grow beyond this while the block runs, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = 4096
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_one_clear_line_and_loses_nothing(session: Session, file_size_limit: int):
    main = session.main
    with pytest.raises(SessionFull, match="free some space"):
        propose(session, "big", os.urandom(2 * file_size_limit))
    with pytest.raises(SessionFull):
        session.journal.append("big", os.urandom(2 * file_size_limit).replace(b"\0", b""), at_ns=0)
    written = 0
    with pytest.raises(SessionFull):  # the reflog grows with every event until it may not
        while True:
            session.journal.append("small", b"%d" % written, at_ns=0)
            written += 1
    assert 10 < written < 100
    with pytest.raises(SessionFull):
        session.journal.append("small", b"x", at_ns=0)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    session.journal.append("after", b"after", at_ns=0)
    bodies = [entry.body for entry in session.journal.read()]
    assert bodies == [*(b"%d" % n for n in range(written)), b"after"]
    assert session.main == main and session.candidates() == {}
    assert not list(session.git_dir.rglob("tmp_obj_*"))
    assert (
        len(git(session.path, "reflog", "show", "refs/kerneltui/journal").splitlines())
        == written + 1
    )
    check_fsck(session.path)


def test_damage_is_named(session: Session):
    sha = propose(session, "1", b"a")
    path = session.git_dir / "objects" / sha[:2] / sha[2:]
    for data, words in ((b"", "is empty"), (b"xx", "cut short or garbled")):
        path.unlink()
        path.write_bytes(data)
        with pytest.raises(SessionDamaged, match=words):
            session.read_tree(sha)
    path.unlink()
    with pytest.raises(SessionDamaged, match="is missing"):
        session.read_tree(sha)
    with pytest.raises(SessionDamaged, match="no object name"):
        session.read_tree("xyz")
    with pytest.raises(SessionError, match="has no file"):
        session.read_file(session.main, "nothing")
