"""A session of one kernel for tests, and the git binary as the user has it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kerneltui.session.repository import Session

KERNEL = "kernels/gemm/kernel.cpp"
NOW = 1_800_000_000_123_456_789


def git(path: Path, *arguments: str) -> str:
    """Runs git as the user would, and returns what it prints."""
    done = subprocess.run(["git", *arguments], cwd=path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def check_fsck(path: Path) -> None:
    """Git finds nothing wrong; objects that nothing names are no fault."""
    done = subprocess.run(
        ["git", "fsck", "--full", "--strict", "--no-dangling"],
        cwd=path,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def propose(session: Session, identifier: str, source: bytes, *parents: str) -> str:
    """Records a candidate with one file."""
    return session.write_candidate(
        identifier,
        files={KERNEL: source, "session.toml": b"seed = 1\n"},
        parents=parents or (session.main,),
        subject=f"{identifier}: CHUNK_ROWS 64 → 128",
        body="Larger chunks amortise the flag.",
        trailers={"Kerneltui-Candidate": identifier, "Kerneltui-Inspiration": ["1", "2"]},
        author=("slow-path", "slow-path@kerneltui"),
        at_ns=NOW,
    )


@contextmanager
def seeded(path: Path) -> Iterator[Session]:
    """A new session that has its seed."""
    with Session.create(
        path,
        files={KERNEL: b"seed\n"},
        message="Seed host.cpp",
        trailers={"Kerneltui-Derived-From": "host.cpp"},
        at_ns=NOW,
    ) as made:
        yield made
