"""The journal: a chain of commits, one event each, at `refs/kerneltui/journal`.

An entry's message is its subject, a blank line, and its body byte for byte. Two further header
lines, which git carries and ignores, hold what git's own cannot: the position in the chain, so
that the length is known from the tip, and the time in nanoseconds. Blobs that belong to an event,
such as raw samples, hang in the entry's tree: so packing keeps them and bundles carry them.

An event is durable against SIGKILL when `append` returns, for then the ref has moved. With
`durable=True` it survives power loss as well, and so does everything that was written before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kerneltui.session.binary import GitBinary
from kerneltui.session.errors import SessionDamaged
from kerneltui.session.objects import ObjectStore
from kerneltui.session.records import (
    FILE,
    Commit,
    Person,
    TreeEntry,
    decode_commit,
    encode_commit,
    encode_tree,
    one_line,
)
from kerneltui.session.refs import JOURNAL, RefStore

__all__ = ["Entry", "Journal", "check_position", "decode_entry"]

_AT = "kerneltui-at"
_POSITION = "kerneltui-position"


@dataclass(frozen=True, slots=True)
class Entry:
    """One event as the journal holds it.

    Attributes:
        position: 1 for the first event.
        sha: the commit.
        subject: what `git log` shows.
        body: the bytes that were appended.
        at_ns: when, in nanoseconds since 1970.
        parent: the commit of the event before, None for the first.
    """

    position: int
    sha: str
    subject: str
    body: bytes
    at_ns: int
    parent: str | None


class Journal:
    """The events of a session. One process appends; any number may read meanwhile."""

    def __init__(
        self,
        objects: ObjectStore,
        refs: RefStore,
        git: GitBinary,
        person: Callable[[], Person],
    ) -> None:
        self._objects = objects
        self._refs = refs
        self._git = git
        self._person = person
        self._tip: tuple[str, int] | None = None
        self._guard = threading.Lock()

    def append(
        self,
        subject: str,
        body: bytes,
        *,
        at_ns: int,
        blobs: Mapping[str, str] | None = None,
        durable: bool = False,
    ) -> int:
        """Adds an event and returns its position, counted from 1.

        Args:
            subject: one readable line.
            body: the event; any bytes but NUL, at which git would cut a message.
            at_ns: when it happened, in nanoseconds since 1970.
            blobs: name to sha of stored blobs that belong to the event.
            durable: bring this event, and all that was written before, to the disk first.

        Raises:
            ValueError: the body holds NUL.
            SessionFull: there is no room; the journal has not moved.
            SessionConflict: another program moved the journal.
        """
        if b"\0" in body:
            raise ValueError("the body of an event cannot hold NUL")
        entries = {name.encode(): TreeEntry(FILE, sha) for name, sha in (blobs or {}).items()}
        with self._guard:
            tip = self._find_tip()
            old, position = (tip[0], tip[1] + 1) if tip else (None, 1)
            tree = self._objects.write("tree", encode_tree(entries))
            title = one_line(subject) or "(no subject)"
            message = title.encode("utf-8", "backslashreplace") + b"\n\n" + body + b"\n"
            extra = {_AT: str(at_ns), _POSITION: str(position)}
            commit = Commit(tree, (old,) if old else (), message, extra)
            person = self._person()
            data = encode_commit(commit, author=person, committer=person, at_ns=at_ns)
            sha = self._objects.write("commit", data)
            self._refs.update(
                JOURNAL,
                sha,
                old=old,
                message=title,
                person=person,
                at_ns=at_ns,
                durable=durable,
            )
            self._tip = (sha, position)
        return position

    def read(self, start: int = 0) -> Iterator[Entry]:
        """The events after position `start`, oldest first, up to the tip of this moment.

        Raises:
            SessionDamaged: an event cannot be read, or the chain has a gap.
        """
        sha = self._refs.read(JOURNAL)
        loose: list[Entry] = []
        while sha is not None:
            found = self._objects.read_loose(sha)
            if found is None:
                break
            entry = decode_entry(sha, found[1])
            if entry.position <= start:
                sha = None
                break
            loose.append(entry)
            sha = entry.parent
        expected = start + 1
        if sha is not None:
            last = decode_entry(sha, self._objects.read_kind(sha, "commit")).position
            if last > start:
                for name, data in self._git.objects(sha, last - start):
                    entry = decode_entry(name, data)
                    check_position(entry, expected)
                    expected += 1
                    yield entry
            if expected != max(last, start) + 1:
                raise SessionDamaged(f"the journal ends at event {expected - 1} of {last}")
        for entry in reversed(loose):
            check_position(entry, expected)
            expected += 1
            yield entry

    def __len__(self) -> int:
        """The number of events now."""
        tip = self._find_tip()
        return tip[1] if tip else 0

    @property
    def tip(self) -> str | None:
        """The commit of the last event, None while there is none."""
        return self._refs.read(JOURNAL)

    def sha_at(self, position: int) -> str | None:
        """The commit of the event at a position, None when the journal is shorter."""
        tip = self._find_tip()
        if tip is None or not 1 <= position <= tip[1]:
            return None
        sha: str | None = tip[0]
        while sha is not None:
            found = self._objects.read_loose(sha)
            if found is None:
                last = decode_entry(sha, self._objects.read_kind(sha, "commit")).position
                skip = f"--skip={last - position}"
                text = self._git.run("rev-list", "--first-parent", skip, "--max-count=1", sha)
                return text.decode().strip() or None
            entry = decode_entry(sha, found[1])
            if entry.position == position:
                return sha
            sha = entry.parent
        return None

    def blobs(self, sha: str) -> dict[str, str]:
        """What hangs in the tree of the event with that commit: name to the sha of a blob."""
        tree = self._objects.tree(self._objects.commit(sha).tree)
        return {name.decode("utf-8", "replace"): entry.sha for name, entry in tree.items()}

    def last_good(self, shas: list[str]) -> str | None:
        """The newest of these commits (oldest first) whose whole unpacked chain can be read."""
        good: set[str] = set()
        bad: set[str] = set()
        for tip in reversed(shas):
            chain: list[str] = []
            sha: str | None = tip
            while sha is not None and sha not in good and sha not in bad:
                chain.append(sha)
                try:
                    found = self._objects.read_loose(sha)
                    if found is None:
                        # Packs are written and brought to the disk as a whole: one look is enough.
                        decode_entry(sha, self._objects.read_kind(sha, "commit"))
                        sha = None
                        break
                    self._objects.tree(decode_commit(found[1]).tree)
                    sha = decode_entry(sha, found[1]).parent
                except SessionDamaged:
                    bad.update(chain)
                    break
            if sha in bad:
                bad.update(chain)
            else:
                good.update(chain)
                return tip
        return None

    def _find_tip(self) -> tuple[str, int] | None:
        sha = self._refs.read(JOURNAL)
        if sha is None:
            return None
        tip = self._tip
        if tip is None or tip[0] != sha:
            tip = (sha, decode_entry(sha, self._objects.read_kind(sha, "commit")).position)
            self._tip = tip
        return tip


def decode_entry(sha: str, data: bytes) -> Entry:
    """The event in a raw commit.

    Raises:
        SessionDamaged: the commit is no event of a journal.
    """
    commit = decode_commit(data)
    try:
        position, at_ns = int(commit.extra[_POSITION]), int(commit.extra[_AT])
    except (KeyError, ValueError) as error:
        raise SessionDamaged(f"commit {sha} is no event of a journal") from error
    title, _, body = commit.message.partition(b"\n\n")
    parent = commit.parents[0] if commit.parents else None
    subject = title.decode("utf-8", "replace")
    return Entry(position, sha, subject, body.removesuffix(b"\n"), at_ns, parent)


def check_position(entry: Entry, expected: int) -> None:
    """Raises when the chain has a gap.

    Raises:
        SessionDamaged: the entry is not the one that must come next.
    """
    if entry.position != expected:
        raise SessionDamaged(
            f"the journal has event {entry.position} ({entry.sha}) where {expected} belongs"
        )
