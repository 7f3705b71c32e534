"""The object store: own reader and writer of loose objects, GitPython for packed ones.

Writing a loose object ourselves costs a tenth of asking GitPython and a thirtieth of starting git,
and an event needs one. Packs are written by `git repack` and read through GitPython's object
database, which needs neither a process nor the user's environment.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from kerneltui.session.errors import SessionDamaged
from kerneltui.session.files import FileWriter
from kerneltui.session.records import (
    FILE,
    FOLDER,
    Commit,
    TreeEntry,
    check_path,
    decode_commit,
    decode_tree,
    encode_tree,
)

__all__ = ["ObjectStore"]


class _PackedStream(Protocol):
    type: bytes

    def read(self) -> bytes: ...


class _PackedObjects(Protocol):
    def stream(self, sha: bytes) -> _PackedStream: ...

    def update_cache(self, force: bool = ...) -> bool: ...


class ObjectStore:
    """Blobs, trees and commits of one repository. Safe between threads and beside a packer."""

    def __init__(self, git_dir: Path, files: FileWriter) -> None:
        self._folder = git_dir / "objects"
        self._files = files
        self._packed: _PackedObjects | None = None
        self._packed_guard = threading.Lock()

    def write(self, kind: str, data: bytes) -> str:
        """Stores an object and returns its sha; one that is already there is left alone.

        Raises:
            SessionFull: there is no room.
        """
        raw = f"{kind} {len(data)}\0".encode() + data
        sha = hashlib.sha1(raw, usedforsecurity=False).hexdigest()
        path = self._path(sha)
        try:
            present = path.stat().st_size > 0  # an empty file is what power loss leaves
        except OSError:
            present = False
        if not present:
            self._files.write(path, zlib.compress(raw, 1), mode=0o444)
        return sha

    def read(self, sha: str) -> tuple[str, bytes]:
        """The kind and bytes of an object.

        Raises:
            SessionDamaged: it is missing or its bytes are not what its name says.
        """
        found = self.read_loose(sha)
        return found if found is not None else self._read_packed(sha)

    def read_loose(self, sha: str) -> tuple[str, bytes] | None:
        """The object if it is loose, else None.

        Raises:
            SessionDamaged: the file is there but is not that object.
        """
        try:
            packed = self._path(sha).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SessionDamaged(f"object {sha} cannot be read ({error.strerror})") from error
        try:
            raw = zlib.decompress(packed)
        except zlib.error as error:
            what = "is empty (power loss?)" if not packed else "is cut short or garbled"
            raise SessionDamaged(f"object {sha} {what}; run `git fsck`") from error
        if hashlib.sha1(raw, usedforsecurity=False).hexdigest() != sha:
            raise SessionDamaged(f"object {sha} holds other bytes; run `git fsck`")
        head, _, data = raw.partition(b"\0")
        return head.partition(b" ")[0].decode("ascii"), data

    def read_kind(self, sha: str, kind: str) -> bytes:
        """The bytes of an object that must be of one kind.

        Raises:
            SessionDamaged: it is missing, garbled or of another kind.
        """
        found, data = self.read(sha)
        if found != kind:
            raise SessionDamaged(f"object {sha} is a {found}, expected a {kind}")
        return data

    def commit(self, sha: str) -> Commit:
        """The commit of that sha."""
        return decode_commit(self.read_kind(sha, "commit"))

    def tree(self, sha: str) -> dict[bytes, TreeEntry]:
        """The entries of the tree of that sha."""
        return decode_tree(self.read_kind(sha, "tree"))

    def write_files(self, files: Mapping[str, bytes]) -> str:
        """Stores files as a tree and returns its sha.

        Raises:
            ValueError: a path is not allowed, or a file stands where another needs a folder.
        """
        return self._write_folder({check_path(path): data for path, data in files.items()})

    def _write_folder(self, files: Mapping[tuple[str, ...], bytes]) -> str:
        entries: dict[bytes, TreeEntry] = {}
        folders: dict[str, dict[tuple[str, ...], bytes]] = {}
        for parts, data in files.items():
            if len(parts) == 1:
                entries[parts[0].encode()] = TreeEntry(FILE, self.write("blob", data))
            else:
                folders.setdefault(parts[0], {})[parts[1:]] = data
        for name, inside in folders.items():
            if name.encode() in entries:
                raise ValueError(f"{name!r} is both a file and a folder")
            entries[name.encode()] = TreeEntry(FOLDER, self._write_folder(inside))
        return self.write("tree", encode_tree(entries))

    def read_files(self, tree: str) -> dict[str, bytes]:
        """Every file under a tree: path to bytes."""
        files: dict[str, bytes] = {}
        for name, entry in self.tree(tree).items():
            text = name.decode("utf-8", "surrogateescape")
            if entry.is_folder:
                inside = self.read_files(entry.sha)
                files |= {f"{text}/{path}": data for path, data in inside.items()}
            else:
                files[text] = self.read_kind(entry.sha, "blob")
        return files

    def find(self, tree: str, path: str) -> TreeEntry | None:
        """The entry at a path under a tree, or None."""
        entry = TreeEntry(FOLDER, tree)
        for part in path.split("/"):
            below = self.tree(entry.sha) if entry.is_folder else {}
            found = below.get(part.encode("utf-8", "surrogateescape"))
            if found is None:
                return None
            entry = found
        return entry

    def loose_count(self) -> int:
        """How many loose objects there are."""
        return sum(1 for path in self._folder.glob("[0-9a-f][0-9a-f]/*") if len(path.name) == 38)

    def _path(self, sha: str) -> Path:
        return self._folder / sha[:2] / sha[2:]

    def _read_packed(self, sha: str) -> tuple[str, bytes]:
        try:
            name = bytes.fromhex(sha)
        except ValueError:
            name = b""
        if len(name) != 20:
            raise SessionDamaged(f"{sha!r} is no object name")
        # It takes a while to import, and a fresh session has no packs. Importing all of GitPython
        # would start a git with the whole environment, keys of model servers among it.
        from gitdb.exc import ODBError  # pyright: ignore[reportMissingTypeStubs]

        with self._packed_guard:
            for attempt in range(2):
                try:
                    stream = self._packs(refresh=attempt > 0).stream(name)
                    return stream.type.decode("ascii"), stream.read()
                except (ODBError, OSError):
                    # A pack may be new, or may have been replaced since the last look.
                    continue
                except (ValueError, zlib.error) as error:
                    raise SessionDamaged(f"object {sha}: its pack is garbled") from error
        found = self.read_loose(sha)
        if found is None:
            raise SessionDamaged(f"object {sha} is missing; run `git fsck`")
        return found

    def _packs(self, *, refresh: bool) -> _PackedObjects:
        if self._packed is None:
            import gitdb  # pyright: ignore[reportMissingTypeStubs]

            self._packed = cast(_PackedObjects, cast(Any, gitdb).GitDB(str(self._folder)))
        elif refresh:
            self._packed.update_cache(force=True)
        return self._packed
