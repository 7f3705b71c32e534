"""A session as the engine sees it: candidates, `main`, evaluations, journal.

The order of writing is objects, candidate ref, evaluation, journal last. Whatever the journal does
not name did not happen: after a crash the engine folds the journal and calls `drop_unnamed` and
`reset_main` with what it says.

For people: every candidate is a commit, `git tree` draws them, `git log --first-parent main` is the
story of what was accepted, `git notes show <commit>` prints an evaluation. A plain `git clone`
brings only `main`; the rest comes with `git fetch --update-head-ok origin 'refs/*:refs/*'`, or in a bundle.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from kerneltui.session import layout, recovery, worktree
from kerneltui.session.binary import GitBinary
from kerneltui.session.errors import (
    NotASession,
    SessionConflict,
    SessionDamaged,
    SessionError,
)
from kerneltui.session.files import FileWriter
from kerneltui.session.journal import Journal
from kerneltui.session.lock import WriterLock
from kerneltui.session.notes import Notes
from kerneltui.session.objects import ObjectStore
from kerneltui.session.records import Commit, Person, compose_message, encode_commit
from kerneltui.session.refs import CANDIDATES, JOURNAL, MAIN, RefStore, candidate_ref

__all__ = ["Session"]

Trailers = Mapping[str, str | Sequence[str]]


class Session:
    """One session; a context manager. Make it with `create` or `open`.

    Attributes:
        path: the session's folder.
        git_dir: the repository inside.
        writable: whether this process is the one writer.
        person: who the human is to git.
        notices: lines for the user: an unknown identity, what was mended on open.
        journal: the events.
    """

    def __init__(self, path: Path, *, lock: WriterLock | None) -> None:
        self.path = path
        self.git_dir = path / ".git"
        self.writable = lock is not None
        self.notices: list[str] = []
        self._lock = lock
        self._git = GitBinary(path, keep_open=(lock.descriptor,) if lock else ())
        self._files = FileWriter()
        self._objects = ObjectStore(self.git_dir, self._files)
        self._refs = RefStore(self.git_dir, self._files)
        self._notes = Notes(self._objects, self._refs)
        self._guard = threading.RLock()
        self.person = Person("", "")
        self.journal = Journal(self._objects, self._refs, self._git, self._writing_person)

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        files: Mapping[str, bytes],
        message: str,
        trailers: Trailers,
        at_ns: int | None = None,
    ) -> Session:
        """Makes a session whose `main` holds the seed kernel, and opens it for writing.

        Args:
            path: a folder that does not exist or is empty; it appears whole or not at all.
            files: the tree of the seed, path to bytes.
            message: subject of the first commit, and its body after a blank line.
            trailers: trailers of the first commit.
            at_ns: its time; now when left out.

        Raises:
            SessionError: the folder is taken, or git cannot make a repository there.
        """
        path = path.absolute()
        with layout.new_folder(path) as making:
            layout.initialise(making)
            with cls(making, lock=WriterLock(making)) as session:
                session.person = layout.find_person(making)[0]
                subject, _, body = message.partition("\n")
                now = time.time_ns() if at_ns is None else at_ns
                tree = session._objects.write_files(files)
                sha = session._write_commit(
                    Commit(tree, (), compose_message(subject, body, trailers)), at_ns=now
                )
                session._move(MAIN, sha, old=None, message=f"seed: {subject}", at_ns=now)
                session.sync()
                session.refresh_worktree()
        return cls.open(path, writable=True)

    @classmethod
    def open(cls, path: Path, *, writable: bool) -> Session:
        """Opens a session; a writer mends what a crash has left.

        Raises:
            NotASession: the folder holds none, or a newer kind is to be written.
            SessionLocked: another process writes it (only for a writer).
            SessionDamaged: nothing readable is left of a ref.
        """
        path = path.absolute()
        known = layout.check_format(path, writable=writable)
        session = cls(path, lock=WriterLock(path) if writable else None)
        try:
            if not known and session._refs.read(JOURNAL) is None:
                raise NotASession(
                    f"{path}: is a git repository but no session; a plain clone needs "
                    "`git fetch --update-head-ok origin 'refs/*:refs/*'`; a bundle is opened as it is"
                )
            if session._lock is not None:
                session._prepare_writer(known=known, unclean=session._lock.unclean)
            if session._refs.read(MAIN) is None:
                raise NotASession(f"{path}: the session has no main; its creation was cut short")
        except BaseException:
            session._close(clean=False)
            raise
        return session

    def _prepare_writer(self, *, known: bool, unclean: bool) -> None:
        recovery.sweep(self.git_dir)
        if not known:
            layout.write_config(self.path)
        self.person, notice = layout.find_person(self.path)
        if notice:
            self.notices.append(notice)
        if unclean:
            self.notices += recovery.mend_refs(
                self.git_dir, self._objects, self._refs, self.journal, self.person
            )

    def close(self) -> None:
        """Brings everything to the disk and gives the lock back. May be called twice."""
        if self._lock is not None:
            self.sync()
        self._close(clean=True)

    def _close(self, *, clean: bool) -> None:
        if self._lock is not None:
            self._git.release()
            self._lock.close(clean=clean)
            self._lock = None
        self.writable = False

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._close(clean=False)

    @property
    def main(self) -> str:
        """The sha of `main`."""
        sha = self._refs.read(MAIN)
        if sha is None:
            raise SessionDamaged(f"{self.path}: main is gone; restore the session from a bundle")
        return sha

    def candidate(self, identifier: str) -> str | None:
        """The commit of a candidate, or None."""
        return self._refs.read(candidate_ref(identifier))

    def refs(self) -> dict[str, str]:
        """Every ref: name to sha."""
        return self._refs.list()

    def candidates(self) -> dict[str, str]:
        """Every candidate: id to commit."""
        found = self._refs.list(CANDIDATES)
        return {name.removeprefix(CANDIDATES): sha for name, sha in found.items()}

    def read_file(self, sha: str, path: str) -> bytes:
        """A file of a commit.

        Raises:
            SessionError: the commit has no such file.
            SessionDamaged: an object cannot be read.
        """
        entry = self._objects.find(self._objects.commit(sha).tree, path)
        if entry is None or entry.is_folder:
            raise SessionError(f"commit {sha[:12]} has no file {path}")
        return self._objects.read_kind(entry.sha, "blob")

    def read_tree(self, sha: str) -> dict[str, bytes]:
        """Every file of a commit: path to bytes."""
        return self._objects.read_files(self._objects.commit(sha).tree)

    def tree_sha(self, sha: str) -> str:
        """The sha of a commit's tree; equal trees are equal sources."""
        return self._objects.commit(sha).tree

    def parents(self, sha: str) -> tuple[str, ...]:
        """The parents of a commit."""
        return self._objects.commit(sha).parents

    def commit_message(self, sha: str) -> str:
        """The message of a commit, trailers and all."""
        return self._objects.commit(sha).message.decode("utf-8", "replace")

    def read_note(self, sha: str) -> bytes | None:
        """The evaluation noted on a commit, or None."""
        return self._notes.read(sha)

    def read_blob(self, sha: str) -> bytes:
        """The bytes of a blob, such as raw samples."""
        return self._objects.read_kind(sha, "blob")

    def read_log(self, name: str, sha256: str) -> bytes | None:
        """A big log by name and hash; None when it was deleted or differs."""
        return worktree.read_log(self.path, name, sha256)

    def write_candidate(
        self,
        identifier: str,
        *,
        files: Mapping[str, bytes],
        parents: Sequence[str],
        subject: str,
        body: str,
        trailers: Trailers,
        author: tuple[str, str],
        at_ns: int,
    ) -> str:
        """Records a candidate as a commit under its own ref and returns the commit.

        Args:
            identifier: its id; the ref must not exist yet.
            files: the whole tree, path to bytes.
            parents: commits of its parents in the search, two for a crossover.
            subject: what the graph shows.
            body: the rest of the message, may be empty.
            trailers: typed facts; a value may be a list.
            author: name and e-mail address of the agent or human.
            at_ns: when it was proposed.

        Raises:
            SessionConflict: the id is taken.
            SessionFull: there is no room; no ref was written.
        """
        self._require_writer()
        ref = candidate_ref(identifier)
        with self._guard:
            if self._refs.read(ref) is not None:
                raise SessionConflict(f"candidate {identifier} exists already")
            tree = self._objects.write_files(files)
            message = compose_message(subject, body, trailers)
            commit = Commit(tree, tuple(parents), message)
            sha = self._write_commit(commit, author=Person(*author), at_ns=at_ns)
            self._move(ref, sha, old=None, message=subject, at_ns=at_ns)
        return sha

    def accept(
        self, candidate: str, *, subject: str, body: str, trailers: Trailers, at_ns: int
    ) -> str:
        """Merges a candidate into `main` with exactly the candidate's tree; returns the merge.

        Raises:
            SessionFull: there is no room; `main` has not moved.
        """
        message = compose_message(subject, body, trailers)
        return self._advance(candidate, (candidate,), message, f"accept: {subject}", at_ns)

    def restore(
        self, tree_of: str, *, subject: str, body: str, trailers: Trailers, at_ns: int
    ) -> str:
        """Adds a commit to `main` with the tree of an earlier commit (undo and redo).

        Raises:
            SessionFull: there is no room; `main` has not moved.
        """
        message = compose_message(subject, body, trailers)
        return self._advance(tree_of, (), message, f"restore: {subject}", at_ns)

    def add_note(self, sha: str, body: bytes, *, at_ns: int) -> None:
        """Notes an evaluation on a commit, in the place of an earlier one."""
        self._require_writer()
        with self._guard:
            self._notes.write(sha, body, person=self.person, at_ns=at_ns)

    def write_blob(self, data: bytes) -> str:
        """Stores bytes and returns their sha; name it in `journal.append(blobs=…)` to keep it."""
        self._require_writer()
        return self._objects.write("blob", data)

    def write_log(self, name: str, data: bytes) -> str:
        """Puts a big log under `logs/`, outside git, and returns its sha256."""
        self._require_writer()
        return worktree.write_log(self.path, self._files, name, data)

    def sync(self) -> None:
        """Brings everything written so far to the disk, against power loss."""
        self._files.sync()

    def drop_unnamed(self, named: Collection[str]) -> list[str]:
        """Drops candidates that no event names; returns their ids.

        Args:
            named: the ids that the folded journal knows.
        """
        self._require_writer()
        with self._guard:
            unnamed = sorted(self.candidates().keys() - set(named))
            if unnamed:
                lines = [f"delete {candidate_ref(name)}\n" for name in unnamed]
                self._git.run("update-ref", "--stdin", data="".join(lines).encode())
        return unnamed

    def reset_main(self, sha: str) -> bool:
        """Puts `main` where the journal says it is; False when it was there already."""
        self._require_writer()
        with self._guard:
            old = self.main
            if old == sha:
                return False
            self._objects.commit(sha)
            self._move(
                MAIN, sha, old=old, message="recovery: not in the journal", at_ns=time.time_ns()
            )
        return True

    def refresh_worktree(self) -> str | None:
        """Brings the work tree to `main`; returns what kept it from that, as one line.

        Never raises for what the work tree holds: no decision may fail for it.
        """
        self._require_writer()
        return worktree.refresh(self._git)

    def loose_count(self) -> int:
        """How many objects are not packed; over 2,000 it is time to call `pack`."""
        return self._objects.loose_count()

    def pack(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Packs loose objects and refs; may run in a thread beside everything else.

        Args:
            stop: asked twenty times a second; True ends the work where it stands, safely.

        Returns:
            Whether everything was packed.
        """
        self._require_writer()
        done = self._git.run_until(stop, "repack", "-d", "-q", "-n", "--geometric=2")
        return done and self._git.run_until(stop, "pack-refs", "--all")

    def _require_writer(self) -> None:
        if not self.writable:
            raise SessionError(f"{self.path}: the session is open read-only")

    def _writing_person(self) -> Person:
        self._require_writer()
        return self.person

    def _advance(
        self, tree_of: str, further: tuple[str, ...], message: bytes, reason: str, at_ns: int
    ) -> str:
        self._require_writer()
        with self._guard:
            old = self.main
            commit = Commit(self.tree_sha(tree_of), (old, *further), message)
            sha = self._write_commit(commit, at_ns=at_ns)
            self._move(MAIN, sha, old=old, message=reason, at_ns=at_ns)
        return sha

    def _write_commit(self, commit: Commit, *, at_ns: int, author: Person | None = None) -> str:
        data = encode_commit(
            commit, author=author or self.person, committer=self.person, at_ns=at_ns
        )
        return self._objects.write("commit", data)

    def _move(self, ref: str, new: str, *, old: str | None, message: str, at_ns: int) -> None:
        self._refs.update(ref, new, old=old, message=message, person=self.person, at_ns=at_ns)
