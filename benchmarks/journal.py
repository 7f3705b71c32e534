"""What the journal costs: an event, opening and reading, beside GitPython and the git binary.

    python benchmarks/journal.py [--events 10000 60000] [--folder DIR]

Everything runs side by side in one process and one run, on the disk of `--folder`. The bars are an
event in 10 ms and a session of 10,000 candidates (about 60,000 events) open in 1 s, the fold of
the state not counted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import git

from kerneltui.session import snapshot
from kerneltui.session.repository import Session

NOW = 1_800_000_000_000_000_000
WARM_UP = 5


def body(number: int) -> bytes:
    """An event of a usual size, 600 bytes, with numbers that do not repeat."""
    medians = [((number * 7919 + k * 104729) % 100_003) / 1000 for k in range(60)]
    return json.dumps({"kind": "measured", "candidate": number, "medians": medians}).encode()


def report(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds[WARM_UP:])
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    print(f"{what:52s} median {statistics.median(ordered) * 1e3:8.3f} ms   p99 {p99 * 1e3:8.3f} ms")


def clock(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def report_once(what: str, work: Callable[[], object]) -> None:
    print(f"{what:52s}        {clock(work) * 1e3:8.1f} ms")


def run_git(path: Path, *arguments: str, data: bytes | None = None) -> bytes:
    return subprocess.run(
        ["git", *arguments], cwd=path, input=data, check=True, capture_output=True
    ).stdout


def create(path: Path) -> Session:
    return Session.create(path, files={"kernel.cpp": b"seed\n"}, message="Seed", trailers={})


def with_gitpython(repository: git.Repo, number: int) -> None:
    """The same event through GitPython's object model: a commit on the chain, then the ref."""
    ref = "refs/bench/gitpython"
    tip = [repository.commit(ref)] if number else []
    commit = git.Commit.create_from_tree(
        repository, repository.tree("main"), body(number).decode(), parent_commits=tip
    )
    git.Reference(repository, ref).set_object(commit)


def with_binary(path: Path, number: int) -> None:
    """The same event through two git processes."""
    ref = "refs/bench/binary"
    parent = ["-p", ref] if number else []
    sha = run_git(path, "commit-tree", "main^{tree}", *parent, data=body(number)).decode().strip()
    run_git(path, "update-ref", ref, sha)


def bench_event(folder: Path, count: int) -> None:
    """One event, four ways, interleaved, so that whatever disturbs one disturbs all."""
    times: dict[str, list[float]] = {}
    with create(folder / "event") as session, git.Repo(session.path) as repository:
        ways: dict[str, Callable[[int], object]] = {
            "event, durable against SIGKILL": lambda n: session.journal.append(
                "measured", body(n), at_ns=NOW
            ),
            "event, durable against power loss (fsync)": lambda n: session.journal.append(
                "measured", body(n), at_ns=NOW, durable=True
            ),
            "event with GitPython": lambda n: with_gitpython(repository, n),
            "event with two git processes": lambda n: with_binary(session.path, n),
        }
        for number in range(count):
            for name, way in ways.items():
                times.setdefault(name, []).append(clock(lambda: way(number)))  # noqa: B023
        for name, seconds in times.items():
            report(name, seconds)
        bench_candidate(session, count)


def bench_candidate(session: Session, count: int) -> None:
    """A candidate as the engine records it: 20 KB of source, a note, 4 KB of samples, an event."""
    source = b"".join(b"line %d of a kernel\n" % n for n in range(1000))
    seconds: list[float] = []
    for number in range(count):

        def record(number: int = number) -> None:
            sha = session.write_candidate(
                str(number),
                files={"kernel.cpp": source + b"%d" % number, "session.toml": b""},
                parents=[session.main],
                subject=f"{number}: chunk",
                body="",
                trailers={"Kerneltui-Candidate": str(number)},
                author=("slow-path", "slow-path@kerneltui"),
                at_ns=NOW,
            )
            session.add_note(sha, body(number), at_ns=NOW)
            samples = session.write_blob(body(number) * 7)
            session.journal.append("m", body(number), at_ns=NOW, blobs={"samples": samples})

        seconds.append(clock(record))
    report("candidate, note, samples and event", seconds)
    report_once("sync of all that", session.sync)


def bench_reading(folder: Path, count: int) -> None:
    """Opening and reading a long journal, loose and packed."""
    path = folder / f"read-{count}"
    with create(path) as session:
        for number in range(count):
            session.journal.append("measured", body(number), at_ns=NOW)
        snapshot.save(session, b"state", position=count - 200, version=1)
        report_once(f"{count} events: close (sync)", session.close)
    for state in ("loose", "packed"):
        print()
        open_and_read(path, count, state)
        if state == "loose":
            with Session.open(path, writable=True) as session:
                report_once(f"{count} events: pack", session.pack)
    run_git(path, "fsck", "--no-dangling")


def open_and_read(path: Path, count: int, state: str) -> None:
    label = f"{count} events, {state}: "

    def read_all() -> None:
        with Session.open(path, writable=False) as reader:
            assert sum(len(entry.body) for entry in reader.journal.read()) > count

    def read_tail() -> None:
        with Session.open(path, writable=True) as writer:
            found = snapshot.load(writer, version=1)
            assert found is not None
            assert sum(1 for _ in writer.journal.read(found.position)) == 200

    def with_log() -> None:
        assert len(run_git(path, "log", "--format=%H%n%B", "refs/kerneltui/journal")) > count

    def with_gitpython_log() -> None:
        with git.Repo(path) as repository:
            commits = repository.iter_commits("refs/kerneltui/journal")
            assert sum(len(commit.message) for commit in commits) > count

    report_once(label + "open, read all", read_all)
    report_once(label + "open to write, snapshot, 200 events", read_tail)
    report_once(label + "git log", with_log)
    report_once(label + "GitPython iter_commits", with_gitpython_log)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--events", type=int, nargs="*", default=[10_000, 60_000])
    parser.add_argument("--rounds", type=int, default=300, help="events timed one by one")
    parser.add_argument("--folder", type=Path, default=None, help="where the sessions are made")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kerneltui-journal-", dir=options.folder))
    try:
        version = run_git(folder, "--version").decode().strip()
        print(f"Python {sys.version.split()[0]}, GitPython {git.__version__}, {version}\n")
        bench_event(folder, options.rounds)
        for count in options.events:
            bench_reading(folder, count)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
