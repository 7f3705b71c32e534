from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.session.errors import SessionDamaged
from kerneltui.session.records import (
    Commit,
    Person,
    TreeEntry,
    check_path,
    compose_message,
    decode_commit,
    decode_tree,
    encode_commit,
    encode_tree,
    one_line,
)

SHA = st.binary(min_size=20, max_size=20).map(bytes.hex)
NAME = st.binary(min_size=1, max_size=20).filter(
    lambda name: b"\0" not in name and b"/" not in name
)
ENTRY = st.builds(TreeEntry, st.sampled_from(["100644", "100755", "40000"]), SHA)


@given(st.dictionaries(NAME, ENTRY))
def test_trees_come_back(entries: dict[bytes, TreeEntry]):
    assert decode_tree(encode_tree(entries)) == entries


def test_folders_sort_as_if_they_ended_in_a_slash():
    entries = {b"a": TreeEntry("40000", "0" * 40), b"a.c": TreeEntry("100644", "1" * 40)}
    assert list(decode_tree(encode_tree(entries))) == [b"a.c", b"a"]


@given(st.binary(), SHA, st.lists(SHA, max_size=3), st.text(), st.text())
def test_commits_come_back_whoever_wrote_them(
    message: bytes, tree: str, parents: list[str], name: str, email: str
):
    commit = Commit(tree, tuple(parents), message, {"kerneltui-position": "3"})
    person = Person(name, email)
    data = encode_commit(commit, author=person, committer=person, at_ns=10**18)
    assert decode_commit(data) == commit


@pytest.mark.parametrize("data", [b"", b"tree", b"100644 a\0short"])
def test_garbage_is_damage(data: bytes):
    with pytest.raises(SessionDamaged):
        decode_commit(data)
    if data:
        with pytest.raises(SessionDamaged):
            decode_tree(data)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/a",
        "a//b",
        "../a",
        "a/./b",
        ".git/config",
        "x/.GIT/hooks",
        "git~1",
        ".g\u200cit/a",
        ".gitmodules",
        "a\0b",
        "a\\b",
    ],
)
def test_paths_that_git_keeps_for_itself_are_refused(path: str):
    with pytest.raises(ValueError, match="cannot be a path"):
        check_path(path)


def test_message_has_subject_body_and_trailers():
    message = compose_message(
        "two\nlines", "why\n", {"Kerneltui-Cost": "1\n2", "Kerneltui-Parent": ["a", "b"]}
    )
    assert message.decode() == (
        "two lines\n\nwhy\n\nKerneltui-Cost: 1 2\nKerneltui-Parent: a\nKerneltui-Parent: b\n"
    )
    with pytest.raises(ValueError, match="trailer"):
        compose_message("s", "", {"bad key": "x"})


@given(st.text())
def test_one_line_is_one_line(text: str):
    assert len(one_line(text).splitlines()) <= 1
    assert "\0" not in one_line(text)
