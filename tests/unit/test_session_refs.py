from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from kerneltui.session import refs as refs_module
from kerneltui.session.errors import SessionConflict, SessionDamaged
from kerneltui.session.files import FileWriter
from kerneltui.session.objects import ObjectStore
from kerneltui.session.records import Commit, Person, encode_commit
from kerneltui.session.refs import RefStore, candidate_ref

PERSON = Person("Ada", "ada@example.org")
REF = "refs/kerneltui/journal"


class Repository:
    """A repository with a few commits that share one empty tree."""

    def __init__(self, path: Path) -> None:
        subprocess.run(["git", "init", "-q", "-b", "main", path], check=True)
        self.path = path
        self.git_dir = path / ".git"
        files = FileWriter()
        self.refs = RefStore(self.git_dir, files)
        objects = ObjectStore(self.git_dir, files)
        tree = objects.write("tree", b"")
        self.shas = [
            objects.write(
                "commit",
                encode_commit(
                    Commit(tree, (), b"%d\n" % n), author=PERSON, committer=PERSON, at_ns=n
                ),
            )
            for n in range(3)
        ]

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def move(self, new: str, old: str | None, name: str = REF) -> None:
        self.refs.update(name, new, old=old, message="moved\n", person=PERSON, at_ns=10**18)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "r")


def test_git_reads_what_we_write_and_we_what_git_writes(repository: Repository):
    a, b, c = repository.shas
    repository.move(a, None)
    assert repository.git("rev-parse", REF) == a
    repository.git("update-ref", REF, b, a)
    assert repository.refs.read(REF) == b
    repository.git("pack-refs", "--all")
    assert not (repository.git_dir / REF).exists()
    assert repository.refs.read(REF) == b
    repository.move(c, b)
    assert repository.refs.list("refs/kerneltui/") == {REF: c}
    assert repository.git("for-each-ref", "--format=%(objectname)", REF) == c
    assert repository.refs.reflog(REF) == [a, b, c]
    assert repository.git("reflog", "show", "--format=%gs", REF).splitlines()[0] == "moved"


def test_a_ref_that_is_not_where_expected_stays(repository: Repository):
    a, b, _ = repository.shas
    repository.move(a, None)
    for old in (None, b):
        with pytest.raises(SessionConflict, match="expected"):
            repository.move(b, old)
    assert repository.refs.read(REF) == a
    assert not list(repository.git_dir.rglob("*.lock"))
    assert repository.refs.reflog(REF) == [a]


def test_a_lock_that_stays_is_an_error_and_one_that_goes_is_waited_for(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
):
    a, b, _ = repository.shas
    repository.move(a, None)
    lock = repository.git_dir / (REF + ".lock")
    lock.touch()
    timer = threading.Timer(0.05, lock.unlink)
    timer.start()
    repository.move(b, a)
    timer.join()
    lock.touch()
    monkeypatch.setattr(refs_module, "_LOCK_WAIT_S", 0.05)
    with pytest.raises(SessionConflict, match="delete the file"):
        repository.move(a, b)
    assert repository.refs.read(REF) == b


def test_an_empty_ref_is_damage(repository: Repository):
    repository.move(repository.shas[0], None)
    (repository.git_dir / REF).write_bytes(b"")
    with pytest.raises(SessionDamaged, match="empty or garbled"):
        repository.refs.read(REF)


def test_half_a_line_in_a_reflog_is_cut(repository: Repository):
    a, b, _ = repository.shas
    repository.move(a, None)
    log = repository.git_dir / "logs" / REF
    whole = log.read_bytes()
    log.write_bytes(whole + f"{a} {b} Ada".encode())
    repository.refs.mend_reflog(REF)
    assert log.read_bytes() == whole


@pytest.mark.parametrize("identifier", ["", "a/b", "..", "a..b", "x.lock", "-a", "a b", "ü", "a."])
def test_ids_that_cannot_be_refs(identifier: str):
    with pytest.raises(ValueError, match="cannot be the id"):
        candidate_ref(identifier)
