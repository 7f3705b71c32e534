"""A session in one file: a git bundle with every ref, to send, keep and replay.

The bundle is written by hand (a list of refs, then git's pack) rather than by `git bundle`, since
that looks each ref up anew while the engine moves them. Here the journal is read first: what it
names is then there. Format: git's "gitformat-bundle", version 2.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from kerneltui.session.binary import GitBinary
from kerneltui.session.errors import BundleError, SessionError, SessionFull
from kerneltui.session.files import FileWriter, disk_errors, sync_path
from kerneltui.session.layout import initialise, new_folder
from kerneltui.session.refs import JOURNAL, MAIN
from kerneltui.session.repository import Session

__all__ = ["is_bundle", "open_bundle", "write_bundle"]

_SHA = re.compile(r"[0-9a-f]{40}")
_REF = re.compile(r"refs(/(?!\.)(?:(?!\.\.)[^\x00-\x20\x7f~^:?*\[\\/])+)+")
_HEADS = (b"# v2 git bundle\n", b"# v3 git bundle\n")


def is_bundle(path: Path) -> bool:
    """Whether the file says that it is a git bundle."""
    with suppress(OSError), path.open("rb") as file:
        return file.readline(64) in _HEADS
    return False


def write_bundle(session: Path, file: Path) -> None:
    """Writes a session with all its refs into one file; the engine may be running meanwhile.

    The file appears whole or not at all, and takes the place of an earlier one.

    Raises:
        NotASession: the folder holds none.
        SessionFull: there is no room.
        SessionError: the session cannot be read or the file not be written.
    """
    file = file.absolute()
    with Session.open(session, writable=False) as reader:
        tip = reader.journal.tip
        refs = reader.refs()
        main = reader.main
    if tip is None:
        raise SessionError(f"{session}: nothing has happened yet, there is nothing to bundle")
    refs[JOURNAL] = tip
    refs[MAIN] = main
    lines = [f"{main} HEAD\n", *(f"{sha} {name}\n" for name, sha in refs.items())]
    wanted = "".join(f"{sha}\n" for sha in sorted(set(refs.values())))
    making = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with disk_errors(file), making.open("wb") as target:
            target.write(_HEADS[0] + "".join(lines).encode() + b"\n")
            target.flush()
            GitBinary(session.absolute()).run_into(
                target,
                *("pack-objects", "--revs", "--stdout", "--delta-base-offset", "--quiet"),
                data=wanted.encode(),
            )
            os.fsync(target.fileno())
        with disk_errors(file):
            making.rename(file)
            sync_path(file)
    finally:
        with suppress(OSError):
            making.unlink()


def open_bundle(file: Path, into: Path, *, writable: bool = True) -> Session:
    """Makes a session out of a bundle, in a folder that does not exist or is empty.

    Raises:
        BundleError: the file is no bundle, is cut short or damaged, or holds no session.
        SessionFull: there is no room.
        SessionError: the folder is taken.
    """
    file = file.absolute()
    refs, start = _read_head(file)
    with new_folder(into) as making:
        initialise(making)
        git = GitBinary(making)
        try:
            with file.open("rb", buffering=0) as source:
                source.seek(start)
                # Strict: the pack must hold whole, sane objects and all that they name.
                git.run_from(source, "index-pack", "--stdin", "--strict")
            shas = "".join(f"{sha}\n" for sha in refs.values()).encode()
            found = git.run("cat-file", "--batch-check=%(objecttype)", data=shas)
        except SessionFull:
            raise
        except SessionError as error:
            raise BundleError(f"{file}: is cut short or damaged ({error})") from error
        if b"missing" in found:
            raise BundleError(f"{file}: is cut short or damaged (it lacks what a ref names)")
        # Ten thousand refs in one file at once; `git fetch` would write ten thousand files first.
        lines = "".join(f"{sha} {name}\n" for name, sha in sorted(refs.items()))
        files = FileWriter()
        files.write(
            making / ".git" / "packed-refs", b"# pack-refs with: sorted \n" + lines.encode()
        )
        files.sync()
        with Session.open(making, writable=True) as session:
            if not len(session.journal):
                raise BundleError(f"{file}: its journal is empty")
            session.refresh_worktree()
    return Session.open(into, writable=writable)


def _read_head(file: Path) -> tuple[dict[str, str], int]:
    """The refs that a bundle lists, and where its pack begins."""
    if not is_bundle(file):
        what = "is no bundle of a session" if file.is_file() else "there is no such file"
        raise BundleError(f"{file}: {what}")
    refs: dict[str, str] = {}
    with file.open("rb") as source:
        source.readline()
        while (line := source.readline()) != b"\n":
            text = line.decode("utf-8", "replace")
            if not text.endswith("\n"):
                raise BundleError(f"{file}: is cut short")
            if text.startswith(("-", "@filter")):
                raise BundleError(f"{file}: is only part of a session; bundle all of it")
            if text.startswith("@"):
                if text != "@object-format=sha1\n":
                    raise BundleError(
                        f"{file}: has a form that kerneltui cannot read ({text[:-1]})"
                    )
                continue
            sha, _, name = text[:-1].partition(" ")
            if name == "HEAD":
                continue
            if not _SHA.fullmatch(sha) or not _REF.fullmatch(name) or ".lock" in name:
                raise BundleError(f"{file}: lists a ref that cannot be ({name})")
            refs[name] = sha
        start = source.tell()
    for name, what in ((JOURNAL, "journal"), (MAIN, "main")):
        if name not in refs:
            raise BundleError(f"{file}: is a git bundle, but of no session: it has no {what}")
    return refs, start
