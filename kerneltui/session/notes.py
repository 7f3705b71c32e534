"""Evaluations as git notes, so that `git notes show` and `git log` print them.

A note's name is fanned out as `ab/cdef…`: a flat tree would be written whole for every note, 0.7 MB
at 10,000. Notes that git itself has written flat, or fanned out deeper, are found as well.
"""

from __future__ import annotations

from kerneltui.session.objects import ObjectStore
from kerneltui.session.records import (
    FILE,
    FOLDER,
    Commit,
    Person,
    TreeEntry,
    encode_commit,
    encode_tree,
)
from kerneltui.session.refs import NOTES, RefStore

__all__ = ["Notes"]


class Notes:
    """The notes of a session, one for a commit."""

    def __init__(self, objects: ObjectStore, refs: RefStore) -> None:
        self._objects = objects
        self._refs = refs

    def write(self, sha: str, body: bytes, *, person: Person, at_ns: int) -> None:
        """Puts a note on a commit, in the place of an earlier one.

        Raises:
            SessionFull: there is no room; the earlier note stands.
        """
        old = self._refs.read(NOTES)
        root = self._objects.commit(old).tree if old else None
        blob = TreeEntry(FILE, self._objects.write("blob", body))
        tree = self._put(root, sha, blob, depth=0)
        message = f"Evaluation of {sha[:12]}\n".encode()
        commit = Commit(tree, (old,) if old else (), message)
        data = encode_commit(commit, author=person, committer=person, at_ns=at_ns)
        new = self._objects.write("commit", data)
        self._refs.update(NOTES, new, old=old, message="evaluation", person=person, at_ns=at_ns)

    def read(self, sha: str) -> bytes | None:
        """The note on a commit, or None."""
        tip = self._refs.read(NOTES)
        tree = self._objects.commit(tip).tree if tip else None
        rest = sha.encode()
        while tree is not None:
            entries = self._objects.tree(tree)
            found = entries.get(rest)
            if found is not None:
                return self._objects.read_kind(found.sha, "blob")
            below = entries.get(rest[:2])
            tree = below.sha if below is not None and below.is_folder else None
            rest = rest[2:]
        return None

    def _put(self, tree: str | None, name: str, blob: TreeEntry, *, depth: int) -> str:
        entries = self._objects.tree(tree) if tree else {}
        entries.pop(name.encode(), None)
        folder = entries.get(name[:2].encode())
        if depth == 0 or (folder is not None and folder.is_folder):
            below = folder.sha if folder is not None and folder.is_folder else None
            inside = self._put(below, name[2:], blob, depth=depth + 1)
            entries[name[:2].encode()] = TreeEntry(FOLDER, inside)
        else:
            entries[name.encode()] = blob
        return self._objects.write("tree", encode_tree(entries))
