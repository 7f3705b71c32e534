"""What a session's repository looks like before anything is recorded: configuration, identity."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import shutil
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from kerneltui.session.binary import GitBinary
from kerneltui.session.errors import NotASession, SessionError
from kerneltui.session.files import disk_errors
from kerneltui.session.records import Person

__all__ = ["FORMAT", "check_format", "find_person", "initialise", "new_folder", "write_config"]

FORMAT = 1
"""The version of the repository's layout. A newer one is opened read-only."""

_TREE = (
    "log --graph --no-notes --date=format:%H:%M:%S "
    "--format='%C(auto)%h %C(reset)%s %C(dim)%an %ad%C(reset)%C(auto)%d%C(reset)' "
    "--decorate-refs=refs/heads/main --branches --glob=refs/kerneltui/candidates/*"
)

_CONFIG = {
    "kerneltui.format": str(FORMAT),
    "gc.auto": "0",
    "maintenance.auto": "false",
    "core.logAllRefUpdates": "always",
    "core.notesRef": "refs/notes/evaluations",
    "alias.tree": _TREE,
}

_EXCLUDE = "/logs/\n/*.sock\n/*.log\n"


def initialise(path: Path) -> None:
    """Makes an empty repository for a session in an existing folder."""
    git = GitBinary(path)
    git.run("init", "--quiet", "--template=", "--object-format=sha1", "--initial-branch=main", ".")
    write_config(path)


def write_config(path: Path) -> None:
    """Writes what every session's configuration must say; the user's other settings stay."""
    git = GitBinary(path)
    for key, value in _CONFIG.items():
        git.run("config", "--local", key, value)
    exclude = path / ".git" / "info" / "exclude"
    with disk_errors(exclude):
        exclude.parent.mkdir(exist_ok=True)
        exclude.write_text(_EXCLUDE)


def check_format(path: Path, *, writable: bool) -> bool:
    """Whether the folder's configuration is that of a session (False: a plain clone, say).

    Raises:
        NotASession: the folder holds no repository, or a newer kind of session is to be written.
    """
    config = path / ".git" / "config"
    try:
        text = config.read_text("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        raise NotASession(f"{path}: holds no session; name a session's folder") from None
    except OSError as error:
        raise NotASession(f"{config}: cannot be read ({error.strerror})") from error
    found = re.search(r"^\[kerneltui\]\s*\n\s*format\s*=\s*(\d+)", text, re.MULTILINE)
    if found and int(found[1]) > FORMAT and writable:
        raise NotASession(
            f"{path}: was written by a newer kerneltui; open it read-only, or update kerneltui"
        )
    return found is not None


def find_person(path: Path) -> tuple[Person, str | None]:
    """Who the user is to git, and a notice when git was never told."""
    git = GitBinary(path)
    found: dict[str, str] = {}
    try:
        listing = git.run("config", "--null", "--list", user_config=True).decode("utf-8", "replace")
    except SessionError:
        listing = ""  # a broken configuration of the user must not stop a session
    for item in listing.split("\0"):
        key, _, value = item.partition("\n")
        found[key.lower()] = value.strip()
    name, email = found.get("user.name", ""), found.get("user.email", "")
    if name and email:
        return Person(name, email), None
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid{os.getuid()}"
    fallback = Person(name or user, email or f"{user}@{socket.gethostname() or 'localhost'}")
    notice = (
        f"git does not know you; commits are by {fallback.name} <{fallback.email}>. "
        "Set user.name and user.email with `git config --global`"
    )
    return fallback, notice


@contextmanager
def new_folder(path: Path) -> Generator[Path]:
    """A folder that takes its place at `path` only when the block succeeds.

    Raises:
        SessionError: something stands there already, or the folder cannot be made.
    """
    path = path.absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise SessionError(f"{path}: is not empty; choose another folder for the session")
    making = path.parent / f".creating-{path.name}-{secrets.token_hex(4)}"
    with disk_errors(path):
        making.mkdir(parents=True)
    try:
        yield making
        with disk_errors(path):
            making.rename(path)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
