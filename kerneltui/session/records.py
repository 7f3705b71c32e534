"""The bytes of git's trees and commits, and which names may stand in them.

Formats: git's own documentation, "gitformat-tree" and the commit object of `git cat-file -p`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kerneltui.session.errors import SessionDamaged

__all__ = [
    "Commit",
    "Person",
    "TreeEntry",
    "check_path",
    "compose_message",
    "decode_commit",
    "decode_tree",
    "encode_commit",
    "encode_tree",
    "one_line",
]

FILE = "100644"
FOLDER = "40000"


@dataclass(frozen=True, slots=True)
class Person:
    """Who wrote a commit, as git records it."""

    name: str
    email: str

    def stamp(self, at_ns: int) -> bytes:
        """The line git wants: name, email, whole seconds, UTC."""
        name, email = _person_text(self.name), _person_text(self.email)
        text = f"{name or 'unknown'} <{email or 'unknown'}> {at_ns // 1_000_000_000} +0000"
        return text.encode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One line of a tree."""

    mode: str
    sha: str

    @property
    def is_folder(self) -> bool:
        """Whether the entry names another tree."""
        return self.mode == FOLDER


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as we write and read it; `extra` are further header lines, which git ignores."""

    tree: str
    parents: tuple[str, ...]
    message: bytes
    extra: Mapping[str, str] = field(default_factory=dict[str, str])


def _person_text(text: str) -> str:
    return " ".join(re.sub(r"[<>\x00-\x1f\x7f]", " ", text).split()).strip(".,:;\"' ")


def one_line(text: str) -> str:
    """A text as one line: runs of blanks and line ends become a space, NUL and controls go."""
    return " ".join(re.sub(r"[\x00-\x1f\x7f]", " ", text).split())


def encode_tree(entries: Mapping[bytes, TreeEntry]) -> bytes:
    """The tree object of the entries, in git's order (folders sort as if they ended in a slash)."""
    ordered = sorted(entries.items(), key=lambda item: item[0] + b"/" * item[1].is_folder)
    return b"".join(
        entry.mode.encode() + b" " + name + b"\0" + bytes.fromhex(entry.sha)
        for name, entry in ordered
    )


def decode_tree(data: bytes) -> dict[bytes, TreeEntry]:
    """The entries of a tree object.

    Raises:
        SessionDamaged: the bytes are no tree.
    """
    entries: dict[bytes, TreeEntry] = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at)
        end = data.find(b"\0", space)
        if space < 0 or end < 0 or end + 21 > len(data):
            raise SessionDamaged("a tree of the session cannot be read")
        mode = data[at:space].decode("ascii", "replace")
        entries[data[space + 1 : end]] = TreeEntry(mode, data[end + 1 : end + 21].hex())
        at = end + 21
    return entries


def encode_commit(commit: Commit, *, author: Person, committer: Person, at_ns: int) -> bytes:
    """The commit object; times are cut to whole seconds, which is all that git keeps."""
    lines = [b"tree " + commit.tree.encode()]
    lines += [b"parent " + parent.encode() for parent in commit.parents]
    lines += [b"author " + author.stamp(at_ns), b"committer " + committer.stamp(at_ns)]
    lines += [f"{key} {value}".encode() for key, value in commit.extra.items()]
    return b"\n".join(lines) + b"\n\n" + commit.message


def decode_commit(data: bytes) -> Commit:
    """What we use of a commit object.

    Raises:
        SessionDamaged: the bytes are no commit.
    """
    head, separator, message = data.partition(b"\n\n")
    tree = ""
    parents: list[str] = []
    extra: dict[str, str] = {}
    for line in head.split(b"\n"):
        key, _, value = line.partition(b" ")
        if key == b"tree":
            tree = value.decode("ascii", "replace")
        elif key == b"parent":
            parents.append(value.decode("ascii", "replace"))
        elif key.startswith(b"kerneltui-"):
            extra[key.decode("ascii", "replace")] = value.decode("ascii", "replace")
    if not separator or not tree:
        raise SessionDamaged("a commit of the session cannot be read")
    return Commit(tree, tuple(parents), message, extra)


def compose_message(subject: str, body: str, trailers: Mapping[str, str | Sequence[str]]) -> bytes:
    """A commit message: subject, body, and trailers that `git interpret-trailers` understands.

    A trailer with several values is written once for each. Blank values are left out.

    Raises:
        ValueError: a trailer's name holds anything but letters, digits and hyphens.
    """
    lines: list[str] = []
    for key, value in trailers.items():
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*", key):
            raise ValueError(f"trailer {key!r}: only letters, digits and hyphens")
        values = [value] if isinstance(value, str) else list(value)
        lines += [f"{key}: {text}" for text in map(one_line, values) if text]
    # git cuts messages at NUL, so none may get in.
    parts = [one_line(subject) or "(no subject)", body.replace("\0", " ").strip(), "\n".join(lines)]
    text = "\n\n".join(part for part in parts if part) + "\n"
    return text.encode("utf-8", "backslashreplace")


def check_path(path: str) -> tuple[str, ...]:
    """The parts of a file's path inside the tree.

    Raises:
        ValueError: the path is absolute, climbs, or names what git keeps for itself on any
            file system (`.git` and its disguises).
    """
    parts = tuple(path.split("/"))
    for part in parts:
        # HFS+ drops invisible characters and NTFS shortens names; git's fsck refuses both forms.
        seen = "".join(c for c in part if unicodedata.category(c) != "Cf").lower()
        reserved = seen.startswith((".git", "git~"))
        if part in {"", ".", ".."} or reserved or "\0" in part or "\\" in part:
            raise ValueError(f"{path!r} cannot be a path in a session")
    return parts
