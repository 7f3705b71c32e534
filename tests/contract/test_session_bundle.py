from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from session_by_git import KERNEL, git

from kerneltui.session.bundle import is_bundle, open_bundle, write_bundle
from kerneltui.session.errors import BundleError, SessionError
from kerneltui.session.repository import Session

NOW = 1_800_000_000_000_000_000


def add(session: Session, identifier: str) -> str:
    sha = session.write_candidate(
        identifier,
        files={KERNEL: identifier.encode()},
        parents=[session.main],
        subject=identifier,
        body="",
        trailers={},
        author=("a", "a@b"),
        at_ns=NOW,
    )
    session.add_note(sha, b"note " + identifier.encode(), at_ns=NOW)
    blob = session.write_blob(b"samples " + identifier.encode())
    session.journal.append(identifier, identifier.encode(), at_ns=NOW, blobs={"samples": blob})
    return sha


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with Session.create(
        tmp_path / "s", files={KERNEL: b"seed"}, message="Seed", trailers={}
    ) as made:
        for n in range(4):
            add(made, str(n))
        sha = made.candidate("3")
        assert sha is not None
        made.accept(sha, subject="Accept 3", body="", trailers={}, at_ns=NOW)
        yield made


def test_a_bundle_brings_everything(session: Session, tmp_path: Path):
    file = tmp_path / "out.bundle"
    file.write_bytes(b"an earlier file")
    write_bundle(session.path, file)
    assert is_bundle(file) and not is_bundle(session.path / KERNEL) and not is_bundle(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.bundle", "s"]
    with open_bundle(file, tmp_path / "copy") as copy:
        assert copy.refs() == session.refs()
        assert list(copy.journal.read()) == list(session.journal.read())
        for identifier, sha in session.candidates().items():
            assert copy.read_tree(sha) == session.read_tree(sha)
            assert copy.read_note(sha) == b"note " + identifier.encode()
        tip = copy.journal.tip
        assert tip is not None
        assert copy.read_blob(copy.journal.blobs(tip)["samples"]) == b"samples 3"
        add(copy, "later")
        assert (copy.path / KERNEL).read_bytes() == b"3"
    git(tmp_path / "copy", "fsck", "--full", "--strict")
    git(tmp_path / "copy", "bundle", "verify", "-q", str(file))
    assert git(tmp_path / "copy", "config", "gc.auto").strip() == "0"
    assert "Accept 3" in git(tmp_path / "copy", "tree")
    with open_bundle(file, tmp_path / "view", writable=False) as view:
        assert len(view.journal) == 4
        with pytest.raises(SessionError, match="read-only"):
            add(view, "x")


def test_plain_git_clones_a_bundle(session: Session, tmp_path: Path):
    write_bundle(session.path, tmp_path / "out.bundle")
    git(tmp_path, "clone", "-q", "out.bundle", "clone")
    assert (tmp_path / "clone" / KERNEL).read_bytes() == b"3"
    assert git(tmp_path / "clone", "branch", "--show-current").strip() == "main"


def test_a_bundle_of_a_running_engine_names_nothing_it_lacks(session: Session, tmp_path: Path):
    done = threading.Event()

    def run() -> None:
        n = 10
        while not done.is_set():
            add(session, str(n))
            n += 1

    writer = threading.Thread(target=run)
    writer.start()
    try:
        for n in range(6):
            write_bundle(session.path, tmp_path / f"{n}.bundle")
    finally:
        done.set()
        writer.join()
    for n in range(6):
        with open_bundle(tmp_path / f"{n}.bundle", tmp_path / f"copy{n}") as copy:
            for entry in copy.journal.read():
                sha = copy.candidate(entry.body.decode())
                assert sha is not None
                assert copy.read_file(sha, KERNEL) == entry.body
                assert copy.read_note(sha) == b"note " + entry.body


def test_files_that_are_no_bundle_say_so(session: Session, tmp_path: Path):
    good = tmp_path / "good.bundle"
    write_bundle(session.path, good)
    data = good.read_bytes()
    bad = tmp_path / "bad.bundle"
    pack = data.index(b"\n\n") + 2
    main = session.main.encode()
    cases = [
        (b"hello", "is no bundle"),
        (b"", "is no bundle"),
        (data[: pack - 1], "is cut short"),
        (data[:pack], "cut short or damaged"),
        (data[: pack + 30], "cut short or damaged"),
        (data[:-1], "cut short or damaged"),
        (data[:-300] + os.urandom(300), "cut short or damaged"),
        (data.replace(b" refs/kerneltui/journal\n", b" refs/kerneltui/elsewhere\n"), "no journal"),
        (data.replace(b" refs/heads/main\n", b" refs/../main\n"), "a ref that cannot be"),
        (data.replace(main, b"1" * 40), "lacks what a ref names"),
        (data.replace(b"git bundle\n", b"git bundle\n-" + b"0" * 40 + b"\n"), "only part"),
    ]
    for content, words in cases:
        bad.write_bytes(content)
        with pytest.raises(BundleError, match=words) as caught:
            open_bundle(bad, tmp_path / "copy")
        assert str(bad) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(BundleError, match="no such file"):
        open_bundle(tmp_path / "none.bundle", tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.bundle", "good.bundle", "s"]
    with pytest.raises(SessionError, match="not empty"):
        open_bundle(good, session.path)


def test_a_bundle_of_another_repository_has_no_journal(tmp_path: Path):
    git(tmp_path, "init", "-q", "-b", "main", "other")
    other = tmp_path / "other"
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    git(other, *identity, "commit", "-q", "--allow-empty", "-m", "x")
    git(other, "bundle", "create", "-q", "../other.bundle", "--all")
    with pytest.raises(BundleError, match="no journal"):
        open_bundle(tmp_path / "other.bundle", tmp_path / "copy")


def test_a_session_in_which_nothing_happened_has_nothing_to_bundle(tmp_path: Path):
    Session.create(tmp_path / "s", files={}, message="Seed", trailers={}).close()
    with pytest.raises(SessionError, match="nothing has happened"):
        write_bundle(tmp_path / "s", tmp_path / "out.bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
