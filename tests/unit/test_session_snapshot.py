from __future__ import annotations

from pathlib import Path

import pytest

from kerneltui.session import snapshot
from kerneltui.session.errors import SessionError
from kerneltui.session.repository import Session


@pytest.fixture
def session(tmp_path: Path):
    with Session.create(tmp_path / "s", files={"k": b""}, message="seed", trailers={}) as made:
        for n in range(5):
            made.journal.append(f"event {n}", b"%d" % n, at_ns=n)
        yield made


def test_a_snapshot_comes_back_only_if_everything_fits(session: Session):
    assert snapshot.load(session, version=1) is None
    snapshot.save(session, b"state\nof\0three", position=3, version=1)
    found = snapshot.load(session, version=1)
    assert found is not None
    assert (found.position, found.payload) == (3, b"state\nof\0three")
    assert [entry.body for entry in session.journal.read(found.position)] == [b"3", b"4"]
    assert snapshot.load(session, version=2) is None
    with pytest.raises(SessionError, match="no event 6"):
        snapshot.save(session, b"", position=6, version=1)


def test_a_snapshot_is_found_after_packing(session: Session):
    snapshot.save(session, b"state", position=2, version=1)
    assert session.pack()
    session.journal.append("later", b"5", at_ns=5)
    assert snapshot.load(session, version=1) is not None
    with Session.open(session.path, writable=False) as reader:
        assert snapshot.load(reader, version=1) is not None
        with pytest.raises(SessionError, match="read-only"):
            snapshot.save(reader, b"", position=1, version=1)


@pytest.mark.parametrize("spoil", ["cut", "flip", "position", "sha", "beyond", "empty"])
def test_a_snapshot_that_does_not_fit_counts_for_nothing(session: Session, spoil: str):
    snapshot.save(session, b"state", position=3, version=1)
    path = session.git_dir / "kerneltui" / "snapshot"
    data = path.read_bytes()
    sha = session.journal.sha_at(3)
    assert sha is not None
    spoilt = {
        "cut": data[:-1],
        "flip": data[:-1] + b"X",
        "position": data.replace(b" 3 ", b" 2 "),
        "sha": data.replace(sha.encode(), b"0" * 40),
        "beyond": data.replace(b" 3 ", b" 9 "),
        "empty": b"",
    }
    assert spoilt[spoil] != data
    path.write_bytes(spoilt[spoil])
    assert snapshot.load(session, version=1) is None
