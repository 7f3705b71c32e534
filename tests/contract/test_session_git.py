"""The session through its own API and through the git binary: both must see the same."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_by_git import KERNEL, NOW, check_fsck, git, propose, seeded

from kerneltui.session.errors import (
    NotASession,
)
from kerneltui.session.repository import Session

ONE_SESSION = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with seeded(tmp_path / "s") as made:
        yield made


def test_a_whole_session_reads_well_with_plain_git(session: Session, tmp_path: Path):
    seed = session.main
    a = propose(session, "1", b"a\n")
    b = propose(session, "2", b"b\n", a)
    crossed = propose(session, "3", b"c\n", a, b)
    session.add_note(b, b'{"verdict": "FASTER"}\n', at_ns=NOW)
    accepted = session.accept(b, subject="Accept 2", body="", trailers={}, at_ns=NOW)
    undone = session.restore(seed, subject="Undo", body="", trailers={}, at_ns=NOW)
    session.journal.append("measured 2", b'{"candidate":"2"}', at_ns=NOW)
    assert session.refresh_worktree() is None
    path = session.path

    story = git(path, "log", "--first-parent", "--format=%H %s", "main").splitlines()
    assert story == [f"{undone} Undo", f"{accepted} Accept 2", f"{seed} Seed host.cpp"]
    assert git(path, "rev-parse", f"{accepted}^{{tree}}") == git(path, "rev-parse", f"{b}^{{tree}}")
    assert git(path, "rev-parse", f"{accepted}^1", f"{accepted}^2").split() == [seed, b]
    assert git(path, "rev-parse", f"{crossed}^1", f"{crossed}^2").split() == [a, b]
    assert session.parents(crossed) == (a, b)
    assert git(path, "notes", "show", b) == '{"verdict": "FASTER"}\n'
    assert git(path, "show", f"refs/kerneltui/candidates/3:{KERNEL}") == "c\n"
    trailers = git(path, "log", "-1", "--format=%(trailers:key=Kerneltui-Inspiration,valueonly)", a)
    assert trailers.split() == ["1", "2"]
    journal = git(path, "log", "--format=%s|%b", "refs/kerneltui/journal")
    assert journal.strip() == 'measured 2|{"candidate":"2"}'
    tree = git(path, "tree")
    assert "3: CHUNK_ROWS 64 → 128" in tree and "|" in tree and "(main)" in tree
    assert "measured" not in tree and "Evaluation" not in tree
    assert (path / KERNEL).read_bytes() == b"seed\n"
    assert git(path, "status", "--porcelain") == ""
    assert git(path, "reflog", "show", "--format=%gs", "main").splitlines()[1] == "accept: Accept 2"
    check_fsck(path)
    git(tmp_path, "clone", "-q", str(path), "clone")
    assert (tmp_path / "clone" / KERNEL).read_bytes() == b"seed\n"
    with pytest.raises(NotASession, match=r"refs/\*:refs/\*"):
        Session.open(tmp_path / "clone", writable=False)
    git(tmp_path / "clone", "fetch", "-q", "-u", "origin", "refs/*:refs/*")
    with Session.open(tmp_path / "clone", writable=True) as clone:
        assert [entry.body for entry in clone.journal.read()] == [b'{"candidate":"2"}']
        assert clone.read_note(b) == b'{"verdict": "FASTER"}\n'
    assert "CHUNK_ROWS" in git(tmp_path / "clone", "tree")


NAME = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0"), min_size=1, max_size=8)
FILES = st.dictionaries(NAME.map(lambda name: f"d/_{name}"), st.binary(max_size=200), max_size=4)


@ONE_SESSION
@given(files=FILES, subject=st.text(), body=st.text(), note=st.binary())
def test_any_bytes_come_back(
    session: Session, files: dict[str, bytes], subject: str, body: str, note: bytes
):
    number = str(len(session.candidates()))
    sha = session.write_candidate(
        number,
        files=files,
        parents=[session.main],
        subject=subject,
        body=body,
        trailers={"Kerneltui-Steer": body},
        author=(subject, body),
        at_ns=NOW,
    )
    session.add_note(sha, note, at_ns=NOW)
    assert session.candidate(number) == sha
    assert session.read_tree(sha) == files
    assert session.read_note(sha) == note
    for path, data in files.items():
        assert session.read_file(sha, path) == data
    listed = subprocess.run(
        ["git", "ls-tree", "-rz", "--name-only", sha],
        cwd=session.path,
        capture_output=True,
        check=True,
    ).stdout
    assert {name.decode() for name in listed.split(b"\0") if name} == set(files)
    assert git(session.path, "fsck", "--strict", "--no-dangling", sha) == ""


@ONE_SESSION
@given(
    subject=st.text(),
    body=st.binary().filter(lambda body: b"\0" not in body),
    at_ns=st.integers(0, 2**62),
    pack=st.sampled_from([False] * 9 + [True]),
)
def test_events_come_back_byte_for_byte(
    session: Session, subject: str, body: bytes, at_ns: int, pack: bool
):
    before = list(session.journal.read())
    position = session.journal.append(subject, body, at_ns=at_ns)
    if pack:
        assert session.pack()
    assert position == len(before) + 1 == len(session.journal)
    entries = list(session.journal.read())
    assert entries[:-1] == before
    assert (entries[-1].body, entries[-1].at_ns, entries[-1].position) == (body, at_ns, position)
    for start in {0, 1, position // 2, position - 1, position, position + 3}:
        assert list(session.journal.read(start)) == entries[start:]
    assert session.journal.sha_at(max(1, position // 2)) == entries[max(1, position // 2) - 1].sha
    assert session.journal.sha_at(0) is None and session.journal.sha_at(position + 1) is None


def test_samples_hang_in_the_event_and_survive_the_strictest_clean_up(session: Session):
    samples = os.urandom(2000)
    session.journal.append("m", b"{}", at_ns=0, blobs={"samples": session.write_blob(samples)})
    git(session.path, "gc", "--quiet", "--prune=now", "--aggressive")
    tip = session.journal.tip
    assert tip is not None
    assert session.read_blob(session.journal.blobs(tip)["samples"]) == samples
    check_fsck(session.path)


def test_notes_replace_each_other_and_mix_with_those_of_git(session: Session):
    shas = [propose(session, str(n), b"%d" % n) for n in range(20)]
    git(session.path, "notes", "add", "-m", "by hand", shas[0])
    for n, sha in enumerate(shas[1:]):
        session.add_note(sha, b"first", at_ns=NOW)
        session.add_note(sha, b"note %d" % n, at_ns=NOW)
    assert session.read_note(shas[0]) == b"by hand\n"
    git(session.path, "notes", "add", "-f", "-m", "again", shas[1])
    session.add_note(shas[0], b"mine", at_ns=NOW)
    assert session.read_note(shas[1]) == b"again\n"
    assert [git(session.path, "notes", "show", sha) for sha in shas[2:]] == [
        f"note {n}" for n in range(1, 19)
    ]
    assert len(git(session.path, "notes", "list").splitlines()) == 20
    assert session.read_note(session.main) is None
    assert git(session.path, "notes", "show", shas[0]) == "mine"


def test_a_reader_sees_whole_chains_while_the_writer_writes_and_packs(session: Session):
    failures: list[BaseException] = []
    done = threading.Event()

    def follow() -> None:
        try:
            with Session.open(session.path, writable=False) as reader:
                seen = 0
                while not done.is_set() or seen < len(reader.journal):
                    for entry in reader.journal.read(seen):
                        seen += 1
                        assert (entry.position, entry.body) == (seen, b"%d" % seen)
                    for sha in reader.candidates().values():
                        reader.read_tree(sha)
        except BaseException as error:
            failures.append(error)

    follower = threading.Thread(target=follow)
    follower.start()
    for n in range(1, 301):
        if n % 20 == 0:
            propose(session, str(n), b"%d" % n)
        session.journal.append("x", b"%d" % n, at_ns=0)
        if n % 100 == 0:
            assert session.pack()
    done.set()
    follower.join()
    assert failures == []
    check_fsck(session.path)


def test_the_engine_may_pack_in_a_thread_while_it_writes(session: Session):
    def pack() -> None:
        for _ in range(4):
            assert session.pack()

    packer = threading.Thread(target=pack)
    packer.start()
    written: list[bytes] = []
    while packer.is_alive() or len(written) < 50:
        written.append(b"%d" % len(written))
        session.journal.append("x", written[-1], at_ns=0)
        propose(session, str(len(written)), written[-1])
        session.add_note(session.main, written[-1], at_ns=0)
    packer.join()
    assert [entry.body for entry in session.journal.read()] == written
    assert len(session.candidates()) == len(written)
    check_fsck(session.path)


def test_packing_stops_when_asked(session: Session):
    for n in range(50):
        session.journal.append("x", b"%d" % n, at_ns=0)
    session.pack(lambda: True)
    assert len(list(session.journal.read())) == 50
    assert session.pack()
    assert session.loose_count() == 0
    check_fsck(session.path)


def test_what_the_journal_does_not_name_is_dropped(session: Session):
    seed = session.main
    named, unnamed = propose(session, "1", b"a"), propose(session, "2", b"b")
    assert session.pack()
    propose(session, "3", b"c")
    session.accept(unnamed, subject="Accept 2", body="", trailers={}, at_ns=NOW)
    assert sorted(session.drop_unnamed({"1"})) == ["2", "3"]
    assert session.candidates() == {"1": named}
    assert session.reset_main(seed) is True
    assert session.reset_main(seed) is False
    assert session.main == seed
    assert session.refresh_worktree() is None
    check_fsck(session.path)


def test_the_users_git_environment_does_not_reach_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "home"
    hooks = home / "hooks"
    hooks.mkdir(parents=True)
    for hook in ("reference-transaction", "post-checkout", "post-index-change", "pre-commit"):
        (hooks / hook).write_text(f"#!/bin/sh\ntouch {home}/ran\nexit 1\n")
        (hooks / hook).chmod(0o755)
    config = home / ".gitconfig"
    config.write_text(
        f"[core]\nhooksPath={hooks}\nautocrlf=true\n[commit]\ngpgsign=true\n"
        f"[init]\ntemplateDir={hooks}\ndefaultBranch=other\n[user]\nname=Eve\nemail=eve@e\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for key in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_WORK_TREE"):
        monkeypatch.setenv(key, str(home / "elsewhere"))
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    monkeypatch.setenv("GIT_TRACE", "1")
    with Session.create(
        tmp_path / "s", files={KERNEL: b"a\n"}, message="Seed", trailers={}
    ) as session:
        propose(session, "1", b"b")
        session.journal.append("x", b"{}", at_ns=0)
        assert session.pack()
        assert session.refresh_worktree() is None
        assert (session.person.name, session.person.email) == ("Eve", "eve@e")
        assert session.notices == []
        assert (session.path / KERNEL).read_bytes() == b"a\n"
    assert not (home / "elsewhere").exists() and not (home / "ran").exists()


def test_a_git_that_does_not_know_the_user_is_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with Session.create(tmp_path / "s", files={}, message="Seed", trailers={}) as session:
        assert session.person.name == "ada"
        assert session.person.email.startswith("ada@")
        assert len(session.notices) == 1 and "user.name" in session.notices[0]


def test_the_work_tree_never_stops_a_decision_nor_loses_edits(session: Session):
    edited = session.path / KERNEL
    edited.write_bytes(b"mine\n")
    sha = propose(session, "1", b"new\n")
    session.accept(sha, subject="Accept", body="", trailers={}, at_ns=NOW)
    notice = session.refresh_worktree()
    assert notice is not None and "left alone" in notice
    assert edited.read_bytes() == b"mine\n"
    assert session.read_file(session.main, KERNEL) == b"new\n"
    edited.write_bytes(b"seed\n")
    assert session.refresh_worktree() is None
    assert edited.read_bytes() == b"new\n"


def test_logs_are_found_by_hash_and_stay_out_of_git(session: Session):
    digest = session.write_log("1-build.txt", b"error\n")
    assert session.read_log("1-build.txt", digest) == b"error\n"
    assert session.read_log("1-build.txt", "0" * 64) is None
    assert session.read_log("2-build.txt", digest) is None
    assert git(session.path, "status", "--porcelain", "--ignored=no") == ""
    with pytest.raises(ValueError, match="name of a log"):
        session.write_log("../x", b"")
