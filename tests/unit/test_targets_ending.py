"""Ranks whose fork server is gone: they are ended all the same, and it is looked whether they are."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kerneltui.targets import ending
from kerneltui.targets.client import ForkServerClient
from kerneltui.targets.ending import end_ranks
from kerneltui.targets.errors import ServerFailure


def gone_server() -> ForkServerClient:
    def ask(message: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        raise ServerFailure("the fork server is gone")

    return cast(ForkServerClient, SimpleNamespace(ask=ask))


def test_ranks_that_outlive_their_server_are_killed_and_gone() -> None:
    code = "import os, time; os.write(1, b'.'); time.sleep(100)"
    command = [sys.executable, "-c", code, "kerneltui.targets.forkserver"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.read(1) == b"."
            proof = end_ranks(gone_server(), "group", [rank.pid])
            assert proof.gone and not proof.left
        finally:
            rank.kill()


def test_a_rank_that_does_not_go_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_GIVE_UP_S", 0.05)
    monkeypatch.setattr(ending, "_is_rank", lambda pid: pid == 7)
    killed: list[int] = []
    monkeypatch.setattr(ending, "kill_process", lambda pid, _: killed.append(pid))
    proof = end_ranks(gone_server(), "group", [7, 8])
    assert killed == [7]
    assert not proof.gone and proof.left == (7,)
