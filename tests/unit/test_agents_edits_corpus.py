"""Bad and odd replies, each with the outcome that it has to have."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kerneltui.agents.edits.applying import Applied, apply_reply
from kerneltui.agents.edits.failure import EditFailure, EditKind
from kerneltui.agents.edits.repairing import repair_note
from kerneltui.agents.edits.reply import read_reply
from kerneltui.agents.edits.tool_input import read_tool_input
from kerneltui.model.kernel import Kernel, parse_kernel

CORPUS = Path(__file__).parents[1] / "corpus"
CASES: list[dict[str, Any]] = tomllib.loads((CORPUS / "replies.toml").read_text("utf-8"))["reply"]


def kernel_of(case: dict[str, Any]) -> Kernel:
    file = case.get("kernel", "window.cpp")
    return parse_kernel((CORPUS / "kernels" / file).read_text(encoding="utf-8"), file)


def outcome(case: dict[str, Any], parent: Kernel) -> Applied:
    text = (CORPUS / "replies" / case["file"]).read_bytes().decode("utf-8")
    whole = case.get("whole_file", False)
    if case["file"].endswith(".json"):
        return apply_reply(parent, read_tool_input(json.loads(text)), whole_file=whole)
    return apply_reply(parent, read_reply(text, whole_file=whole), whole_file=whole)


def expected(case: dict[str, Any], parent: Kernel) -> str:
    text = parent.source
    for old, new in case["change"]:
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_a_reply_has_its_outcome(case: dict[str, Any]):
    parent = kernel_of(case)
    if "kind" in case:
        with pytest.raises(EditFailure) as caught:
            outcome(case, parent)
        assert caught.value.kind == EditKind(case["kind"]), caught.value
        assert "\n" not in str(caught.value)
        assert str(caught.value) in repair_note(caught.value)
        return
    applied = outcome(case, parent)
    assert applied.source == expected(case, parent)
    assert applied.placed[-1].step == case["step"]
    assert case.get("note", "") in "\n".join(applied.notes)


def test_every_file_is_listed_once():
    listed = [case["file"] for case in CASES]
    assert sorted(listed) == sorted(path.name for path in (CORPUS / "replies").iterdir())
    assert len(listed) >= 60
    assert all(("kind" in case) != ("change" in case) for case in CASES)


def test_every_kind_of_failure_occurs():
    met = {EditKind(case["kind"]) for case in CASES if "kind" in case}
    # these need a very long reply, a git that cannot run, and a new whole file
    others = {EditKind.TOO_LONG, EditKind.UNAVAILABLE, EditKind.REGION, EditKind.NO_REGION}
    assert set(EditKind) - met == others
